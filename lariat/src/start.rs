//! Starting a server: books first, then the tree.
//!
//! Whoever serves a server (the relay, a probe) begins here: what crashed sessions left is swept,
//! the new session is written down, and only then does a process exist. A host with threads cannot
//! do that itself; `local` starts a holder that does it for the host.

pub(crate) mod environment;
pub(crate) mod image;
pub(crate) mod local;
pub(crate) mod talk;
pub(crate) mod wire;
mod word;

use crate::books::{Books, Entry, Generation, Opening, Rate, TooMany, prove};
use crate::docker::admission::Service;
use crate::docker::direct::{self, Named};
use crate::docker::door::Door;
use crate::docker::endpoint::{self, Endpoint, Surroundings, Unusable};
use crate::docker::podman::{self, PodmanRun};
use crate::id::{ServerName, SessionId};
use crate::receipt::{Reason, Receipt};
use contain::{
    Choice, Command, Hold, Ladder, Limits, Machine, Mark, Member, Options, Report, Signals,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// How a server is to be held.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name in receipts and logs.
    pub server: ServerName,
    /// The session of several servers that it is part of.
    pub within: Option<SessionId>,
    /// For whom its host wants it, if that is somebody else.
    pub on_behalf: Option<Member>,
    /// How it is asked to leave.
    pub ladder: Ladder,
    /// What holds it.
    pub backend: Choice,
    /// The engine in which it may start containers that end with it; `None` to leave those alone.
    pub docker: Option<Docker>,
    /// What the command is if it is podman's, which makes containers without an engine.
    pub podman: Option<PodmanRun>,
    /// Where to write the receipt as well.
    pub receipt: Option<PathBuf>,
    /// Where the books are.
    pub state_dir: PathBuf,
    /// True to finish first what crashed sessions left.
    pub sweep: bool,
    /// What it may use, as far as the kernel can be told.
    pub limits: Limits,
    /// How often its host may start it.
    pub max_starts: Rate,
}

/// How a server may use containers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Docker {
    /// The real engine.
    pub endpoint: Endpoint,
    /// How many containers may live at once.
    pub most: usize,
}

/// Where the containers will be that a command starts and that are to end with it.
#[derive(Debug)]
pub struct Containers {
    /// The engine that docker would use here, or why that cannot be told.
    pub docker: Result<Option<Docker>, Unusable>,
    /// The podman that the command is.
    pub podman: Option<PodmanRun>,
}

impl Containers {
    /// Looks at the command and its surroundings. `args` lose the flags by which docker was told
    /// where its engine is, which the session's socket stands for.
    pub fn of(
        program: &OsStr,
        args: &mut Vec<OsString>,
        around: Surroundings,
        most: usize,
    ) -> Containers {
        let named = direct::named_engine(program, args)
            .unwrap_or_else(|| Named { args: args.clone(), ..Named::default() });
        let endpoint = endpoint::resolve(&named.surroundings(around));
        if matches!(endpoint, Ok(Some(_))) {
            *args = named.args;
        }
        let docker = endpoint.map(|found| found.map(|endpoint| Docker { endpoint, most }));
        Containers { docker, podman: podman::podman_run(program, args) }
    }
}

/// Why a server could not be started. Nothing of it is left.
#[derive(Debug)]
pub enum Failure {
    /// The state directory cannot be written.
    State(PathBuf, io::Error),
    /// The log directory cannot be written.
    Log(PathBuf, io::Error),
    /// The receipt cannot be written.
    Receipt(PathBuf, io::Error),
    /// The session's Docker socket cannot be made.
    Docker(PathBuf, io::Error),
    /// The server's streams or signals could not be set up.
    Streams(io::Error),
    /// The server could not be started.
    Start(contain::Error),
    /// Its host has started it too often.
    Storm(TooMany),
}

