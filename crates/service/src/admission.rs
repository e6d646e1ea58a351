//! Who may have a cell now. Every tenant has a queue of its own; whoever has the fewest cells goes first, and among equals the one
//! that was served longest ago. A tenant that floods fills its own queue, and keeps nobody else waiting for longer than it takes
//! until some cell ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// What all tenants together may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) cells: usize,
    /// Requests of one tenant that wait for a cell.
    pub(crate) queue: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    room: Room,
    taken: usize,
    /// Counts admissions: who was served at which.
    clock: u64,
    tenants: BTreeMap<String, Tenant>,
}

#[derive(Debug, Default)]
struct Tenant {
    cells: usize,
    most: usize,
    served: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// Leave to have a cell, given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Option<Admission>,
    tenant: String,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The tenant has as many waiting as may wait.
    Queue,
}

impl Admission {
    pub(crate) fn new(room: Room) -> Admission {
        Admission(Arc::new(Mutex::new(State { room, taken: 0, clock: 0, tenants: BTreeMap::new() })))
    }

    /// Waits for a cell, of which this tenant may have `most`. Dropped meanwhile, it waits no more.
    pub(crate) async fn admit(&self, tenant: &str, most: usize) -> Result<Permit, Full> {
        let waiting = {
            let mut state = self.lock();
            let queue = state.room.queue;
            let entry = state.tenants.entry(tenant.to_owned()).or_default();
            entry.most = most;
            // Those who have given up still stand in it.
            entry.waiting.retain(|waiting| !waiting.is_closed());
            if entry.waiting.len() >= queue {
                return Err(Full::Queue);
            }
            let (call, called) = oneshot::channel();
            entry.waiting.push_back(call);
            called
        };
        self.serve();
        // Nobody drops a waiting sender but us, after it was called.
        waiting.await.map_err(|_| Full::Queue)
    }

    /// How many cells there are, and how many requests wait for one.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        let waiting = state.tenants.values().flat_map(|tenant| &tenant.waiting);
        (state.taken, waiting.filter(|waiting| !waiting.is_closed()).count())
    }

    /// Lets in whoever may come in.
    fn serve(&self) {
        loop {
            let (call, permit) = {
                let mut state = self.lock();
                if state.taken >= state.room.cells {
                    return;
                }
                // Whoever gave up has no turn.
                for tenant in state.tenants.values_mut() {
                    while tenant.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                        tenant.waiting.pop_front();
                    }
                }
                let next = state
                    .tenants
                    .iter()
                    .filter(|(_, tenant)| !tenant.waiting.is_empty() && tenant.cells < tenant.most)
                    .min_by_key(|(_, tenant)| (tenant.cells, tenant.served))
                    .map(|(name, _)| name.clone());
                let Some(name) = next else { return };
                state.clock += 1;
                let clock = state.clock;
                let Some(tenant) = state.tenants.get_mut(&name) else { return };
                let Some(call) = tenant.waiting.pop_front() else { return };
                tenant.cells += 1;
                tenant.served = clock;
                state.taken += 1;
                (call, Permit { admission: Some(self.clone()), tenant: name })
            };
            // Out of the lock: whoever gave up just now drops the permit right here.
            let _ = call.send(permit);
        }
    }

    fn leave(&self, name: &str) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(1);
        if let Some(tenant) = state.tenants.get_mut(name) {
            tenant.cells = tenant.cells.saturating_sub(1);
            // Tenants come and go; whom nobody remembers costs nothing.
            if tenant.cells == 0 && tenant.waiting.is_empty() && state.tenants.len() > 1024 {
                state.tenants.remove(name);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            admission.leave(&self.tenant);
            admission.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn room(cells: usize, queue: usize) -> Admission {
        Admission::new(Room { cells, queue })
    }

    #[tokio::test]
    async fn a_tenant_has_no_more_than_it_may_and_the_others_are_not_kept() {
        let admission = room(3, 8);
        let _first = admission.admit("a", 1).await.expect("room");
        let second = tokio::spawn({
            let admission = admission.clone();
            async move { admission.admit("a", 1).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!second.is_finished(), "one cell is all that it may have");
        admission.admit("b", 1).await.expect("there is room for others");
        drop(_first);
        second.await.expect("no panic").expect("its turn");
    }

    #[tokio::test]
    async fn a_full_queue_turns_away_its_own_tenant_only() {
        let admission = room(1, 2);
        let held = admission.admit("a", 9).await.expect("room");
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(async move { admission.admit("a", 9).await.map(drop) })
            })
            .collect();
        while admission.load().1 < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(admission.admit("a", 9).await.map(drop), Err(Full::Queue));
        let other = tokio::spawn({
            let admission = admission.clone();
            async move { admission.admit("b", 9).await.map(drop) }
        });
        drop(held);
        other.await.expect("no panic").expect("its own queue has room");
        for waiting in waiting {
            waiting.await.expect("no panic").expect("its turn");
        }
        assert_eq!(admission.load(), (0, 0));
    }

    #[tokio::test]
    async fn whoever_gives_up_leaves_nothing_behind() {
        let admission = room(1, 2);
        let held = admission.admit("a", 9).await.expect("room");
        for _ in 0..10 {
            let gave_up = tokio::time::timeout(Duration::from_millis(1), admission.admit("a", 9)).await;
            assert!(gave_up.is_err(), "there is no room");
        }
        drop(held);
        admission.admit("a", 9).await.expect("those who gave up do not stand in the way");
        assert_eq!(admission.load().0, 0);
    }

    /// One tenant asks for ten times as much as the others, and gets no more.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flood_does_not_change_the_shares() {
        let admission = room(4, 1000);
        let counts: Vec<Arc<AtomicUsize>> = (0..4).map(|_| Arc::default()).collect();
        let mut tasks = Vec::new();
        for (tenant, count) in counts.iter().enumerate() {
            for _ in 0..if tenant == 0 { 100 } else { 10 } {
                let (admission, count) = (admission.clone(), count.clone());
                tasks.push(tokio::spawn(async move {
                    loop {
                        let Ok(_permit) = admission.admit(&format!("t{tenant}"), 100).await else { continue };
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }));
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let counts: Vec<usize> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let (least, most) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
        assert!(*least > 0 && *most as f64 <= 1.2 * *least as f64, "{counts:?}");
    }
}
