//! What a tenant may use: of cells, memory and disk at a time, of processor time in a day, of requests in a second.
//!
//! Memory and disk count as what a cell may take, not what it takes: so the sum cannot be overrun. Processor time is set aside
//! before something begins, as much as its limit allows, and what was not used is given back: so neither can that.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::request::{Request, Workload};

use crate::admission::{Full, Permit, Share};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::store::{State, now};

/// What one tenant may have. Nothing: as much as there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    pub cells: Option<u64>,
    /// Bytes, of all its cells together.
    pub memory: Option<u64>,
    /// Bytes, of all its cells and volumes together.
    pub disk: Option<u64>,
    /// Milliseconds in a day, which begins at midnight UTC.
    pub cpu_millis: Option<u64>,
    /// In a second. Twice as many may come at once.
    pub requests: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub struct Quotas {
    /// Of tenants that are not named.
    pub everyone: Quota,
    pub tenants: BTreeMap<String, Quota>,
}

impl Quotas {
    pub fn of(&self, tenant: &str) -> &Quota {
        self.tenants.get(tenant).unwrap_or(&self.everyone)
    }
}

/// Leave for one cell, and what was set aside for it.
#[derive(Debug)]
pub(crate) struct Admitted {
    _permit: Permit,
    cpu: Option<Reservation>,
}

impl Admitted {
    /// It has used this much processor time. What else was set aside is free again.
    pub(crate) fn end(self, cpu: Option<Duration>) {
        if let (Some(reservation), Some(cpu)) = (&self.cpu, cpu) {
            reservation.spend(cpu.as_millis() as u64);
        }
    }
}

/// Of what is left of a day, this much is set aside for a session that does not say how much it needs.
const PART_FOR_A_SESSION: u64 = 4;

/// Waits until the tenant may have this cell. The request comes back with limits that keep it within what is left.
pub(crate) async fn admit(app: &App, request: Request) -> Result<(Request, Admitted), Problem> {
    app.check_open()?;
    let quota = app.quotas.of(request.tenant());
    let (request, share, cpu) = match quota {
        // Most servers: what a request comes to need not be known beforehand.
        Quota { memory: None, disk: None, cpu_millis: None, .. } => (request, Share::default(), None),
        quota => weigh(app, quota, request)?,
    };
    let kept = |disk: u64| disk.saturating_sub(app.volumes.bytes(request.tenant()));
    let most = Share { memory: quota.memory.unwrap_or(u64::MAX), disk: quota.disk.map_or(u64::MAX, kept) };
    let cells = quota.cells.map_or(app.cells_of_tenant, |cells| cells as usize);
    let admitted = app.admission.admit(request.tenant(), cells, share, most).await;
    let permit = admitted.map_err(|full| match full {
        Full::Queue => {
            let hint = "wait until some of what you asked for has ended";
            Problem::new(Code::Quota, "too many requests of this tenant wait for a cell", hint).later(1)
        }
        Full::Never => Problem::new(
            Code::Quota,
            "this is more memory or disk than the tenant may have at all",
            "ask for less with `limits`; `GET /v1/usage` says what there is",
        ),
    })?;
    app.check_open()?;
    Ok((request, Admitted { _permit: permit, cpu }))
}

/// What the request may use at most, with processor time set aside for it.
fn weigh(
    app: &App,
    quota: &Quota,
    mut request: Request,
) -> Result<(Request, Share, Option<Reservation>), Problem> {
    // A refusal is for the engine to make, which records it.
    let Ok((limits, unbounded)) = app.engine.bounds(&request) else {
        return Ok((request, Share::default(), None));
    };
    let of = |kind| limits.get(kind).map_or(0, |bound| bound.value);
    let (mut share, mut counted, mut cpu) = (Share::default(), Vec::new(), None);
    if quota.memory.is_some() {
        share.memory = of(LimitKind::Memory);
        counted.push((LimitKind::Memory, share.memory));
    }
    if quota.disk.is_some() {
        share.disk = of(LimitKind::Disk);
        counted.push((LimitKind::Disk, share.disk));
    }
    if let Some(most) = quota.cpu_millis {
        let mut wish = of(LimitKind::CpuTime);
        let asked = limits.get(LimitKind::CpuTime).is_some_and(|bound| bound.asked());
        if !asked && *request.workload() == Workload::Session {
            wish = wish.min(app.ledger.left(&app.state, request.tenant(), most) / PART_FOR_A_SESSION);
        }
        let reservation = app.ledger.reserve(&app.state, request.tenant(), most, wish)?;
        counted.push((LimitKind::CpuTime, reservation.millis));
        cpu = Some(reservation);
    }
    for (kind, value) in counted {
        // What nobody enforces cannot be counted on: asked for by name, it is enforced or refused.
        if unbounded.contains(&kind) || value < of(kind) {
            request = request.with_limit(kind, value)?;
        }
    }
    Ok((request, share, cpu))
}

/// What tenants with a quota of processor time have used today.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<HashMap<String, Account>>>);

#[derive(Debug, Default)]
struct Account {
    day: i64,
    used: u64,
    reserved: u64,
}

/// Processor time that nobody else of the tenant can have. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    ledger: Ledger,
    state: Arc<State>,
    tenant: String,
    millis: u64,
}

