//! Runs the rows, a few at a time, and keeps what came of them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use casemate_testkit::{
    Bait, CellBuilder, DockerRuntime, HOSTILE_WORKER, Layer, PROBE, Ran, Rig, Stack, Status, Venue, Wall,
    cell, is_root, venues, wasm,
};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::row::{Control, Finding, On, Row, Scene, Trial, layers};
use crate::{docker, network};

/// Cells at a time: the machine has few cores, and a judged trial measures time.
const AT_ONCE: usize = 4;

/// One row on one wall.
pub(crate) struct Line {
    pub(crate) row: &'static Row,
    pub(crate) wall: String,
    trial: Outcome,
    control: Option<(String, Outcome)>,
}

/// The words of a control that ran and showed what it should.
const ESCAPES: &str = "escapes";
const DIFFERS: &str = "answers differ";

/// A word for the table, or why it failed.
type Outcome = Result<String, String>;

impl Line {
    pub(crate) fn verdict(&self) -> String {
        let trial = self.trial.as_deref().unwrap_or("FAILED");
        match &self.control {
            None => trial.to_owned(),
            Some((what, Ok(word))) => format!("{trial} ({word} {what})"),
            Some((what, Err(_))) => format!("{trial} (CONTROL FAILED {what})"),
        }
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let place = format!("{} on {}", self.row.name, self.wall);
        let trial = self.trial.as_ref().err().map(|why| format!("{place}: {why}"));
        let control = self.control.as_ref().and_then(|(what, outcome)| {
            outcome.as_ref().err().map(|why| format!("{place}, control {what}: {why}"))
        });
        trial.into_iter().chain(control).collect()
    }

    pub(crate) fn passed(&self) -> usize {
        let runs = !matches!(self.row.trial, Trial::Later(_) | Trial::Settled(_));
        let ran = |word: &String| word == ESCAPES || word == DIFFERS;
        let control = self.control.as_ref().is_some_and(|(_, outcome)| outcome.as_ref().is_ok_and(ran));
        usize::from(runs && self.trial.is_ok()) + usize::from(control)
    }
}

pub(crate) struct Suite {
    rows: Vec<&'static Row>,
    bait: Arc<Bait>,
    permits: Arc<Semaphore>,
}

/// Row and wall.
type Place = (usize, usize);

/// What one attempt left: the outcome, and the notes of the probe for a later comparison.
struct Attempt {
    outcome: Outcome,
    notes: Vec<String>,
}

