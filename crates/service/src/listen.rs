//! Connections: where they come from, how many there may be, how long they may dawdle, and how they end.

mod patience;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::ServeError;
use crate::app::App;
use crate::config::Tls;
use patience::{Received, Taken};

/// Connections at a time. One more waits in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// How long the head of a request may take.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take nothing while there is something for it.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
const MAX_HEAD: usize = 64 << 10;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// With the certificate of the settings.
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Whether other machines can reach it.
    pub fn is_open(&self) -> bool {
        match self {
            Address::Tcp(address) | Address::Tls(address) => !address.ip().is_loopback(),
            Address::Unix(_) => false,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Tls(address) => write!(f, "https://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One of the connections that there may be. Whoever takes a connection over, as WebSockets do, takes this along.
#[derive(Debug, Clone)]
pub(crate) struct Place(
    #[allow(dead_code, reason = "given back when the last is dropped")] Arc<OwnedSemaphorePermit>,
);

pub(crate) enum Listener {
    Tcp(TcpListener, Option<TlsAcceptor>),
    Unix(UnixListener, Removed),
}

/// A socket's place in the file system, gone when dropped.
pub(crate) struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Somebody who has called, and has yet to say who they want to be to us.
enum Caller {
    Plain(Pin<Box<dyn Connection>>),
    Secret(TlsAcceptor, TcpStream),
}

trait Connection: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Connection for T {}

impl Caller {
    /// Agrees on keys, where that is wanted. `None`: they have gone, or take too long.
    async fn greet(self) -> Option<Pin<Box<dyn Connection>>> {
        match self {
            Caller::Plain(stream) => Some(stream),
            Caller::Secret(acceptor, stream) => {
                let greeted = tokio::time::timeout(HEAD_PATIENCE, acceptor.accept(stream)).await;
                Some(Box::pin(greeted.ok()?.ok()?))
            }
        }
    }
}

impl Listener {
    pub(crate) async fn bind(address: &Address, tls: Option<&Tls>) -> Result<Listener, ServeError> {
        let failed = |source| ServeError::Listen { address: address.to_string(), source };
        Ok(match address {
            Address::Tcp(address) => Listener::Tcp(TcpListener::bind(address).await.map_err(failed)?, None),
            Address::Tls(address) => {
                let no_certificate = || failed(std::io::Error::other("there is no certificate"));
                let Tls(config) = tls.ok_or_else(no_certificate)?;
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                Listener::Tcp(listener, Some(TlsAcceptor::from(config.clone())))
            }
            Address::Unix(path) => {
                clear_the_way(path).await.map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                // Whoever may open it is whoever started this.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                Listener::Unix(listener, Removed(path.clone()))
            }
        })
    }

    /// Where it really is: a port that was left open has been chosen.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listener::Tcp(listener, tls) => {
                let address = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
                if tls.is_some() { Address::Tls(address) } else { Address::Tcp(address) }
            }
            Listener::Unix(_, Removed(path)) => Address::Unix(path.clone()),
        }
    }

    async fn accept(&self) -> std::io::Result<Caller> {
        Ok(match self {
            Listener::Tcp(listener, tls) => {
                let (stream, _) = listener.accept().await?;
                // Small answers go out at once.
                let _ = stream.set_nodelay(true);
                match tls {
                    Some(acceptor) => Caller::Secret(acceptor.clone(), stream),
                    None => Caller::Plain(Box::pin(stream)),
                }
            }
            Listener::Unix(listener, _) => Caller::Plain(Box::pin(listener.accept().await?.0)),
        })
    }
}

/// A socket that nobody listens on is left over from a server that was killed.
async fn clear_the_way(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(found) if !found.file_type().is_socket() => Err(std::io::ErrorKind::AlreadyExists.into()),
        Ok(_) => match tokio::net::UnixStream::connect(path).await {
            Ok(_) => Err(std::io::ErrorKind::AddrInUse.into()),
            Err(_) => std::fs::remove_file(path),
        },
    }
}

/// Serves until `stop`, then lets those who are being served have their answer, for a while.
pub(crate) async fn serve(
    listener: Listener,
    router: Router,
    app: App,
    mut stop: watch::Receiver<bool>,
    patience: Duration,
) {
    let most = most_connections();
    let room = Arc::new(Semaphore::new(most));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { break };
        let place = Place(Arc::new(place));
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let caller = match accepted {
            Ok(caller) => caller,
            Err(_) => {
                // Out of descriptors, most likely: some will be closed.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (router, own, kept) = (router.clone(), app.clone(), place.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (mut router, app, place) = (router.clone(), own.clone(), kept.clone());
            async move {
                app.metrics.requests.fetch_add(1, Ordering::Relaxed);
                let waits = request.headers().contains_key(header::EXPECT);
                let mut request = request.map(|body| Body::new(Received::new(body, waits)));
                request.extensions_mut().insert(place);
                let response = router.call(request).await;
                if let Ok(response) = &response
                    && (response.status().is_client_error() || response.status().is_server_error())
                {
                    app.metrics.problems.fetch_add(1, Ordering::Relaxed);
                }
                response
            }
        });
        let (app, mut stop) = (app.clone(), stop.clone());
        tokio::spawn(async move {
            let Some(stream) = caller.greet().await else { return };
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(Taken::new(stream, WRITE_PATIENCE)), service)
                .with_upgrades();
            app.metrics.connections.fetch_add(1, Ordering::Relaxed);
            let mut connection = std::pin::pin!(connection);
            // Whatever a client does to its connection is the client's business.
            let over = tokio::select! {
                _ = connection.as_mut() => true,
                _ = stop.wait_for(|stop| *stop) => false,
            };
            if !over {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            app.metrics.connections.fetch_sub(1, Ordering::Relaxed);
            // Unless somebody has taken the connection over.
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(patience, room.acquire_many(most as u32)).await;
}

/// Cells need descriptors, too: connections get half of those that there may be. The soft limit of most systems is from another time.
fn most_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    MAX_CONNECTIONS.min(descriptors / 2)
}
