//! One client, at the other end of standard input and output.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use casemate_engine::Engine;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::sync::watch;

use super::{Handler, Setup};
use crate::app::MAX_BODY;
use crate::store::State;
use crate::{Config, ServeError, Settings, drain, leave, share};

/// A client has one cell. When it is replaced, the old one may still be on its way out.
const CELLS: usize = 4;

/// Serves until standard input ends or `stop` becomes true, and leaves nothing behind. Nothing but the protocol is written to standard
/// output.
pub async fn serve_stdio(
    engine: Engine,
    home: PathBuf,
    setup: Setup,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let config = Config {
        home,
        addresses: Vec::new(),
        settings: Settings::default(),
        cells: CELLS,
        cells_of_tenant: CELLS,
        queue: CELLS,
        drain: Duration::ZERO,
    };
    let state = match State::open(&config.home) {
        Ok(state) => state,
        Err(error) => {
            engine.shutdown().await?;
            return Err(error.into());
        }
    };
    let app = share(engine, state, &config, stop.clone());
    let (input, output) = rmcp::transport::stdio_pipes();
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_BODY);
    let handler = Handler::connected(&app, setup);
    let serving = async {
        match rmcp::serve_server(handler, transport).await {
            Ok(service) => service.waiting().await.map(drop).map_err(io::Error::other),
            // Somebody looked in and left.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    };
    let served = tokio::select! {
        served = serving => served,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    };
    drain(&app, config.drain).await;
    leave(app).await?;
    served.map_err(ServeError::Protocol)
}