impl Suite {
    pub(crate) fn new(rows: Vec<&'static Row>) -> Suite {
        Suite { rows, bait: Arc::new(Bait::lay()), permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    pub(crate) async fn run(self) -> Vec<Line> {
        let walls = venues();
        let places: Vec<(Place, On)> = (0..self.rows.len())
            .flat_map(|row| (0..walls.len()).map(move |wall| (row, wall)))
            .filter_map(|place| Some((place, self.on(place, &walls)?)))
            .collect();
        let trials = self.trials(&places, &walls).await;
        let controls = self.controls(&places, &walls, &trials).await;
        assert!(self.bait.is_untouched(), "a probe has changed the bait");
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            if let Trial::Later(why) | Trial::Settled(why) = row.trial {
                let word = if matches!(row.trial, Trial::Later(_)) { "later" } else { "settled" };
                let trial = Ok(format!("{word} ({why})"));
                lines.push(Line { row, wall: "-".into(), trial, control: None });
            }
            for (&place, on) in
                places.iter().map(|(place, on)| (place, on)).filter(|(place, _)| place.0 == index)
            {
                let (trial, control) = match on {
                    On::NotApplicable(why) => (Ok(format!("n/a ({why})")), None),
                    On::Held(control) => {
                        let outcome = trials[&place].outcome.clone();
                        (outcome, Some((describe(*control), controls[&place].clone())))
                    }
                };
                lines.push(Line { row, wall: walls[place.1].to_string(), trial, control });
            }
        }
        lines
    }

    fn on(&self, (row, wall): Place, walls: &[Venue]) -> Option<On> {
        let venue = &walls[wall];
        let wasm = venue.stack.contains(Wall::Wasm);
        let (container, process) = match self.rows[row].trial {
            Trial::Probe { container, process, .. } => (container, process),
            Trial::Judged { container, process, .. } if !wasm => (container, process),
            Trial::Wasm { on, .. } if wasm => (on, on),
            _ => return None,
        };
        let on = match venue.stack.outermost() {
            Wall::Container => container,
            Wall::Process => process,
            Wall::Gvisor => in_gvisor(self.rows[row], container),
            Wall::Docker => match venue.docker {
                DockerRuntime::Runc => docker::on(self.rows[row], container),
                DockerRuntime::Runsc => {
                    docker::in_gvisor(self.rows[row], in_gvisor(self.rows[row], container))
                }
            },
            Wall::Microvm => in_machine(self.rows[row], container),
            other => panic!("the table has no column for {other}"),
        };
        Some(match (&self.rows[row].trial, on) {
            (Trial::Probe { .. }, On::Held(_)) if wasm => On::Held(Control::OfTheOuterWall),
            _ => on,
        })
    }

    /// Probes share one engine, as tenants would; what is judged from outside has one of its own.
    async fn trials(&self, places: &[(Place, On)], walls: &[Venue]) -> BTreeMap<Place, Attempt> {
        let shared = Arc::new(Rig::open().await);
        let in_gvisor = Arc::new(Rig::with_docker(DockerRuntime::Runsc).await);
        let taken_over = Arc::new(Rig::with_worker(HOSTILE_WORKER).await);
        let mut tasks = JoinSet::new();
        for &(place, on) in places {
            let On::Held(_) = on else { continue };
            let Venue { stack, docker } = walls[place.1].clone();
            let (row, bait) = (self.rows[place.0], self.bait.clone());
            let engine = match docker {
                _ if stack.contains(Wall::Wasm) => &taken_over,
                DockerRuntime::Runc => &shared,
                DockerRuntime::Runsc => &in_gvisor,
            };
            let (permits, shared) = (self.permits.clone(), engine.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let attempt = match row.trial {
                    Trial::Probe { .. } => {
                        let ran = probe(&shared, &stack, row, &bait).run().await;
                        let outcome = expect(judge(&ran), &Finding::Held);
                        let outcome = outcome.map_err(|why| format!("{why}: {}", ran.story()));
                        Attempt { outcome, notes: notes(&ran.out()) }
                    }
                    Trial::Judged { judge, .. } | Trial::Wasm { judge, .. } => {
                        let rig = Arc::new(Rig::with_docker(docker).await);
                        let scene = Scene { rig: rig.clone(), stack, bait, time_to_spare: false };
                        let found = judge(scene).await;
                        close(rig).await;
                        Attempt { outcome: expect(found, &Finding::Held), notes: Vec::new() }
                    }
                    Trial::Later(_) | Trial::Settled(_) => unreachable!("never placed"),
                };
                (place, attempt)
            });
        }
        let attempts = collect(tasks).await;
        for rig in [shared, in_gvisor, taken_over] {
            close(rig).await;
        }
        attempts
    }

    /// Probes that lack the same layers share a weakened engine; what is judged from outside has one of its own.
    async fn controls(
        &self,
        places: &[(Place, On)],
        walls: &[Venue],
        trials: &BTreeMap<Place, Attempt>,
    ) -> BTreeMap<Place, Outcome> {
        let mut outcomes = BTreeMap::new();
        let mut weakened: BTreeMap<Vec<Layer>, Arc<Rig>> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        for &(place, on) in places {
            let On::Held(control) = on else { continue };
            let set = match needed(control) {
                Ok(set) => set,
                Err(word) => {
                    outcomes.insert(place, Ok(word));
                    continue;
                }
            };
            let row = self.rows[place.0];
            let judged = matches!(row.trial, Trial::Judged { .. } | Trial::Wasm { .. });
            if !judged && !weakened.contains_key(set) {
                weakened.insert(set.to_vec(), Arc::new(rig_without(set, DockerRuntime::default()).await));
            }
            let shared = weakened.get(set).filter(|_| !judged).cloned();
            let (Venue { stack, docker }, bait) = (walls[place.1].clone(), self.bait.clone());
            let (permits, strong) = (self.permits.clone(), trials[&place].notes.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let own = match &shared {
                    Some(shared) => shared.clone(),
                    None => Arc::new(rig_without(set, docker).await),
                };
                let time_to_spare = matches!(control, Control::TimeToSpare);
                let scene = Scene { rig: own.clone(), stack, bait, time_to_spare };
                let outcome = control_one(row, control, scene, strong).await;
                if shared.is_none() {
                    close(own).await;
                }
                (place, outcome)
            });
        }
        outcomes.extend(collect(tasks).await);
        for (_, rig) in weakened {
            close(rig).await;
        }
        outcomes
    }
}

