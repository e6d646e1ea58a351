//! The command line. Every flag is described here and nowhere else; what the flags mean is decided in `request`.

use std::ffi::OsString;
use std::path::PathBuf;

use casemate_core::limits::LimitKind;
use casemate_core::request::{Capability, Kind, Language, Need, Risk};
use casemate_core::stack::Wall;
use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  casemate run -c 'print(\"hello from inside\")'     Python, behind the walls that the policy asks for
  casemate run script.js --verbose                 a file, with arguments for it
  casemate run -- ls -l /                          a command
  echo 3 | casemate run -c 'print(int(input())*2)' standard input from a pipe
  casemate explain --risk high script.py           what would run where, and why
  casemate doctor                                  which walls stand on this machine

State lives under $CASEMATE_HOME. Exit codes: the guest's own; 124 after a time limit, 137 after any other kill, \
125 when Casemate refuses or fails.";

const RUN_USAGE: &str = "\
casemate run [OPTIONS] -c <CODE> [ARGS]...
       casemate run [OPTIONS] <FILE> [ARGS]...
       casemate run [OPTIONS] -- <ARGV>...";

const EXPLAIN_USAGE: &str = "casemate explain [OPTIONS] < -c <CODE> | <FILE> | -- <ARGV>... >";

const RUN_EXAMPLES: &str = "\
Examples:
  casemate run -c 'print(6 * 7)'
  casemate run --memory 64M --timeout 2s script.py input.txt
  casemate run --in data.csv:/work/data.csv --out /work/plot.png:plot.png plot.py
  casemate run --at-least container --lang shell -c 'uname -a'
  casemate run --json -- make test

Options stand before FILE or `--`; what follows belongs to the program. Standard input is passed on when it is a \
pipe or a file. Nothing else gets in: no network, no environment, no host files but /usr, unless it is granted here.

Exit codes: the guest's own; 128+n when signal n ended it; 124 after a time limit; 137 after any other kill; \
125 when Casemate refuses or fails; 141 when the reader of the output went away.";

const SETUP_EXAMPLES: &str = "\
Examples:
  casemate setup                                   all but a Docker Engine, which is to be named
  casemate setup gvisor                            runsc, from Debian
  casemate setup microvm                           as root: QEMU, and a kernel from Debian
  casemate setup microvm --kernel bzImage          QEMU, and a kernel of your own

What is got lies under $CASEMATE_HOME; only QEMU and the Docker Engine are installed on the machine itself.";

const IMAGE_EXAMPLES: &str = "\
Examples:
  casemate image build                             the default image: Debian with Python and Node.js
  casemate run --image default -c 'import sys; print(sys.version)'
  docker save tools:1.2 | casemate image import - --name tools
  casemate image pull --name tools registry.example.com/team/tools@sha256:…
  casemate image ls

An image is a tree of files under $CASEMATE_HOME/images, known by its digest. Cells see it read-only.";

const SERVE_EXAMPLES: &str = "\
Examples:
  casemate serve                                   on 127.0.0.1:7070, for programs on this machine
  curl localhost:7070/v1/executions -H 'content-type: application/json' -d '{\"code\": \"print(6 * 7)\"}'
  casemate token create --tenant acme              from the first token on, everybody needs one
  casemate serve --listen 0.0.0.0:7070             refused as long as there is no token

SIGTERM and Ctrl-C stop it: nothing new begins, what runs may end, every cell is gone, every record closed.";

const MCP_EXAMPLES: &str = "\
Examples:
  casemate mcp                                     what an MCP client is told to start
  casemate mcp --risk high --memory 512M --timeout 2m

Standard output carries nothing but the protocol. The tools share one cell, which is gone when standard input ends, or after \
SIGTERM or Ctrl-C. `casemate serve` offers the same to many clients, at /mcp.";

const EVIDENCE_EXAMPLES: &str = "\
Examples:
  casemate evidence ls
  casemate evidence head > head.txt                     keep it on another machine
  casemate evidence verify --key evidence.pub --head \"$(cat head.txt)\"

