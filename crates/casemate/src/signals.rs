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
        let catch = |kind| signal(kind);
        Ok(Signals {
            signals: [
                catch(SignalKind::interrupt())?,
                catch(SignalKind::terminate())?,
                catch(SignalKind::hangup())?,
            ],
        })
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