/// The same probe, in the same container, with another kernel: what it notices, its control in the container has shown. Limits are
/// taken away here, too.
fn in_gvisor(row: &Row, container: On) -> On {
    const NO_PRIORITIES: &str = "its scheduler knows no priorities, and whatever it is told stays inside";
    match (&row.trial, container) {
        (Trial::Probe { .. }, _) if row.name == "nice" => On::NotApplicable(NO_PRIORITIES),
        (Trial::Probe { .. }, On::Held(_)) => On::Held(Control::OfTheContainer),
        (Trial::Judged { .. }, On::Held(Control::Without(_))) => On::Held(Control::OfTheContainer),
        (_, on) => on,
    }
}

/// In a machine the same launcher builds the same cell: what its layers stop is shown on `container`, by the same probe.
fn in_machine(row: &Row, container: On) -> On {
    const NO_DIRECTORIES: &str = "a machine takes no directory of the host as an image: it is refused";
    match (&row.trial, container) {
        (_, On::Held(Control::OpenImage(_))) => On::NotApplicable(NO_DIRECTORIES),
        (Trial::Probe { .. }, On::Held(_)) => On::Held(Control::OfTheContainer),
        (Trial::Judged { .. }, On::Held(Control::Without(_) | Control::HostRoot(_))) => {
            On::Held(Control::OfTheContainer)
        }
        (_, on) => on,
    }
}

async fn rig_without(layers: &[Layer], docker: DockerRuntime) -> Rig {
    match layers {
        [] => Rig::with_docker(docker).await,
        _ => Rig::without(layers).await,
    }
}

/// The layers to take away, or why this control cannot run here.
fn needed(control: Control) -> Result<&'static [Layer], String> {
    let layers = match control {
        Control::Without(set)
        | Control::HostRoot(set)
        | Control::OpenImage(set)
        | Control::AnswersDiffer(set) => set,
        Control::Bare
        | Control::BareAsRoot
        | Control::BareWithNetwork
        | Control::BareEngine(_)
        | Control::TimeToSpare => &[],
        Control::Nothing(_) => return Err("no control:".into()),
        Control::OfTheOuterWall => return Err("as a worker that was taken over:".into()),
        Control::OfTheContainer => return Err("as on container:".into()),
        Control::PlainDocker(_) => &[],
    };
    let needs_root = matches!(control, Control::BareAsRoot)
        || layers.iter().any(|layer| layers::NEED_ROOT.contains(layer));
    if needs_root && !is_root() {
        return Err("control needs root:".into());
    }
    Ok(layers)
}

fn describe(control: Control) -> String {
    let list = |set: &[Layer]| set.join(", ");
    match control {
        Control::Without(set) | Control::AnswersDiffer(set) => format!("without {}", list(set)),
        Control::HostRoot(&[]) => "with the host's root as image".into(),
        Control::HostRoot(set) => format!("with the host's root as image, without {}", list(set)),
        Control::OpenImage(set) => format!("in a writable image without {}", list(set)),
        Control::Bare => "bare".into(),
        Control::BareAsRoot => "bare, as root".into(),
        Control::BareWithNetwork => "bare, with a network".into(),
        Control::TimeToSpare => "with time to spare".into(),
        Control::BareEngine(_) => "in a bare Wasmtime".into(),
        Control::OfTheOuterWall => "its control is that of the outer wall".into(),
        Control::PlainDocker(set) => format!("in a plain `docker run` without {}", list(set)),
        Control::OfTheContainer => "its control is that of the container".into(),
        Control::Nothing(why) => why.into(),
    }
}