Without a pinned key and head, `verify` can only say that the records agree with each other.";

#[derive(Debug, Parser)]
#[command(name = "casemate", version, about, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    /// Policy file [default: $CASEMATE_HOME/policy.toml if it exists, else the built-in policy]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) policy: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run code, a file or a command in a fresh cell
    #[command(after_help = RUN_EXAMPLES, override_usage = RUN_USAGE)]
    Run(Box<RunArgs>),
    /// Say what would run where, and why each other stack was passed over; runs nothing
    #[command(override_usage = EXPLAIN_USAGE)]
    Explain(Box<RunArgs>),
    /// Start each wall and say what is missing
    Doctor {
        /// Measure each stack here and compare what it isolates, runs and costs; takes half a minute
        #[arg(long)]
        compare: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Get or build what a wall needs
    #[command(after_help = SETUP_EXAMPLES)]
    Setup {
        /// The walls; all that there is something to do for, if none is named
        #[arg(value_name = "WALL", value_parser = words(Wall::ALL.map(Wall::as_str)))]
        walls: Vec<String>,
        /// What is there already, for machines without a network: a directory with the packages (wasm), the program runsc
        /// (gvisor), a directory with Debian's package of its cloud kernel (microvm)
        #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        from: Option<PathBuf>,
        /// A bzImage instead of Debian's kernel (microvm), with virtio_mmio, virtio_blk, virtio_console, erofs, overlay, devtmpfs
        /// and cgroup2 built in
        #[arg(long, value_name = "FILE", conflicts_with = "from", value_hint = ValueHint::FilePath)]
        kernel: Option<PathBuf>,
    },
    /// Get, list and remove the root file systems that cells can have
    #[command(after_help = IMAGE_EXAMPLES)]
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Look at the signed records of what ran
    #[command(after_help = EVIDENCE_EXAMPLES)]
    Evidence {
        #[command(subcommand)]
        command: EvidenceCommand,
    },
    /// Serve executions and sessions over HTTP, to many tenants
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Give a model's client tools that run code, over MCP on standard input and output
    #[command(after_help = MCP_EXAMPLES)]
    Mcp(Box<McpArgs>),
    /// Make, list and revoke the tokens that clients of `casemate serve` send
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Print a completion script for a shell
    Completions { shell: Shell },
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port; port 0 takes any that is free [default: 127.0.0.1:7070, unless --socket is given]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// A Unix socket, which only this user may open
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) socket: Option<PathBuf>,
    /// Cells at the same time, of all tenants [default: 16 per processor]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) cells: Option<usize>,
    /// Cells at the same time, of one tenant [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) cells_per_tenant: Option<usize>,
    /// Requests of one tenant that may wait for a cell
    #[arg(long, value_name = "N", default_value = "1024", value_parser = at_least_one())]
    pub(crate) queue: usize,
    /// How long what runs may go on after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) drain: String,
    /// TLS and quotas of tenants [default: service.toml in the home, if there is one]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// What is told of requests and executions on standard error
    #[arg(long, value_name = "FORM", default_value = "off")]
    pub(crate) log: LogForm,
    /// Stop when standard input is closed: whoever started this holds its other end, and is gone
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
}

/// How a server tells what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogForm {
    /// Errors only
    Off,
    /// A line for each request and execution
    Text,
    /// The same as JSON
    Json,
}

/// The heading of what `run` has under another, with more.
const CELL: &str = "What is in the cell";

#[derive(Debug, Args)]
#[command(mut_arg("timeout", |arg| arg.help("Wall time of one call, at most [default: 1h, and 60s for a call that does not say]")))]
#[command(mut_arg("cpu_time", |arg| arg.help("CPU time of all calls together [default: 24h]")))]
#[command(mut_arg("max_output", |arg| arg.help("Output of one call, of which head and tail are told [default: 64M]")))]
pub(crate) struct McpArgs {
    #[command(flatten)]
    pub(crate) walls: WallArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// Root file system: `host` (its /usr, read-only), or an image of the store by name or digest
    #[arg(long, value_name = "IMAGE", default_value = "host", help_heading = CELL)]
    pub(crate) image: String,