const DAY: i64 = 24 * 3600;

impl Ledger {
    /// Sets aside what is wished for, or what is left if that is less.
    fn reserve(
        &self,
        state: &Arc<State>,
        tenant: &str,
        most: u64,
        wish: u64,
    ) -> Result<Reservation, Problem> {
        let left = self.left(state, tenant, most);
        let least = LimitKind::CpuTime.range().min;
        if left < least {
            let spent = "the tenant's processor time of today is used up, or set aside for what it runs";
            let midnight = DAY - now().rem_euclid(DAY);
            let hint = "wait until something has ended, or until midnight UTC; `cpu-time` in service.toml is the quota";
            return Err(Problem::new(Code::Quota, spent, hint).later(midnight.min(60) as u64));
        }
        let millis = wish.min(left).max(least);
        if let Some(account) = self.lock().get_mut(tenant) {
            account.reserved += millis;
        }
        Ok(Reservation { ledger: self.clone(), state: state.clone(), tenant: tenant.to_owned(), millis })
    }

    fn left(&self, state: &State, tenant: &str, most: u64) -> u64 {
        let today = now().div_euclid(DAY);
        let mut accounts = self.lock();
        let known = accounts.contains_key(tenant);
        let account = accounts.entry(tenant.to_owned()).or_default();
        if !known || account.day != today {
            // What a server before this one has counted holds, too. If that cannot be read, nothing is left.
            account.used = state.used(tenant, today).unwrap_or(u64::MAX / 2);
            account.day = today;
        }
        most.saturating_sub(account.used).saturating_sub(account.reserved)
    }

    /// Of today, in milliseconds.
    pub(crate) fn used(&self, state: &State, tenant: &str) -> u64 {
        let most = u64::MAX / 4;
        let left = self.left(state, tenant, most);
        let reserved = self.lock().get(tenant).map_or(0, |account| account.reserved);
        most.saturating_sub(left).saturating_sub(reserved)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    fn spend(&self, millis: u64) {
        let today = now().div_euclid(DAY);
        if let Some(account) = self.ledger.lock().get_mut(&self.tenant)
            && account.day == today
        {
            account.used += millis;
        }
        self.state.spent(&self.tenant, today, millis);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(account) = self.ledger.lock().get_mut(&self.tenant) {
            account.reserved = account.reserved.saturating_sub(self.millis);
        }
    }
}

/// How many requests of each tenant have come lately.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<HashMap<String, Bucket>>);

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

/// Tenants whose last request is remembered.
const MAX_BUCKETS: usize = 4096;

impl Rates {
    /// One more request of this tenant.
    pub(crate) fn count(&self, tenant: &str, quota: &Quota) -> Result<(), Problem> {
        let Some(rate) = quota.requests.map(|rate| rate as f64) else { return Ok(()) };
        let now = Instant::now();
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(tenant) {
            // Whoever has not asked for two seconds has a full one again.
            buckets.retain(|_, bucket| now.duration_since(bucket.filled) < Duration::from_secs(2));
        }
        let bucket = buckets.entry(tenant.to_owned()).or_insert(Bucket { tokens: 2.0 * rate, filled: now });
        let since = now.duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = (bucket.tokens + since * rate).min(2.0 * rate);
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            let hint = "send them more slowly; `requests` in service.toml is the quota";
            return Err(
                Problem::new(Code::Quota, "too many requests of this tenant in a second", hint).later(1)
            );
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, Arc<State>) {
        let home = tempfile::tempdir().expect("a temporary directory");
        let state = Arc::new(State::open(home.path()).expect("a state"));
        (home, state)
    }

    #[test]
    fn what_is_set_aside_is_nobody_elses_until_it_is_given_back() {
        let (_home, state) = state();
        let ledger = Ledger::default();
        let first = ledger.reserve(&state, "a", 1000, 700).expect("there is enough");
        let second = ledger.reserve(&state, "a", 1000, 700).expect("there is some");
        assert_eq!((first.millis, second.millis), (700, 300));
        assert!(ledger.reserve(&state, "a", 1000, 1).is_err(), "all of it is set aside");
        assert!(ledger.reserve(&state, "b", 1000, 1000).is_ok(), "others have their own");
        first.spend(100);
        drop(first);
        assert_eq!(ledger.reserve(&state, "a", 1000, 1000).expect("it was given back").millis, 600);
        assert_eq!(ledger.used(&state, "a"), 100);
    }

    #[tokio::test]
    async fn the_next_server_counts_on() {
        let (_home, state) = state();
        Ledger::default().reserve(&state, "a", 1000, 1000).expect("all of it").spend(900);
        state.flush().await;
        assert_eq!(Ledger::default().reserve(&state, "a", 1000, 1000).expect("what is left").millis, 100);
    }

    #[test]
    fn a_burst_is_twice_a_second() {
        let rates = Rates::default();
        let quota = Quota { requests: Some(5), ..Quota::default() };
        let passed = (0..20).filter(|_| rates.count("a", &quota).is_ok()).count();
        assert!((10..=11).contains(&passed), "{passed}");
        assert!(rates.count("b", &quota).is_ok());
        assert!((0..1000).all(|_| rates.count("c", &Quota::default()).is_ok()));
    }
}