async fn control_one(row: &'static Row, control: Control, scene: Scene, strong: Vec<String>) -> Outcome {
    if let Control::BareEngine(bare) = control {
        return expect(bare().await, &Finding::Escaped);
    }
    if let Trial::Judged { judge, .. } | Trial::Wasm { judge, .. } = row.trial {
        return expect(judge(scene).await, &Finding::Escaped);
    }
    let probe = || probe(&scene.rig, &scene.stack, row, &scene.bait);
    let ran = match control {
        Control::PlainDocker(set) => {
            let argv = arguments(row, &scene.rig, &scene.bait);
            let plain = tokio::task::spawn_blocking(move || docker::plain(set, &argv));
            return plain.await.map_err(|error| error.to_string())?;
        }
        Control::Bare | Control::BareAsRoot | Control::BareWithNetwork => {
            let argv = arguments(row, &scene.rig, &scene.bait);
            let bait = scene.bait.clone();
            let bare = tokio::task::spawn_blocking(move || match control {
                Control::BareWithNetwork => network::bare(&bait, &argv),
                _ => bare(&bait, &argv),
            });
            return bare.await.map_err(|error| error.to_string())?;
        }
        Control::HostRoot(_) => probe().image(Path::new("/")).run().await,
        Control::OpenImage(_) => {
            let image = open_image();
            probe().image(image.path()).run().await
        }
        _ => probe().run().await,
    };
    match control {
        Control::AnswersDiffer(_) => match judge(&ran)? {
            Finding::Escaped => Ok(ESCAPES.into()),
            _ if notes(&ran.out()) != strong => Ok(DIFFERS.into()),
            _ => Err(format!("the answers are the same, so this layer does nothing: {}", ran.story())),
        },
        _ => expect(judge(&ran), &Finding::Escaped),
    }
}

/// The word for the table if `found` is what was wanted.
fn expect(found: Result<Finding, String>, wanted: &Finding) -> Outcome {
    match (found?, wanted) {
        (Finding::Held, Finding::Held) => Ok("held".into()),
        (Finding::Escaped, Finding::Escaped) => Ok(ESCAPES.into()),
        (Finding::Refused(hint), Finding::Held) => Ok(format!("refused: {hint}")),
        // What is refused with the layer is refused without it, too: there is nothing to take away.
        (Finding::Refused(_), _) => Ok("refused".into()),
        (found, wanted) => Err(format!("{found:?} instead of {wanted:?}")),
    }
}

/// The cell of a row's probe.
fn probe<'r>(rig: &'r Rig, stack: &Stack, row: &Row, bait: &Bait) -> CellBuilder<'r> {
    let argv = arguments(row, rig, bait);
    if stack.contains(Wall::Wasm) {
        let words: Vec<&str> = ["probe"].into_iter().chain(argv.iter().map(String::as_str)).collect();
        // With a file, as native probes have one: so it also has a worker, and a scratch space, of its own.
        let cell = cell(rig, stack).file("/work/probe", 0o755, PROBE);
        return cell.component(&wasm::nothing(), &words).stdin(PROBE);
    }
    let cell = cell(rig, stack).probe(argv.clone());
    match argv.iter().position(|arg| arg == GUEST) {
        // Only a shell can tell who its parent is, and it must be replaced by the probe to stay out of the way.
        Some(at) => {
            let before = argv[..at].join(" ");
            cell.command(["sh", "-c", &format!("exec ./probe {before} $PPID {}", argv[at + 1..].join(" "))])
        }
        None => cell,
    }
}

const GUEST: &str = "{guest}";