    /// Working directory in the cell
    #[arg(long, value_name = "DIR", help_heading = CELL)]
    pub(crate) cwd: Option<String>,

    /// An environment variable; the host's own are not passed on
    #[arg(long, value_name = "NAME=VALUE", help_heading = CELL)]
    pub(crate) env: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token; it is printed alone on the last line, and never again
    Create {
        /// On whose behalf
        #[arg(long, value_name = "TENANT")]
        tenant: String,
        /// What it allows: run, receipts, images, metrics; repeat or separate with commas [default: run,receipts]
        #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
        scope: Vec<String>,
        /// How long it is good for, e.g. 12h or 90d [default: until it is revoked]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List tokens, without their secrets
    Ls {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Replace a token with another of the same tenant and scopes; the new one is printed alone on the last line
    Rotate {
        /// As `casemate token ls` shows it
        id: String,
        /// How long the new one is good for, e.g. 12h or 90d [default: as long as the old one was]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        /// How long the old one stays good, so that clients can change over
        #[arg(long, value_name = "TIME", default_value = "1h")]
        grace: String,
    },
    /// Make a token worthless, at once
    Revoke {
        /// As `casemate token ls` shows it
        id: String,
    },
}

/// A count of something that there must be.
fn at_least_one() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u32).range(1..=100_000).map(|count| count as usize)
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Code to run; python unless --lang says otherwise
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<OsString>,

    /// A source file or WASM component and its arguments; or, after `--`, a command and its arguments
    #[arg(
        value_name = "FILE",
        trailing_var_arg = true,
        num_args = 0..,
        value_hint = ValueHint::FilePath
    )]
    pub(crate) words: Vec<OsString>,

    /// Whether `--` stood before the words.
    #[arg(skip)]
    pub(crate) dashed: bool,

    /// Language of the code [default: by the file's extension or first line; python for -c]
    #[arg(long, value_name = "LANGUAGE", value_parser = words(Language::ALL.map(Language::as_str)))]
    pub(crate) lang: Option<String>,

    /// Print one JSON object instead of the output
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) walls: WallArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) grants: GrantArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Walls")]
pub(crate) struct WallArgs {
    /// Exactly this stack of walls, outermost first, e.g. container or container+wasm
    #[arg(long, value_name = "STACK", conflicts_with = "at_least")]
    pub(crate) on: Option<String>,

    /// This wall or anything stronger
    #[arg(long, value_name = "WALL", value_parser = words(Wall::ALL.map(Wall::as_str)))]
    pub(crate) at_least: Option<String>,

    /// How much harm to expect of the code
    #[arg(long, value_name = "RISK", default_value = Risk::Medium.as_str(),
          value_parser = words(Risk::ALL.map(Risk::as_str)))]
    pub(crate) risk: String,

    /// What sort of tool it is
    #[arg(long, value_name = "KIND", value_parser = words(Kind::ALL.map(Kind::as_str)))]
    pub(crate) kind: Option<String>,

    /// Something the code cannot do without; repeat or separate with commas
    #[arg(long, value_name = "NEED", value_delimiter = ',', value_parser = words(Need::ALL.map(Need::as_str)))]
    pub(crate) needs: Vec<String>,

    /// A tag that the policy may know; repeat or separate with commas
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub(crate) tag: Vec<String>,

    /// On whose behalf [default: local]
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<String>,

    /// The same input gives the same output, or the run is refused
    #[arg(long)]
    pub(crate) deterministic: bool,
}

