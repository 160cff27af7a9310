//! What this machine can do: what would hold a server, which limits the kernel keeps, which engines
//! and launchers there are. Where it can be tried, it is tried.

use crate::{env, show};
use lariat::contain::{self, Backend, Choice, Ladder, Mark, Spec, Tree};
use lariat::docker::{endpoint, version::version};
use serde::Serialize;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an engine or a launcher may take to say which it is.
const PATIENCE: Duration = Duration::from_millis(1500);

#[derive(Serialize)]
pub(super) struct Machine {
    kernel: String,
    /// What `auto` would choose; none if nothing can be held here.
    backend: Option<&'static str>,
    guarantee: Option<&'static str>,
    /// Why it is not the best one, or none at all.
    why_not_better: Option<String>,
    limits: Limits,
    pidns: Pidns,
    docker: Docker,
}

/// Which limits the kernel itself keeps; the others are watched by the wrapper.
#[derive(Serialize)]
struct Limits {
    memory: bool,
    pids: bool,
    cpu: bool,
}

#[derive(Serialize)]
struct Pidns {
    works: bool,
    why_not: Option<String>,
}

#[derive(Serialize)]
struct Docker {
    endpoint: Option<String>,
    version: Option<String>,
    why_not: Option<String>,
}

impl Machine {
    pub(super) fn look() -> Machine {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let probed = Mark::random()
            .map_err(|error| error.to_string())
            .and_then(|mark| contain::probe(Choice::Auto, mark).map_err(|e| e.to_string()));
        let limits = probed.as_ref().map(|found| found.limits()).unwrap_or_default();
        let why_not_better = match &probed {
            Ok(found) => found.why_not_better.clone(),
            Err(why) => Some(why.clone()),
        };
        Machine {
            kernel,
            backend: probed.as_ref().ok().map(|found| found.backend.name()),
            guarantee: probed.as_ref().ok().map(|found| found.guarantee),
            why_not_better,
            limits: Limits { memory: limits.memory, pids: limits.processes, cpu: limits.cpu },
            pidns: Pidns::try_it(),
            docker: Docker::look(),
        }
    }

    pub(super) fn text(&self) -> String {
        let plain = |text: &Option<String>| show::plain(text.as_deref().unwrap_or_default());
        let mut text = match (self.backend, self.guarantee) {
            (Some(backend), Some(guarantee)) => format!("  holds by   {backend}: {guarantee}\n"),
            _ => format!("  holds by   nothing: {}\n", plain(&self.why_not_better)),
        };
        if self.backend == Some(Backend::Descent.name()) {
            text += &format!("             not by cgroup: {}\n", plain(&self.why_not_better));
            text += "             `systemd-run --user --scope -p Delegate=yes` gives a host one\n";
        }
        let limits = [
            ("--memory", self.limits.memory, "watched by the wrapper"),
            ("--pids", self.limits.pids, "watched by the wrapper"),
            // A share cannot be watched, only given.
            ("--cpu", self.limits.cpu, "cannot be kept here"),
        ];
        let parts = limits.map(|(name, kernel, else_)| {
            format!("{name} {}", if kernel { "kept by the kernel" } else { else_ })
        });
        text += &format!("  limits     {}\n", parts.join("; "));
        text += &match self.pidns.works {
            true => "  pidns      can be had with --backend pidns\n".to_string(),
            false => format!("  pidns      cannot be had: {}\n", plain(&self.pidns.why_not)),
        };
        let docker = &self.docker;
        let place = show::plain(docker.endpoint.as_deref().unwrap_or("none"));
        text += &match &docker.version {
            Some(version) => format!("  docker     {} at {place}\n", show::plain(version)),
            None => format!("  docker     {place}: {}\n", plain(&docker.why_not)),
        };
        text + &format!("  kernel     {}\n", show::plain(&self.kernel))
    }
}

impl Pidns {
    /// Starts something in a pid namespace: many settings can forbid it, and only the try tells.
    fn try_it() -> Pidns {
        let tried = std::env::current_exe().map_err(|error| error.to_string()).and_then(|own| {
            let spec = Spec {
                holder: own.clone(),
                program: own.into(),
                args: vec!["--version".into()],
                env: None,
                cwd: None,
                stdin: Stdio::null(),
                stdout: Stdio::null(),
                stderr: Stdio::null(),
                backend: Choice::Named(Backend::Pidns),
                ladder: Ladder { grace: PATIENCE, ..Ladder::default() },
            };
            let tree = Tree::spawn(spec).map_err(|error| chain(&error))?;
            // It says its version and goes; whatever became of it, it was there.
            let _gone_or_told = tree.close();
            Ok(())
        });
        Pidns { works: tried.is_ok(), why_not: tried.err() }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

impl Docker {
    fn look() -> Docker {
        let resolved = match endpoint::resolve(&env::docker()) {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Docker::none("no socket is where engines put theirs"),
            Err(unusable) => return Docker::none(&unusable.to_string()),
        };
        let answer = version(&resolved, PATIENCE);
        Docker {
            endpoint: Some(resolved.to_string()),
            why_not: answer.as_ref().err().map(|error| chain(error)),
            version: answer.ok(),
        }
    }

    fn none(why: &str) -> Docker {
        Docker { endpoint: None, version: None, why_not: Some(why.into()) }
    }
}

/// What servers are started with, and its version; none if it is not here or does not say.
#[derive(Serialize)]
pub(super) struct Tools {
    node: Option<String>,
    npx: Option<String>,
    uvx: Option<String>,
    podman: Option<String>,
}

/// The same, asked and not yet answered.
pub(super) struct Asked {
    since: Instant,
    tools: [Option<Child>; 4],
}

impl Tools {
    /// Asks them all at once: npx alone takes a quarter of a second.
    pub(super) fn ask() -> Asked {
        let ask = |name: &str| {
            let mut command = Command::new(name);
            command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
            command.stdout(Stdio::piped()).spawn().ok()
        };
        Asked { since: Instant::now(), tools: ["node", "npx", "uvx", "podman"].map(ask) }
    }

    pub(super) fn text(&self) -> String {
        let tools = [
            ("node", &self.node),
            ("npx", &self.npx),
            ("uvx", &self.uvx),
            ("podman", &self.podman),
        ];
        let said = |(name, version): (&str, &Option<String>)| match version {
            Some(version) => format!("{name} {}", show::plain(version)),
            None => format!("no {name}"),
        };
        format!("  tools      {}\n", tools.map(said).join(", "))
    }
}

impl Asked {
    pub(super) fn answers(self) -> Tools {
        let until = self.since + PATIENCE;
        let [node, npx, uvx, podman] = self.tools.map(|tool| answer(tool?, until));
        Tools { node, npx, uvx, podman }
    }
}

/// The last word of the first line: `podman version 5.4.2`. One that takes too long is ended.
fn answer(mut tool: Child, until: Instant) -> Option<String> {
    while matches!(tool.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            let _gone = tool.kill();
            break;
        }
        contain::wait(&mut [], Some(Instant::now() + Duration::from_millis(2)));
    }
    let status = tool.wait().ok()?;
    let mut text = String::new();
    tool.stdout.take()?.take(4096).read_to_string(&mut text).ok()?;
    let line = text.lines().next()?;
    // `uvx 0.5.1 (abc 2026-01-01)` ends in where it was built.
    let words = line.split(" (").next()?.split_whitespace();
    status.success().then(|| words.last().map(String::from)).flatten()
}
