//! `lariat run`: what hosts start in place of a server.

mod share;

use crate::summon::Whereabouts;
use crate::{env, shelf, show, size};
use lariat::books::Rate;
use lariat::contain::{self, Backend, Choice, Ladder, Limits, SpawnStage};
use lariat::docker::podman::PodmanRun;
use lariat::duration;
use lariat::id::ServerName;
use lariat::relay::{Idle, Key, Mode, Policy, Run};
use lariat::spec;
use lariat::start::{self, Docker, Failure, Plan};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A first `npx` downloads the server.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Longer than any server needs to think of something by itself.
const SPIN_LIMIT: Duration = Duration::from_secs(30);

/// Runs a server so that nothing of it outlives the session.
///
/// Standard input and output are the server's own. The exit code is the server's; 128+n if a
/// signal ended it; 127 not found, 126 not executable, 125 Lariat itself failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat run -- npx -y @modelcontextprotocol/server-everything
  lariat run --name time --grace 5s -- uvx mcp-server-time
  lariat run --idle auto --memory 2g -- npx -y @modelcontextprotocol/server-everything
  lariat run --share -- uvx mcp-server-time
  lariat run --receipt /tmp/receipt.json -- ./my-server --flag")]
pub(crate) struct Args {
    /// Name of the server in receipts and logs [default: from the command]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Copy bytes through Lariat instead of handing the streams over
    #[arg(long)]
    relay: bool,
    /// Use one server together with other hosts that start the same one, by way of the daemon. With
    /// `reduced` also for clients that can do more than a shared server may use (roots, sampling,
    /// elicitation): they go without [default of a bare --share: strict]
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true,
        default_missing_value = "strict", conflicts_with_all = ["relay", "lazy", "call_timeout",
        "spin_limit", "grace", "term_grace", "backend", "containers", "max_containers", "memory",
        "pids", "cpu", "receipt", "log_dir", "max_starts"])]
    share: Option<share::How>,
    /// The daemon's socket [default: daemon.sock in the state directory]
    #[arg(long, value_name = "PATH", requires = "share")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    hold: Holding,
    #[command(flatten)]
    bounds: Bounds,
    /// Also write the receipt to this file
    #[arg(long, value_name = "FILE", help_heading = None::<&str>)]
    receipt: Option<PathBuf>,
    /// Where the server's stderr log goes [default: logs in the state directory]
    #[arg(long, value_name = "DIR", help_heading = None::<&str>)]
    log_dir: Option<PathBuf>,
    /// How often one host may start this server: 30/min, 5/s, 100/h or off
    #[arg(long, value_name = "RATE", default_value = "30/min")]
    max_starts: Rate,
    /// Says that `install` wrote this line, and changes nothing; `uninstall` looks for it
    #[arg(long, hide = true, value_name = "HOW", num_args = 0..=1, require_equals = true)]
    installed: Option<Option<String>>,
    /// The server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", help_heading = None::<&str>)]
    command: Vec<OsString>,
}

/// How patient to be with a server that nobody speaks with, or that does not answer.
#[derive(clap::Args)]
#[command(next_help_heading = "Patience")]
struct Patience {
    /// End a silent server until it is needed again: auto, off, or after a time [default: off; with
    /// --share auto]
    #[arg(long, value_name = "WHEN", value_parser = idle)]
    idle: Option<When>,
    /// The silence that `--idle auto` waits for
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::some)]
    idle_after: Duration,
    /// Start the server only when it is needed
    #[arg(long)]
    lazy: bool,
    /// Time to answer `initialize` or `server/discover`, or off [default: 60s where messages are seen:
    /// with --idle, --lazy, another time or a limit]
    #[arg(long, value_name = "TIME", value_parser = within)]
    init_timeout: Option<Within>,
    /// Time to answer any other request, or off [default: off]
    #[arg(long, value_name = "TIME", value_parser = within)]
    call_timeout: Option<Within>,
    /// Time to keep a CPU busy while nobody waits, or off [default: 30s where messages are seen]
    #[arg(long, value_name = "TIME", value_parser = within)]
    spin_limit: Option<Within>,
}

/// What `--idle` can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Auto,
    Off,
    After(Duration),
}

/// What `--idle` can be told.
pub(crate) fn idle(text: &str) -> Result<When, String> {
    match text {
        "auto" => Ok(When::Auto),
        "off" => Ok(When::Off),
        _ => duration::some(text)
            .map(When::After)
            .map_err(|why| format!("auto, off, or a time: {why}")),
    }
}

/// A time that something may take, if there is an end to it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Within(Option<Duration>);

fn within(text: &str) -> Result<Within, String> {
    match text {
        "off" => Ok(Within(None)),
        _ => duration::some(text)
            .map(|time| Within(Some(time)))
            .map_err(|why| format!("off, or a time: {why}")),
    }
}

