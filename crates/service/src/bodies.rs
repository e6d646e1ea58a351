//! Room for bodies that are kept as a whole until their request is answered. Requests wait in queues: without a bound, a tenant could
//! fill the memory of the server with what it wants to have run later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::BODY_PATIENCE;
use crate::problem::{Code, Problem};

/// Of all tenants, and of one, in units.
const ALL: usize = (1 << 30) / UNIT;
const OF_TENANT: usize = (256 << 20) / UNIT;
const UNIT: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Bodies {
    all: Arc<Semaphore>,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Room for one body. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies { all: Arc::new(Semaphore::new(ALL)), tenants: Mutex::default() }
    }
}

impl Bodies {
    /// Waits until there is room for this many bytes of a tenant.
    pub(crate) async fn room(&self, tenant: &str, bytes: u64) -> Result<Room, Problem> {
        let units = (bytes as usize).div_ceil(UNIT).clamp(1, OF_TENANT) as u32;
        let own = self.of(tenant);
        let both = async {
            let own = own.acquire_many_owned(units).await.ok()?;
            Some(Room { _all: self.all.clone().acquire_many_owned(units).await.ok()?, _own: own })
        };
        timeout(BODY_PATIENCE, both).await.ok().flatten().ok_or_else(|| {
            let hint =
                "wait until some of what you asked for has been answered, or put large files into sessions";
            Problem::new(Code::Busy, "too much of what was sent waits to be run", hint).later(5)
        })
    }

    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        // Whoever has nothing here is forgotten.
        tenants.retain(|_, known| known.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(OF_TENANT));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&fresh));
        fresh
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
