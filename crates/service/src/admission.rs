//! Who may have a cell now. Every tenant has a queue of its own; whoever has the fewest cells goes first, and among equals the one
//! that was served longest ago. A tenant that floods fills its own queue, and keeps nobody else waiting for longer than it takes
//! until some cell ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Of what a tenant may have at a time besides cells: bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

impl Share {
    /// For those to whom nobody has set a bound.
    #[cfg(test)]
    pub(crate) const ALL: Share = Share { memory: u64::MAX, disk: u64::MAX };

    fn fits(self, most: Share) -> bool {
        self.memory <= most.memory && self.disk <= most.disk
    }

    fn and(self, other: Share) -> Share {
        Share { memory: self.memory.saturating_add(other.memory), disk: self.disk.saturating_add(other.disk) }
    }

    fn without(self, other: Share) -> Share {
        Share { memory: self.memory.saturating_sub(other.memory), disk: self.disk.saturating_sub(other.disk) }
    }
}

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
    share: Share,
    most_share: Share,
    served: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    share: Share,
    call: oneshot::Sender<Permit>,
}

impl Tenant {
    /// Whether the first that waits may come in.
    fn may_enter(&self) -> bool {
        let fits = |first: &Waiting| self.share.and(first.share).fits(self.most_share);
        self.cells < self.most && self.waiting.front().is_some_and(fits)
    }
}

/// Leave to have a cell, given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Option<Admission>,
    tenant: String,
    share: Share,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The tenant has as many waiting as may wait.
    Queue,
    /// It is more than the tenant may have, even if it had nothing else.
    Never,
}

impl Admission {
    pub(crate) fn new(room: Room) -> Admission {
        Admission(Arc::new(Mutex::new(State { room, taken: 0, clock: 0, tenants: BTreeMap::new() })))
    }

    /// Waits for a cell, of which this tenant may have `most`, and for its share of what it may have at all. Dropped meanwhile, it
    /// waits no more.
    pub(crate) async fn admit(
        &self,
        tenant: &str,
        most: usize,
        share: Share,
        most_share: Share,
    ) -> Result<Permit, Full> {
        if !share.fits(most_share) {
            return Err(Full::Never);
        }
        let waiting = {
            let mut state = self.lock();
            let queue = state.room.queue;
            let entry = state.tenants.entry(tenant.to_owned()).or_default();
            (entry.most, entry.most_share) = (most, most_share);
            // Those who have given up still stand in it.
            entry.waiting.retain(|waiting| !waiting.call.is_closed());
            if entry.waiting.len() >= queue {
                return Err(Full::Queue);
            }
            let (call, called) = oneshot::channel();
            entry.waiting.push_back(Waiting { share, call });
            called
        };
        self.serve();
        let _leaving = Leaving(self);
        // Nobody drops a waiting sender but us, after it was called.
        waiting.await.map_err(|_| Full::Queue)
    }

    /// How many cells there are, and how many requests wait for one.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        let waiting = state.tenants.values().flat_map(|tenant| &tenant.waiting);
        (state.taken, waiting.filter(|waiting| !waiting.call.is_closed()).count())
    }

    /// How many cells a tenant has, and its share of the rest.
    pub(crate) fn of(&self, tenant: &str) -> (usize, Share) {
        self.lock().tenants.get(tenant).map_or_else(Default::default, |tenant| (tenant.cells, tenant.share))
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
                    while tenant.waiting.front().is_some_and(|first| first.call.is_closed()) {
                        tenant.waiting.pop_front();
                    }
                }
                let next = state
                    .tenants
                    .iter()
                    .filter(|(_, tenant)| tenant.may_enter())
                    .min_by_key(|(_, tenant)| (tenant.cells, tenant.served))
                    .map(|(name, _)| name.clone());
                let Some(name) = next else { return };
                state.clock += 1;
                let clock = state.clock;
                let Some(tenant) = state.tenants.get_mut(&name) else { return };
                let Some(Waiting { share, call }) = tenant.waiting.pop_front() else { return };
                tenant.cells += 1;
                tenant.share = tenant.share.and(share);
                tenant.served = clock;
                state.taken += 1;
                (call, Permit { admission: Some(self.clone()), tenant: name, share })
            };
            // Out of the lock: whoever gave up just now drops the permit right here.
            let _ = call.send(permit);
        }
    }

    fn leave(&self, name: &str, share: Share) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(1);
        if let Some(tenant) = state.tenants.get_mut(name) {
            tenant.cells = tenant.cells.saturating_sub(1);
            tenant.share = tenant.share.without(share);
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

/// Whoever gives up may have kept those behind from something that they would fit into.
struct Leaving<'a>(&'a Admission);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.serve();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            admission.leave(&self.tenant, self.share);
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
        let _first = admission.admit("a", 1, Share::default(), Share::ALL).await.expect("room");
        let second = tokio::spawn({
            let admission = admission.clone();
            async move { admission.admit("a", 1, Share::default(), Share::ALL).await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!second.is_finished(), "one cell is all that it may have");
        admission.admit("b", 1, Share::default(), Share::ALL).await.expect("there is room for others");
        drop(_first);
        second.await.expect("no panic").expect("its turn");
    }

    #[tokio::test]
    async fn memory_and_disk_are_waited_for_and_never_exceeded() {
        let admission = room(9, 8);
        let most = Share { memory: 10, disk: 10 };
        let admit = |memory, disk| {
            let admission = admission.clone();
            async move { admission.admit("a", 9, Share { memory, disk }, most).await }
        };
        assert_eq!(admit(11, 0).await.map(drop), Err(Full::Never));
        let first = admit(6, 1).await.expect("room");
        let second = tokio::spawn(admit(5, 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!second.is_finished(), "there is not enough memory for both");
        drop(first);
        let _second = second.await.expect("no panic").expect("its turn");
        assert!(tokio::time::timeout(Duration::from_millis(20), admit(1, 10)).await.is_err(), "nor disk");
        admit(5, 9).await.expect("this is what is left");
    }

    #[tokio::test]
    async fn a_full_queue_turns_away_its_own_tenant_only() {
        let admission = room(1, 2);
        let held = admission.admit("a", 9, Share::default(), Share::ALL).await.expect("room");
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(
                    async move { admission.admit("a", 9, Share::default(), Share::ALL).await.map(drop) },
                )
            })
            .collect();
        while admission.load().1 < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(admission.admit("a", 9, Share::default(), Share::ALL).await.map(drop), Err(Full::Queue));
        let other = tokio::spawn({
            let admission = admission.clone();
            async move { admission.admit("b", 9, Share::default(), Share::ALL).await.map(drop) }
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
        let held = admission.admit("a", 9, Share::default(), Share::ALL).await.expect("room");
        for _ in 0..10 {
            let gave_up = tokio::time::timeout(
                Duration::from_millis(1),
                admission.admit("a", 9, Share::default(), Share::ALL),
            )
            .await;
            assert!(gave_up.is_err(), "there is no room");
        }
        drop(held);
        admission
            .admit("a", 9, Share::default(), Share::ALL)
            .await
            .expect("those who gave up do not stand in the way");
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
                        let Ok(_permit) =
                            admission.admit(&format!("t{tenant}"), 100, Share::default(), Share::ALL).await
                        else {
                            continue;
                        };
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
