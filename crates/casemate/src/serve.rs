//! `casemate serve` and `casemate token`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use casemate_core::limits::parse_duration;
use casemate_core::request::{Request, RequestDraft, Workload};
use casemate_engine::{Config as EngineConfig, Engine, OpenError};
use casemate_service::{
    Address, Config, ConfigError, Scope, ServeError, Settings, State, StateError, TokenInfo, default_scopes,
};
use tokio::sync::watch;

use crate::args::{LogForm, ServeArgs, TokenCommand};
use crate::exit;
use crate::failure::Failure;
use crate::home::PolicyFile;
use crate::render::terminal::{self, columns, one_line};
use crate::signals::Signals;

/// Cells per processor that are kept busy at the same time: most of what runs waits for something.
const CELLS_PER_CPU: usize = 16;

pub(crate) async fn serve(args: &ServeArgs, policy: Option<&Path>) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let home = casemate_engine::default_home();
    let policy = PolicyFile::load(policy, &home)?.policy;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = args.cells.unwrap_or(cpus * CELLS_PER_CPU);
    let drain = Duration::from_millis(parse_duration(&args.drain)?);
    start_log(args.log);
    let settings = Settings::load(args.config.as_deref(), &home)?;
    let addresses = addresses(args, settings.tls.is_some());
    if let Some(open) = addresses.iter().find(|address| address.is_open() && settings.tls.is_none()) {
        terminal::remark([format!("{open} is reached without TLS: tokens and data travel in the clear")]);
    }
    let config = Config {
        home: home.clone(),
        addresses,
        settings,
        cells,
        cells_of_tenant: args.cells_per_tenant.unwrap_or(cells),
        queue: args.queue,
        drain,
    };
    let engine = Engine::open(EngineConfig::new(home, policy)).await?;
    let (stop, stopped) = watch::channel(false);
    let ready = |addresses: &[Address]| {
        let mut stderr = std::io::stderr();
        for address in addresses {
            let _ = writeln!(stderr, "listening on {address}");
        }
    };
    let serving = casemate_service::serve(engine, config, stopped, ready);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.map(|()| exit::DONE).map_err(Failure::from),
        () = signals.next() => {}
        () = stdin_closed(), if args.until_stdin_closes => {}
    }
    let _ = stop.send(true);
    // Once more, and it is not waited for any longer: what is left is closed by the next start.
    tokio::select! {
        served = &mut serving => served?,
        () = signals.next() => return Err(Failure::Interrupted),
    }
    Ok(exit::DONE)
}

/// What a server has to tell goes to standard error, where whoever runs it collects it.
fn start_log(form: LogForm) {
    let level = match form {
        LogForm::Off => tracing_subscriber::filter::LevelFilter::ERROR,
        LogForm::Text | LogForm::Json => tracing_subscriber::filter::LevelFilter::INFO,
    };
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // Set once, at the start of the only command that has one.
    let _ = match form {
        LogForm::Json => tracing::subscriber::set_global_default(log.json().flatten_event(true).finish()),
        LogForm::Off | LogForm::Text => {
            tracing::subscriber::set_global_default(log.with_ansi(false).finish())
        }
    };
}

/// Waits until nobody holds the other end of standard input: the kernel closes it even for a process that was killed. What comes in
/// means nothing.
async fn stdin_closed() {
    let drained =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
    // One that cannot be read has nobody at its other end, either.
    let _ = drained.await;
}

fn addresses(args: &ServeArgs, tls: bool) -> Vec<Address> {
    let tcp = if tls { Address::Tls } else { Address::Tcp };
    let socket = args.socket.clone().map(Address::Unix);
    let listen = args.listen.map(tcp);
    let usual = || tcp(([127, 0, 0, 1], 7070).into());
    match (listen, socket) {
        (None, None) => vec![usual()],
        (listen, socket) => listen.into_iter().chain(socket).collect(),
    }
}