// Values may begin with `-`, so that a negative limit is answered with its range and not with "unknown flag".
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Wall time [default: 10s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,

    /// CPU time of all processes together [default: 10s, or the wall time if that is longer]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    cpu_time: Option<String>,

    /// Share of the processors [default: 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    cpus: Option<String>,

    /// Memory, files in the cell included [default: 256M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,

    /// Bytes in files [default: 64M, at most half of the memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    disk: Option<String>,

    /// Number of files [default: 16384]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    inodes: Option<String>,

    /// Disk transfer per second [default: none]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    disk_io: Option<String>,

    /// Processes and threads [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pids: Option<String>,

    /// Open files of one process [default: 1024]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    nofile: Option<String>,

    /// Output, both streams together; the rest is cut [default: 1M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    max_output: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What gets in and out")]
pub(crate) struct GrantArgs {
    /// Root file system: `host` (its /usr, read-only), an image of the store by name or digest, or a directory such as ./rootfs
    #[arg(long, value_name = "IMAGE", default_value = "host", value_hint = ValueHint::DirPath)]
    pub(crate) image: PathBuf,

    /// Working directory in the cell
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    /// An environment variable; the host's own are not passed on
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<OsString>,

    /// A file or directory to copy in, beneath /work or /tmp; links in it are left out
    #[arg(long = "in", value_name = "HOST:GUEST")]
    pub(crate) files_in: Vec<OsString>,

    /// A file or directory to copy out afterwards. A directory's content lands in HOST itself
    #[arg(long = "out", value_name = "GUEST:HOST")]
    pub(crate) files_out: Vec<OsString>,

    /// What a WASM component may observe; repeat or separate with commas
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',',
          value_parser = words(Capability::ALL.map(Capability::as_str)))]
    pub(crate) grant: Vec<String>,

    /// A host and port that may be reached, e.g. api.example.com:443; refused by every wall of this version
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) allow: Vec<String>,

    /// A secret for one host, e.g. TOKEN@api.example.com; refused by every wall of this version
    #[arg(long, value_name = "NAME@HOST")]
    pub(crate) secret: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images, newest last
    Ls {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Take in an archive or an OCI layout
    Import {
        /// A tar of a root file system, of `docker save` or of an OCI layout, plain or compressed (gzip, zstd); - for standard input; or a
        /// directory with an OCI layout
        #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath)]
        from: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Get an image from a registry
    Pull {
        /// HOST/NAME:TAG, or HOST/NAME@sha256:DIGEST for exactly that image
        #[arg(value_name = "REF")]
        reference: String,
        /// Log in as this user; the password comes on standard input [default: as `docker login` has written down]
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Build an image of Debian's packages, or build it again for security updates
    Build(BuildArgs),
    /// Remove a name, and its image if that was the last one; or an image with all its names
    Rm {
        /// A name, a digest, or the first 12 digits or more of one
        #[arg(value_name = "IMAGE")]
        image: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// A TOML file with a suite and packages [default: the recipe of the image `default`]
    #[arg(value_name = "RECIPE", value_hint = ValueHint::FilePath)]
    pub(crate) recipe: Option<PathBuf>,

    /// What to call it [default: as the recipe says]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// What to call it; a name that is taken moves to the new image
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// The most that its files may take [default: 8G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size_limit: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvidenceCommand {
    /// List executions, newest last
    Ls {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show the records of one execution
    Show {
        /// The execution
        id: String,
        /// Print the lines as they are stored, with the seals that name them
        #[arg(long)]
        json: bool,
    },
    /// Check every record and seal, and that nothing is missing in between
    Verify {
        /// Also look for this execution
        #[arg(conflicts_with = "all")]
        id: Option<String>,
        /// All executions, which is the default
        #[arg(long)]
        all: bool,
        /// The public key that must have signed: a file, or 64 hexadecimal digits
        #[arg(long, value_name = "KEY")]
        key: Option<OsString>,
        /// A head that `evidence head` printed earlier, or a receipt
        #[arg(long, value_name = "SEQ:HEX")]
        head: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the end of the chain, to be kept elsewhere
    Head,
    /// Copy all records and seals, to standard output or into a new file
    Export {
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
}

impl Cli {
    pub(crate) fn parse_words(raw: &[OsString]) -> Result<Cli, clap::Error> {
        let mut cli = Cli::try_parse_from(raw)?;
        if let Command::Run(args) | Command::Explain(args) = &mut cli.command {
            // Clap drops the `--`. The words are the tail of what was given, so it stood just before them.
            let before = raw.len().checked_sub(args.words.len() + 1);
            args.dashed = !args.words.is_empty() && before.is_some_and(|at| raw[at] == "--");
        }
        Ok(cli)
    }
}

impl LimitArgs {
    /// The limits that were given, as they were written.
    pub(crate) fn given(&self) -> impl Iterator<Item = (LimitKind, &str)> {
        LimitKind::ALL.into_iter().filter_map(|kind| Some((kind, self.of(kind)?)))
    }

    fn of(&self, kind: LimitKind) -> Option<&str> {
        let flag = match kind {
            LimitKind::WallTime => &self.timeout,
            LimitKind::CpuTime => &self.cpu_time,
            LimitKind::Cpus => &self.cpus,
            LimitKind::Memory => &self.memory,
            LimitKind::Disk => &self.disk,
            LimitKind::Inodes => &self.inodes,
            LimitKind::DiskIo => &self.disk_io,
            LimitKind::Pids => &self.pids,
            LimitKind::OpenFiles => &self.nofile,
            LimitKind::Output => &self.max_output,
        };
        flag.as_deref()
    }
}

/// The script that makes a shell complete our flags.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "casemate", &mut script);
    script
}

fn words<const N: usize>(words: [&'static str; N]) -> PossibleValuesParser {
    PossibleValuesParser::new(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        let raw: Vec<OsString> = ["casemate"].iter().chain(words).map(OsString::from).collect();
        Cli::parse_words(&raw)
    }

    fn run(words: &[&str]) -> RunArgs {
        match parse(&[&["run"], words].concat()).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_file_takes_everything_after_it() {
        let args = run(&["--memory", "64M", "script.py", "--json", "-c", "x", "--", "y"]);
        assert_eq!(args.words, ["script.py", "--json", "-c", "x", "--", "y"]);
        assert!(!args.dashed && !args.json && args.code.is_none());
    }

    #[test]
    fn a_command_stands_after_two_dashes() {
        let args = run(&["--json", "--", "ls", "-l", "--", "/"]);
        assert_eq!(args.words, ["ls", "-l", "--", "/"]);
        assert!(args.dashed && args.json);
        assert!(run(&["--", "--help"]).dashed);
    }

    #[test]
    fn code_keeps_its_own_arguments_apart_from_our_flags() {
        let args = run(&["-c", "-1", "--json", "a", "-b"]);
        assert_eq!((args.code, args.json), (Some("-1".into()), true));
        assert_eq!(args.words, ["a", "-b"]);
        assert_eq!(run(&["-c", "x", "--", "--json"]).words, ["--json"]);
    }

    #[test]
    fn every_limit_has_its_flag() {
        for kind in LimitKind::ALL {
            let args = run(&[kind.flag(), "-1", "-c", ""]);
            assert_eq!(args.limits.given().collect::<Vec<_>>(), [(kind, "-1")]);
        }
    }

    #[test]
    fn a_mistyped_flag_is_met_with_the_nearest_one() {
        let error = parse(&["run", "--memry", "64M", "-c", "x"]).unwrap_err();
        assert!(error.to_string().contains("--memory"), "{error}");
        assert!(parse(&["run", "--on", "container", "--at-least", "gvisor", "-c", "x"]).is_err());
        assert!(parse(&["bench"]).is_err());
    }

    #[test]
    fn help_texts() {
        for name in
            ["", "run", "explain", "doctor", "image", "image import", "evidence", "evidence verify", "mcp"]
        {
            let words: Vec<&str> =
                name.split(' ').filter(|word| !word.is_empty()).chain(["--help"]).collect();
            insta::assert_snapshot!(format!("help {name}").trim(), parse(&words).unwrap_err());
        }
    }
}
