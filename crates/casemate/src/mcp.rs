//! `casemate mcp`: the tools of a model's client, on standard input and output.

use std::path::Path;

use casemate_core::request::{RequestDraft, Workload, parse_env};
use casemate_engine::images::Images;
use casemate_engine::{Config, Engine};
use casemate_service::Setup;
use tokio::sync::watch;

use crate::args::McpArgs;
use crate::failure::Failure;
use crate::home::PolicyFile;
use crate::signals::Signals;
use crate::{exit, request};

pub(crate) async fn mcp(args: &McpArgs, policy: Option<&Path>) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let home = casemate_engine::default_home();
    let policy = PolicyFile::load(policy, &home)?.policy;
    let setup = setup(args, &home)?;
    let engine = Engine::open(Config::new(home.clone(), policy)).await?;
    let (stop, stopped) = watch::channel(false);
    let serving = casemate_service::serve_stdio(engine, home, setup, stopped);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.map(|()| exit::DONE).map_err(Failure::from),
        () = signals.next() => {}
    }
    let _ = stop.send(true);
    // Once more, and it is not waited for any longer: what is left is closed by the next start.
    tokio::select! {
        served = &mut serving => served?,
        () = signals.next() => return Err(Failure::Interrupted),
    }
    Ok(exit::DONE)
}

fn setup(args: &McpArgs, home: &Path) -> Result<Setup, Failure> {
    let McpArgs { walls, limits, image, cwd, env } = args;
    let mut draft = RequestDraft::new(Workload::Session);
    request::walls(walls, &mut draft)?;
    draft.limits = request::limits(limits)?;
    if image != "host" {
        draft.image = Images::of(home).find(image)?;
    }
    draft.cwd = cwd.clone();
    draft.env = env.iter().map(|variable| parse_env(variable)).collect::<Result<_, _>>()?;
    Ok(Setup::new(draft, None)?)
}