impl Failure {
    /// With what `lariat run` ends.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(e) => e.exit_code(),
            _ => 125,
        }
    }

    /// What failed, on what, and why, for whoever asked for this program.
    pub(crate) fn in_words(&self, program: &str) -> String {
        match self {
            Failure::State(dir, e) => {
                format!("the state directory {} cannot be written: {e}", dir.display())
            }
            Failure::Log(dir, e) => format!("its log in {} cannot be written: {e}", dir.display()),
            Failure::Receipt(file, e) => {
                format!("its receipt {} cannot be written: {e}", file.display())
            }
            Failure::Docker(socket, e) => {
                format!("its Docker socket {} cannot be made: {e}", socket.display())
            }
            Failure::Streams(e) => format!("its streams cannot be set up: {e}"),
            Failure::Start(e) => word::not_started(program, e),
            Failure::Storm(storm) => format!("{storm}; {}", storm.advice()),
        }
    }
}

/// What the server's surroundings are.
#[derive(Debug)]
pub(crate) struct Around<'a> {
    /// Signals are read, not fatal, before anything is started.
    pub(crate) signals: &'a Signals,
    /// Who started us.
    pub(crate) host: Option<Member>,
    /// Readable when the host has died, or wants no more.
    pub(crate) host_gone: Option<BorrowedFd<'a>>,
    /// The reading end of the server's stderr.
    pub(crate) stderr: Option<BorrowedFd<'a>>,
    /// Who wants the receipt even if this process is not there any more to give it.
    pub(crate) owner: Option<&'a dyn Owner>,
}

/// Somebody at the other end of a descriptor who waits for the receipt.
pub(crate) trait Owner: std::fmt::Debug {
    /// For the guardian to hold.
    fn line(&self) -> BorrowedFd<'_>;

    /// Tells it. May run in the guardian.
    fn tell(&self, receipt: &Receipt);
}

/// A session that is about to begin: the ground is prepared, nothing is started.
#[derive(Debug)]
pub(crate) struct Ground {
    plan: Plan,
    mark: Mark,
    machine: Machine,
    /// The books, swept.
    pub(crate) books: Books,
    /// Which start by its host this is.
    generation: Generation,
}

/// A server that runs and the session it is written under.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) hold: Hold,
    pub(crate) entry: Entry,
    /// Where its processes find Docker.
    pub(crate) door: Option<Door>,
}

impl Ground {
    /// Opens the books, finishes what crashed sessions left, and chooses a backend.
    pub(crate) fn prepare(plan: Plan) -> Result<Ground, Failure> {
        Ground::prepare_for(None, plan).map(|(ground, _)| ground)
    }

    /// The same for a command of this host, unless it has started that too often. Says first of all
    /// if it has: a host gone wild is not to cost much.
    pub(crate) fn prepare_for(
        starter: Option<(Member, &OsStr, &[OsString])>,
        plan: Plan,
    ) -> Result<(Ground, Generation), Failure> {
        let books =
            Books::open(&plan.state_dir).map_err(|e| Failure::State(plan.state_dir.clone(), e))?;
        let mark = Mark::random().map_err(Failure::Streams)?;
        let generation = match starter {
            Some((host, program, args)) => {
                let session = SessionId::of(mark);
                let (server, command) = (&plan.server, (program, args));
                let counted = books.count_start(host, server, command, &session, plan.max_starts);
                counted.map_err(Failure::Storm)?
            }
            None => Generation::UNCOUNTED,
        };
        if plan.sweep {
            books.sweep();
        }
        let machine = contain::probe(plan.backend, mark).map_err(Failure::Start)?;
        Ok((Ground { plan, mark, machine, books, generation: generation.clone() }, generation))
    }

    /// Writes the session down and starts the server.
    pub(crate) fn start(self, command: Command, around: &Around<'_>) -> Result<Running, Failure> {
        let opened = self.open(around.host)?;
        match opened.launch(command, around) {
            Ok((hold, door)) => Ok(Running { hold, entry: opened.entry, door }),
            Err(failure) => Err(opened.give_up(failure)),
        }
    }

    /// Writes the session down.
    pub(crate) fn open(self, host: Option<Member>) -> Result<Opened, Failure> {
        let Ground { plan, mark, machine, books, generation } = self;
        let opening = Opening {
            server: plan.server.clone(),
            within: plan.within.clone(),
            mark,
            machine: &machine,
            host,
            on_behalf: plan.on_behalf,
            engine: plan.docker.as_ref().map(|docker| docker.endpoint.clone()),
            podman: plan.podman.as_ref().map(|run| run.podman.clone()),
            receipt: plan.receipt.clone(),
            generation,
        };
        let entry = books.note(opening).map_err(|e| Failure::State(plan.state_dir.clone(), e))?;
        if let Some(path) = &plan.receipt
            && let Err(e) = prove(path, &entry.page().session)
        {
            entry.settle(&Reason::Failed("receipt".into()), Report::nothing(machine.backend));
            return Err(Failure::Receipt(path.clone(), e));
        }
        Ok(Opened { plan, mark, machine, entry })
    }
}

