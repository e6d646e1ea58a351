//! SIGINT, SIGTERM and SIGHUP. None of them ends us at once: a cell is taken down and its record closed first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub(crate) struct Signals {
    signals: [Signal; 3],
}

impl Signals {
    /// From here on the signals are ours to handle.
    pub(crate) fn catch() -> io::Result<Signals> {
        let signals = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        Ok(Signals { signals })
    }

    /// The next one, whichever it is.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