impl Patience {
    /// When a server sleeps that others may use as well: what speaks for its being forgotten by one host
    /// says nothing about it.
    fn when_shared(&self) -> spec::Idle {
        match self.idle {
            None | Some(When::Auto) => spec::Idle::Usual,
            Some(When::Off) => spec::Idle::Off,
            Some(When::After(time)) => spec::Idle::After(time),
        }
    }

    /// Messages are looked at only if something depends on them.
    fn mode(&self, relay: bool, bounded: bool, program: &OsStr, args: &[OsString]) -> Mode {
        let lazy = self.lazy.then(|| {
            let here = env::absolute(PathBuf::from("."));
            Key::new(program, args, env::names(), env::path().as_deref(), &here)
        });
        let timeouts = [self.init_timeout, self.call_timeout, self.spin_limit];
        let timed = timeouts.iter().flatten().any(|within| within.0.is_some());
        let idle = self.idle.unwrap_or(When::Off);
        if idle == When::Off && !self.lazy && !timed && !bounded {
            return if relay { Mode::Relayed } else { Mode::Direct };
        }
        let unless = |given: Option<Within>, usual| given.map_or(usual, |within| within.0);
        Mode::Watched(Policy {
            idle: match idle {
                When::Auto => Idle::Auto(self.idle_after),
                When::Off => Idle::Off,
                When::After(time) => Idle::After(time),
            },
            lazy,
            init_timeout: unless(self.init_timeout, Some(INIT_TIMEOUT)),
            call_timeout: unless(self.call_timeout, None),
            spin_limit: unless(self.spin_limit, Some(SPIN_LIMIT)),
        })
    }
}

/// How a server is held; shared with `probe`.
#[derive(clap::Args)]
#[command(next_help_heading = "How it is held")]
pub(crate) struct Holding {
    /// Time to leave after standard input closed, before SIGTERM
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// Time to leave after SIGTERM, before the kill
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    pub(crate) term_grace: Duration,
    /// What holds the server: auto, cgroup, descent or pidns
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = backend)]
    pub(crate) backend: Choice,
    /// What to do with containers that the server started: reap or leave
    #[arg(long, value_name = "WHAT", default_value = "reap")]
    pub(crate) containers: Containers,
    /// How many containers the server may have at once
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) max_containers: usize,
    /// Where the books and logs are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// What a server may use, all its processes together.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct Bounds {
    /// Most memory of the server's processes together, such as 512m or 2g
    #[arg(long, value_name = "SIZE", value_parser = size::memory)]
    memory: Option<u64>,
    /// Most processes and threads at once
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pids: Option<u32>,
    /// Most CPUs' worth of time, such as 1.5
    #[arg(long, value_name = "CPUS", allow_negative_numbers = true, value_parser = size::cpus)]
    cpu: Option<f64>,
}

impl Bounds {
    fn limits(&self) -> Limits {
        Limits { memory: self.memory, processes: self.pids, cpu: self.cpu }
    }
}

/// What happens to a session's containers in the end.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Containers {
    /// They are removed with the session.
    Reap,
    /// They are none of our business.
    Leave,
}

impl Holding {
    /// Where containers that are to end with the session will be. Says so if that cannot be told.
    pub(crate) fn containers(
        &self,
        program: &OsStr,
        args: &mut Vec<OsString>,
    ) -> (Option<Docker>, Option<PodmanRun>) {
        if self.containers == Containers::Leave {
            return (None, None);
        }
        let found = start::Containers::of(program, args, env::docker(), self.max_containers);
        let docker = found.docker.unwrap_or_else(|unusable| {
            let what = format!("containers are not held: {unusable}");
            show::failure(&what, None, "or use --containers leave");
            None
        });
        (docker, found.podman)
    }

    pub(crate) fn ladder(&self) -> Ladder {
        Ladder { grace: self.grace, term_grace: self.term_grace, ..Ladder::default() }
    }
}

fn backend(name: &str) -> Result<Choice, String> {
    match name {
        "auto" => Ok(Choice::Auto),
        _ => Backend::named(name)
            .map(Choice::Named)
            .ok_or_else(|| "choose auto, cgroup, descent or pidns".into()),
    }
}