/// A session that is written down. A server can be started in it, and another after that.
#[derive(Debug)]
pub(crate) struct Opened {
    plan: Plan,
    mark: Mark,
    machine: Machine,
    pub(crate) entry: Entry,
}

impl Opened {
    /// Starts the server.
    pub(crate) fn launch(
        &self,
        mut command: Command,
        around: &Around<'_>,
    ) -> Result<(Hold, Option<Door>), Failure> {
        let Opened { plan, mark, machine, entry } = self;
        let door = open_door(entry, plan.docker.as_ref())?;
        if let Some(run) = &plan.podman {
            command.args = run.labelled(&command.args, &entry.labels());
        }
        command.env = door.as_ref().map(Door::environment).unwrap_or_default();
        let mut keep = vec![entry.lock()];
        keep.extend(door.as_ref().map(Door::lifeline));
        keep.extend(around.owner.map(Owner::line));
        let options = Options {
            ladder: plan.ladder,
            backend: machine.backend,
            strict: plan.backend != Choice::Auto,
            mark: *mark,
            leaf: machine.leaf.as_deref(),
            keep: &keep,
            drain: around.stderr,
            host: around.host_gone,
            signals: around.signals,
            limits: plan.limits,
        };
        // Runs in the guardian, if this process is not there any more when the tree has ended.
        let epilogue = |report: &Report| {
            if !entry.is_struck() {
                if let Some(door) = &door {
                    door.close_from_guardian();
                }
                let settled = entry.settle(&Reason::WrapperDied, report.clone());
                if let Some(owner) = around.owner {
                    owner.tell(&settled.receipt);
                }
            }
        };
        match Hold::spawn(command, &options, epilogue) {
            Ok(hold) => Ok((hold, door)),
            Err(error) => Err(Failure::Start(error)),
        }
    }

    /// Where the books are.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.plan.state_dir
    }

    /// What the server may use.
    pub(crate) fn limits(&self) -> Limits {
        self.plan.limits
    }

    /// Nothing runs, as far as anybody knows.
    pub(crate) fn nothing(&self) -> Report {
        Report::nothing(self.machine.backend)
    }

    /// Accounts for a session whose first server could not be started.
    pub(crate) fn give_up(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Start(error) => give_up(&self.entry, error),
            other => {
                self.entry.settle(&Reason::Failed("docker".into()), self.nothing());
                other
            }
        }
    }
}

/// Opens the socket through which the session's processes reach the engine.
fn open_door(entry: &Entry, docker: Option<&Docker>) -> Result<Option<Door>, Failure> {
    let (Some(docker), Some(noted)) = (docker, &entry.page().docker) else {
        return Ok(None);
    };
    let service = Service {
        endpoint: docker.endpoint.clone(),
        labels: entry.labels(),
        most: docker.most,
        tally: entry.tally(),
    };
    // The last server's of this session.
    let _absent = std::fs::remove_file(&noted.socket);
    let opened = Door::open(noted.socket.clone(), service);
    opened.map(Some).map_err(|e| Failure::Docker(noted.socket.clone(), e))
}

/// Writes down that the server runs.
pub(crate) fn began(entry: &Entry, hold: &Hold) {
    let page = entry.page();
    let started = json!({
        "session": page.session, "server": page.server, "backend": hold.backend().name(),
        "wrapper": page.wrapper.0, "host": page.host.map(|h| h.0),
    });
    // An unwritable event log is no reason not to serve.
    let _unlogged = entry.log("started", &started);
}

/// Accounts for a server that could not be started.
pub(crate) fn give_up(entry: &Entry, error: contain::Error) -> Failure {
    let backend = contain::Backend::named(&entry.page().backend);
    let nothing = Report::nothing(backend.unwrap_or(contain::Backend::Descent));
    entry.settle(&Reason::not_started(error.exit_code()), nothing);
    Failure::Start(error)
}