/// The probe's name and arguments, with the bait filled in.
fn arguments(row: &Row, rig: &Rig, bait: &Bait) -> Vec<String> {
    let Trial::Probe { args, .. } = row.trial else { unreachable!("judged rows start their own probes") };
    let filled = [
        ("{secret-file}", bait.secret_file()),
        ("{policy-file}", bait.policy_file()),
        ("{bait-directory}", bait.directory().to_string_lossy().into_owned()),
        ("{bait-pid}", bait.pid().to_string()),
        ("{home}", rig.home().to_string_lossy().into_owned()),
        ("{socket}", bait.socket()),
        ("{port}", bait.port.to_string()),
        ("{segment}", bait.segment.to_string()),
        ("{marker}", bait.marker.clone()),
        ("{secret}", bait.secret.clone()),
    ];
    let fill = |arg: &str| filled.iter().fold(arg.to_owned(), |arg, (name, value)| arg.replace(name, value));
    std::iter::once(row.name.to_owned()).chain(args.split_whitespace().map(fill)).collect()
}

/// What a probe that judges itself has found.
pub(crate) fn judge(ran: &Ran) -> Result<Finding, String> {
    match ran.outcome.status {
        Status::Exited { code } => judge_words(code, &ran.out()),
        _ => Err(String::new()),
    }
    .map_err(|why| format!("{why}{}", ran.story()))
}

/// Exit code and verdict must agree.
pub(crate) fn judge_words(code: i32, out: &str) -> Result<Finding, String> {
    let verdict = out.lines().rev().find(|line| !line.is_empty()).unwrap_or_default();
    match code {
        10 if verdict.starts_with("verdict: held") => Ok(Finding::Held),
        20 if verdict.starts_with("verdict: escaped") => Ok(Finding::Escaped),
        10 | 20 => Err(format!("exit code {code}, but {verdict:?}")),
        _ => {
            let doubts: Vec<&str> = out.lines().filter(|line| line.starts_with("inconclusive:")).collect();
            Err(format!("code {code}, {verdict}\n      {}\n      ", doubts.join("\n      ")))
        }
    }
}

/// What a probe noted about each attempt.
fn notes(out: &str) -> Vec<String> {
    let weighs =
        |line: &&str| ["held:", "escaped:", "inconclusive:"].iter().any(|word| line.starts_with(word));
    out.lines().filter(weighs).map(str::to_owned).collect()
}

/// Runs a probe with nothing around it, from the bait's directory.
fn bare(bait: &Bait, argv: &[String]) -> Outcome {
    let program = bait_program(bait);
    let output = Command::new(&program)
        .args(argv)
        .env_clear()
        .current_dir(bait.directory())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let out = String::from_utf8_lossy(&output.stdout);
    expect(judge_words(output.status.code().unwrap_or(-1), &out), &Finding::Escaped)
}

/// The probe as a file beside the bait.
pub(crate) fn bait_program(bait: &Bait) -> std::path::PathBuf {
    static WRITING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let program = bait.directory().join("probe");
    let _guard = WRITING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !program.exists() {
        // Written by another process, so that no child of ours can hold it open for writing.
        let mut cat = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&program)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        use std::io::Write;
        cat.stdin.take().expect("a pipe").write_all(PROBE).expect("the shell reads it");
        assert!(cat.wait().expect("the shell ends").success(), "the probe could not be written");
    }
    program
}

/// A directory as image in which everybody may write everywhere.
fn open_image() -> TempDir {
    let image = TempDir::with_prefix_in("casemate-image-", "/var/tmp").expect("a directory for an image");
    for dir in ["", "usr", "usr/bin", "usr/lib", "etc", "var"] {
        let path = image.path().join(dir);
        std::fs::create_dir_all(&path).expect("a directory of the image");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("its mode");
    }
    image
}

pub(crate) fn make_executable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("the owner may change the mode");
}

async fn collect<T: Send + 'static>(mut tasks: JoinSet<(Place, T)>) -> BTreeMap<Place, T> {
    let mut collected = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        let (place, value) = done.expect("a row does not panic");
        collected.insert(place, value);
    }
    collected
}

async fn close(rig: Arc<Rig>) {
    match Arc::into_inner(rig) {
        Some(rig) => rig.close().await,
        None => panic!("a row keeps its engine"),
    }
}