/// Runs it and passes on its exit code.
pub(crate) fn run(args: Args) -> ExitCode {
    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let mut rest: Vec<OsString> = words.collect();
    let server = match &args.name {
        None => ServerName::derived(&program, &rest),
        Some(name) => match ServerName::given(name) {
            Some(server) => server,
            None => {
                let what = format!("`{name}` is not a name");
                show::failure(&what, None, "use letters and digits: --name github");
                return ExitCode::from(125);
            }
        },
    };
    let Ok(state_dir) = shelf::place(args.hold.state_dir.as_ref()) else {
        // A wrapper's own failures must not look like the server's.
        return ExitCode::from(125);
    };
    if let Some(how) = args.share {
        // Whoever joins starts nothing, and so would finish nothing either.
        super::finish_crashed(Some(&state_dir));
        let wish = share::Wish {
            how,
            server: &server,
            program: &program,
            args: &rest,
            idle: args.patience.when_shared(),
            startup_timeout: args.patience.init_timeout.and_then(|within| within.0),
            daemon: Whereabouts { socket: args.socket, state_dir: Some(state_dir.clone()) },
        };
        match wish.join() {
            Ok(code) => return code,
            Err(why) => share::alone(&server, &state_dir, &why),
        }
    }
    let (docker, podman) = args.hold.containers(&program, &mut rest);
    let shown = program.to_string_lossy().into_owned();
    let receipt = args.receipt.map(env::absolute);
    let bounded = args.bounds.limits() != Limits::default();
    let mode = args.patience.mode(args.relay, bounded, &program, &rest);
    let run = Run {
        program,
        args: rest,
        plan: Plan {
            server,
            within: None,
            on_behalf: None,
            ladder: args.hold.ladder(),
            backend: args.hold.backend,
            docker,
            podman,
            receipt: receipt.clone(),
            state_dir,
            sweep: true,
            limits: args.bounds.limits(),
            max_starts: args.max_starts,
        },
        mode,
        log_dir: args.log_dir.map(env::absolute),
    };
    match lariat::relay::run(run) {
        Ok(outcome) => {
            for survivor in &outcome.receipt.survivors {
                show::survivor(survivor);
            }
            if let (Some(path), Some(e)) = (receipt, &outcome.unwritten) {
                let what = format!("cannot write the receipt {}", path.display());
                show::failure(&what, Some(e), "it is in events.jsonl in the state directory");
            }
            // Unknown: the kernel killed it together with whoever could have waited for it.
            match outcome.exit.map_or(137, |exit| exit.code()) {
                0 if !outcome.receipt.survivors.is_empty() => ExitCode::from(125),
                code => ExitCode::from(code),
            }
        }
        Err(failure) => explain(&shown, &failure),
    }
}

/// Says why a run did not begin and what to do; gives the exit code.
pub(crate) fn explain(program: &str, failure: &Failure) -> ExitCode {
    match failure {
        Failure::State(dir, e) => {
            let what = format!("cannot write the state directory {}", dir.display());
            show::failure(&what, Some(e), advice(e, "make it writable, or use --state-dir DIR"));
        }
        Failure::Log(dir, e) => {
            let what = format!("cannot write the log in {}", dir.display());
            show::failure(&what, Some(e), advice(e, "make it writable, or use --log-dir DIR"));
        }
        Failure::Receipt(file, e) => {
            let what = format!("cannot write the receipt {}", file.display());
            show::failure(&what, Some(e), "name a file in a directory that you can write");
        }
        Failure::Docker(socket, e) => {
            let what = format!("cannot make the session's Docker socket {}", socket.display());
            show::failure(&what, Some(e), advice(e, "use --state-dir DIR, or --containers leave"));
        }
        Failure::Streams(e) => {
            show::failure("cannot set up the server's streams", Some(e), "nothing was started");
        }
        Failure::Storm(storm) => show::failure(&storm.to_string(), None, &storm.advice()),
        Failure::Start(e) => {
            let cause = std::error::Error::source(e);
            match e.exit_code() {
                127 => {
                    let exists = program.contains('/') && std::path::Path::new(program).exists();
                    let (what, advice) = if exists {
                        ("the interpreter of", "check its first line; nothing was started")
                    } else {
                        ("", "check the spelling and PATH; nothing was started")
                    };
                    show::failure(
                        &format!("cannot find {what} `{program}`").replace("  ", " "),
                        None,
                        advice,
                    );
                }
                126 => {
                    let what = format!("cannot execute `{program}`");
                    let is_directory = std::path::Path::new(program).is_dir();
                    let advice = match is_directory {
                        true => "it is a directory; nothing was started",
                        false => "check its permissions; nothing was started",
                    };
                    show::failure(&what, cause, advice);
                }
                _ => {
                    let what_to_do = match e {
                        contain::Error::Backend(..) => "use --backend auto; nothing was started",
                        contain::Error::Spawn(SpawnStage::Proc, e) => advice(
                            e,
                            "mount /proc anew (mount -t proc proc /proc); nothing was started",
                        ),
                        _ => "nothing was started",
                    };
                    show::failure(&format!("cannot {e}"), cause, what_to_do);
                }
            }
            return ExitCode::from(e.exit_code());
        }
    }
    ExitCode::from(125)
}

/// What to do about an error: what fits the place, unless it is descriptors that are missing.
fn advice(error: &std::io::Error, usual: &'static str) -> &'static str {
    const EMFILE: i32 = 24;
    match error.raw_os_error() {
        Some(EMFILE) => "raise the limit on open files (ulimit -n)",
        _ => usual,
    }
}
