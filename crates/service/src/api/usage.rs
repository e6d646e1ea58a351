//! `/v1/usage`: what a tenant has now and has used today, beside what it may.

use axum::Json;
use axum::extract::State;

use super::document::Asked;
use crate::app::App;
use crate::problem::Problem;
use crate::shape::kept::{AmountJson, UsageJson};
use crate::store::Caller;
use crate::token::Scope;

/// What the tenant has now and has used today, beside its quotas.
#[utoipa::path(
    get, path = "/v1/usage", operation_id = "getUsage", tag = "server",
    responses((status = 200, description = "What it has and has used", body = UsageJson), Asked)
)]
pub(crate) async fn show(State(app): State<App>, caller: Caller) -> Result<Json<UsageJson>, Problem> {
    caller.check(Scope::Run)?;
    let quota = app.quotas.of(&caller.tenant);
    let (cells, share) = app.admission.of(&caller.tenant);
    let disk = share.disk.saturating_add(app.volumes.bytes(&caller.tenant));
    let cpu = app.ledger.used(&app.state, &caller.tenant);
    Ok(Json(UsageJson {
        cells: AmountJson::new(cells as u64, quota.cells.or(Some(app.cells_of_tenant as u64))),
        memory_bytes: AmountJson::new(share.memory, quota.memory),
        disk_bytes: AmountJson::new(disk, quota.disk),
        cpu_ms_today: AmountJson::new(cpu, quota.cpu_millis),
        requests_per_second: quota.requests,
        tenant: caller.tenant,
    }))
}
