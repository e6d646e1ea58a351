//! What every trial that is judged from outside has in common: a bystander that must not notice, and a clean house
//! afterwards.

use std::time::Duration;

use casemate_testkit::{CellBuilder, LimitKind, Ran, Status, Traces, Wall, cell};

use crate::row::{Finding, Scene};

/// How late a limit may strike, and how long a cell may take to vanish.
const ONE_SECOND: Duration = Duration::from_secs(1);
/// The Docker Engine takes its time to remove a container, and more while others are made.
const AN_ENGINE: Duration = Duration::from_secs(10);
/// A trivial execution beside a hostile one, on a machine with few cores.
const BYSTANDER: Duration = Duration::from_secs(3);

/// Runs a hostile cell next to a harmless one and looks at the house before and after.
pub(crate) async fn watched<'s>(
    scene: &'s Scene,
    hostile: impl FnOnce(CellBuilder<'s>) -> CellBuilder<'s>,
) -> Result<Ran, String> {
    let harmless = || cell(&scene.rig, &scene.stack).run();
    let before = quiet(scene, harmless().await).await?;
    let bystander = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        harmless().await
    };
    let hostile = hostile(cell(&scene.rig, &scene.stack)).run();
    let (ran, bystander) = tokio::join!(hostile, bystander);
    if bystander.code() != Some(0) || bystander.took > BYSTANDER {
        return Err(format!("the bystander suffered: {}", bystander.story()));
    }
    before.returns_to(scene.rig.run_id(), patience(scene)).await.map_err(|now| {
        format!("left behind after {}:\n      before {before:?}\n      now    {now:?}", ran.story())
    })?;
    Ok(ran)
}

fn patience(scene: &Scene) -> Duration {
    if scene.stack.outermost() == Wall::Docker { AN_ENGINE } else { ONE_SECOND }
}

/// The house once the first, harmless execution is gone from it.
async fn quiet(scene: &Scene, first: Ran) -> Result<Traces, String> {
    if first.code() != Some(0) {
        return Err(format!("not even `true` runs: {}", first.story()));
    }
    let rest = match scene.stack.contains(Wall::Wasm) {
        // The worker stays.
        true => Traces::settled(scene.rig.run_id(), ONE_SECOND).await,
        false => Traces::at_rest(scene.rig.run_id(), patience(scene)).await,
    };
    rest.map_err(|now| format!("`true` is still there: {now:?}"))
}

/// A refusal to enforce `kind` is right where this wall or this user cannot, and must say what to do.
pub(crate) fn refused(scene: &Scene, ran: &Ran, kinds: &[LimitKind]) -> Option<Result<Finding, String>> {
    let refusal = ran.refusal()?;
    let beyond_reach = kinds.iter().any(|kind| !scene.rig.can_enforce(&scene.stack, *kind));
    Some(match beyond_reach && !refusal.hint.is_empty() {
        true => Ok(Finding::Refused(refusal.hint.clone())),
        false => Err(format!("refused for no reason: {}", ran.story())),
    })
}

/// The limit made calls fail: it must be listed with its value and a peak that reached it.
pub(crate) fn hit(ran: &Ran, kind: LimitKind, limit: u64, slack: u64) -> Result<(), String> {
    match ran.hit(kind) {
        Some(hit) if hit.limit == limit && hit.peak.is_some_and(|peak| peak + slack >= limit) => Ok(()),
        Some(hit) => Err(format!("{hit:?} does not say {kind} {limit}")),
        None => Err(format!("{kind} is missing from limits_hit: {}", ran.story())),
    }
}

/// Killed for this reason, with limit and peak, and in time.
pub(crate) fn killed(ran: &Ran, kind: LimitKind, limit: u64) -> Result<Finding, String> {
    match ran.outcome.status {
        Status::Killed { cause, limit: Some(said), peak: Some(peak) }
            if cause.limit_kind() == Some(kind) && said == limit && peak + peak / 16 >= limit =>
        {
            Ok(Finding::Held)
        }
        _ => Err(format!("not killed at the {kind} limit: {}", ran.story())),
    }
}

/// A processor budget is overdrawn by less than a second, however slowly it was spent on a busy machine.
pub(crate) fn barely_overdrawn(ran: &Ran, limit: Duration) -> Result<(), String> {
    match ran.outcome.status {
        Status::Killed { peak: Some(peak), .. } if Duration::from_millis(peak) < limit + ONE_SECOND => Ok(()),
        _ => Err(format!("more than a second above {limit:?}: {}", ran.story())),
    }
}

/// A time limit strikes within a second. It counts from the moment that there is something to limit: how long somebody else's engine
/// takes to make a container is not the payload's doing.
pub(crate) fn in_time(ran: &Ran, limit: Duration) -> Result<(), String> {
    match ran.took.saturating_sub(ran.before_the_payload()) < limit + ONE_SECOND {
        true => Ok(()),
        false => Err(format!("late: {:?} for a limit of {limit:?}: {:?}", ran.took, ran.outcome.timings)),
    }
}