pub(crate) fn token(command: &TokenCommand) -> Result<u8, Failure> {
    let home = casemate_engine::default_home();
    casemate_engine::make_home(&home).map_err(OpenError::from)?;
    let state = State::open(&home)?;
    let mut stdout = std::io::stdout().lock();
    match command {
        TokenCommand::Create { tenant, scope, expires } => {
            // The same rules as for every request that it will be used for.
            let workload = Workload::Command { argv: vec!["true".into()] };
            Request::new(RequestDraft { tenant: Some(tenant.clone()), ..RequestDraft::new(workload) })?;
            let scopes: BTreeSet<Scope> = match scope[..] {
                [] => default_scopes(),
                _ => scope.iter().map(|scope| scope.parse()).collect::<Result<_, _>>()?,
            };
            let token = state.create_token(tenant, &scopes, end_of(expires.as_deref())?)?;
            let words: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
            writeln!(std::io::stderr(), "for {tenant}, to {}; shown only now:", words.join(", "))?;
            writeln!(stdout, "{token}")?;
        }
        TokenCommand::Ls { json: true } => {
            let tokens: Vec<serde_json::Value> = state.tokens()?.iter().map(shown).collect();
            writeln!(stdout, "{}", serde_json::json!({"tokens": tokens}))?;
        }
        TokenCommand::Ls { json: false } => {
            let mut rows = vec![["ID", "TENANT", "SCOPES", "STATE"].map(str::to_owned).to_vec()];
            rows.extend(state.tokens()?.iter().map(row));
            for line in columns(&rows) {
                writeln!(stdout, "{line}")?;
            }
        }
        TokenCommand::Rotate { id, expires, grace } => {
            let grace = (parse_days(grace)? / 1000) as i64;
            let token = state.rotate_token(id, end_of(expires.as_deref())?, grace)?;
            let token = token.ok_or_else(|| no_good_token(id))?;
            writeln!(std::io::stderr(), "the old one is good for {grace} s more; shown only now:")?;
            writeln!(stdout, "{token}")?;
        }
        TokenCommand::Revoke { id } => {
            if !state.revoke_token(id)? {
                return Err(no_good_token(id));
            }
        }
    }
    Ok(exit::DONE)
}

fn no_good_token(id: &str) -> Failure {
    Failure::new(
        format!("there is no token {} that is good", one_line(id)),
        "`casemate token ls` lists them; name one by its id",
    )
}

/// When something that is good for this long from now on is good no more.
fn end_of(expires: Option<&str>) -> Result<Option<i64>, Failure> {
    expires.map(|text| Ok(now() + (parse_days(text)? / 1000) as i64)).transpose()
}

/// As other durations, and in days.
fn parse_days(text: &str) -> Result<u64, Failure> {
    const DAY: u64 = 24 * 3600 * 1000;
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) if (1..=36_500).contains(&days) => Ok(days * DAY),
        _ => Ok(parse_duration(text)?),
    }
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn state_of(token: &TokenInfo) -> String {
    match (token.revoked, token.expires) {
        (Some(_), _) => "revoked".into(),
        (None, Some(expires)) if expires <= now() => "expired".into(),
        (None, Some(expires)) => format!("good for {} h", (expires - now()) / 3600),
        (None, None) => "good".into(),
    }
}

fn row(token: &TokenInfo) -> Vec<String> {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    vec![token.id.clone(), token.tenant.clone(), scopes.join(","), state_of(token)]
}

fn shown(token: &TokenInfo) -> serde_json::Value {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    serde_json::json!({
        "id": token.id, "tenant": token.tenant, "scopes": scopes,
        "created": token.created, "expires": token.expires, "revoked": token.revoked,
    })
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Failure {
        Failure::new(&error, error.hint())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::new(&error, error.hint())
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        Failure::Told { message: error.to_string(), hint: error.hint() }
    }
}
