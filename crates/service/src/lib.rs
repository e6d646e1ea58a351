//! What agents and platforms talk to: one server in front of one engine, for many tenants.

mod admission;
mod api;
mod app;
mod archive;
mod config;
mod e2b;
mod executions;
mod interpreter;
mod listen;
mod mcp;
mod metrics;
mod problem;
mod quota;
mod sessions;
pub mod shape;
mod shares;
mod store;
mod time;
mod token;
mod volumes;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use casemate_core::outcome::Cause;
use casemate_engine::images::Images;
use casemate_engine::{Engine, OpenError};
use tokio::sync::{Semaphore, watch};

pub use config::{ConfigError, FILE as CONFIG_FILE, Settings, Tls};
pub use listen::Address;
pub use mcp::{Setup, serve_stdio};
pub use store::{State, StateError, TokenInfo};
pub use token::{Scope, Token, default_scopes};

use crate::admission::{Admission, Room};
use crate::app::{App, Shared};
use crate::listen::Listener;
use crate::shares::Shares;
use crate::volumes::Volumes;

/// Archives of one tenant that are taken apart at a time, each on a thread of its own, and terminals that it is attached to.
const ARCHIVES: usize = 8;
const SOCKETS: usize = 128;

/// How a server is run.
#[derive(Debug, Clone)]
pub struct Config {
    pub home: PathBuf,
    pub addresses: Vec<Address>,
    pub settings: Settings,
    /// Cells of all tenants, and of one unless its quota says otherwise.
    pub cells: usize,
    pub cells_of_tenant: usize,
    /// Requests of one tenant that may wait for a cell.
    pub queue: usize,
    /// How long what runs may go on when the server is told to stop.
    pub drain: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("{0} can be reached from other machines, and there is no token")]
    Open(Address),
    #[error("the client does not keep to the protocol: {0}")]
    Protocol(io::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Engine(#[from] OpenError),
}

impl ServeError {
    pub fn hint(&self) -> Option<String> {
        match self {
            ServeError::Listen { .. } => Some("use another address with --listen or --socket".into()),
            ServeError::Open(_) => Some(
                "make a token first, with `casemate token create --tenant NAME`, or listen on 127.0.0.1"
                    .into(),
            ),
            ServeError::Protocol(_) => {
                Some("it speaks MCP on standard input, one JSON-RPC message per line".into())
            }
            ServeError::State(error) => Some(error.hint().into()),
            ServeError::Engine(error) => error.hint(),
        }
    }
}

/// Serves until `stop` becomes true, and leaves nothing behind. `ready` hears where it listens.
pub async fn serve(
    engine: Engine,
    config: Config,
    stop: watch::Receiver<bool>,
    ready: impl FnOnce(&[Address]),
) -> Result<(), ServeError> {
    let state = match prepare(&engine, &config) {
        Ok(state) => state,
        Err(error) => {
            engine.shutdown().await?;
            return Err(error);
        }
    };
    let mut listeners = Vec::new();
    for address in &config.addresses {
        match Listener::bind(address, config.settings.tls.as_ref()).await {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                engine.shutdown().await?;
                return Err(error);
            }
        }
    }
    let addresses: Vec<Address> = listeners.iter().map(Listener::address).collect();
    let app = share(engine, state, &config, stop.clone());
    app.volumes.sweep();
    let router = api::router(app.clone());
    let serving: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            tokio::spawn(listen::serve(listener, router.clone(), app.clone(), stop.clone(), config.drain))
        })
        .collect();
    drop(router);
    ready(&addresses);
    let mut stopped = stop.clone();
    let _ = stopped.wait_for(|stop| *stop).await;
    drain(&app, config.drain).await;
    for serving in serving {
        let _ = serving.await;
    }
    leave(app).await
}

/// What every request shares.
fn share(engine: Engine, state: State, config: &Config, draining: watch::Receiver<bool>) -> App {
    Arc::new(Shared {
        images: Images::of(&config.home),
        volumes: Volumes::of(&config.home),
        bodies: Default::default(),
        archives: Shares::new(ARCHIVES),
        sockets: Shares::new(SOCKETS),
        home: config.home.clone(),
        engine,
        state: Arc::new(state),
        admission: Admission::new(Room { cells: config.cells, queue: config.queue }),
        executions: Default::default(),
        sessions: Default::default(),
        metrics: Default::default(),
        imports: Arc::new(Semaphore::new(1)),
        cells_of_tenant: config.cells_of_tenant,
        quotas: config.settings.quotas.clone(),
        ledger: Default::default(),
        rates: Default::default(),
        draining,
    })
}

fn prepare(engine: &Engine, config: &Config) -> Result<State, ServeError> {
    let state = State::open(&config.home)?;
    if let Some(open) = config.addresses.iter().find(|address| address.is_open())
        && !state.has_tokens()?
    {
        return Err(ServeError::Open(open.clone()));
    }
    for run in state.runs()? {
        if run != engine.run_id() && !engine.is_alive(&run)? {
            state.close_interrupted(&run)?;
        }
    }
    Ok(state)
}

/// Sessions end at once: nobody can use them any more. What was asked for and is waited for may go on for a while.
async fn drain(app: &App, patience: Duration) {
    let sessions = app.sessions.list(None);
    let ending = sessions.iter().map(|live| async {
        live.save_or_tell(app).await;
        live.session.end(Cause::Cancelled).await
    });
    futures_util::future::join_all(ending).await;
    if !executions::drained(app, patience).await {
        app.executions.cancel_all();
        executions::drained(app, Duration::from_secs(10)).await;
    }
}

/// Waits until nobody holds the engine any more, and shuts it down.
async fn leave(mut app: App) -> Result<(), ServeError> {
    for _ in 0..500 {
        app = match Arc::try_unwrap(app) {
            Ok(shared) => {
                shared.state.flush().await;
                let leaving = shared.engine.shutdown().await?;
                drop(leaving);
                return Ok(());
            }
            Err(app) => app,
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Somebody hangs on. What they hold is destroyed with this process; the next start closes what is open.
    app.state.flush().await;
    Ok(())
}
