//! What a tenant may have at a time of something that all share, and that nobody would notice if one took all of it: memory for bodies
//! that wait to be run, threads that take archives apart, connections that stay.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::BODY_PATIENCE;
use crate::problem::{Code, Problem};

/// The same for each tenant.
#[derive(Debug)]
pub(crate) struct Shares {
    each: usize,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    pub(crate) fn new(each: usize) -> Shares {
        Shares { each, tenants: Mutex::default() }
    }

    /// Waits for a part of a tenant's share.
    pub(crate) async fn take(&self, tenant: &str, units: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let units = units.clamp(1, self.each) as u32;
        taken(self.of(tenant), units).await
    }

    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        // Whoever has nothing is forgotten.
        tenants.retain(|_, known| known.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(self.each));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&fresh));
        fresh
    }
}

async fn taken(from: Arc<Semaphore>, units: u32) -> Result<OwnedSemaphorePermit, Problem> {
    let taken = timeout(BODY_PATIENCE, from.acquire_many_owned(units)).await;
    taken.ok().and_then(Result::ok).ok_or_else(|| {
        let hint = "wait until some of what you asked for has been answered";
        Problem::new(Code::Busy, "too much of what this tenant asked for goes on", hint).later(5)
    })
}

/// Of all bodies that are kept as a whole until their request is answered, and of one tenant's, in units.
const ALL: usize = (1 << 30) / UNIT;
const OF_TENANT: usize = (256 << 20) / UNIT;
const UNIT: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Bodies {
    all: Arc<Semaphore>,
    each: Shares,
}

/// Room for one body. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies { all: Arc::new(Semaphore::new(ALL)), each: Shares::new(OF_TENANT) }
    }
}

impl Bodies {
    /// Waits until there is room for this many bytes of a tenant.
    pub(crate) async fn room(&self, tenant: &str, bytes: u64) -> Result<Room, Problem> {
        let units = (bytes as usize).div_ceil(UNIT).clamp(1, OF_TENANT);
        let own = self.each.take(tenant, units).await?;
        Ok(Room { _own: own, _all: taken(self.all.clone(), units as u32).await? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_one_tenant_sends_leaves_room_for_others() {
        let bodies = Bodies::default();
        let mut held = Vec::new();
        for _ in 0..16 {
            held.push(bodies.room("a", 16 << 20).await.expect("room"));
        }
        let waiting = timeout(Duration::from_millis(20), bodies.room("a", 1)).await;
        assert!(waiting.is_err(), "it is full");
        bodies.room("b", 16 << 20).await.expect("others have their own");
        held.pop();
        let again = timeout(Duration::from_secs(1), bodies.room("a", 16 << 20)).await;
        again.expect("at once").expect("it was given back");
    }
}
