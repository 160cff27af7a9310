//! How a session ends: each death, done to whom it is meant for and to nobody else.

use std::fs;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use super::place::Place;
use super::stage::{Stage, as_from_a_terminal};
use crate::misbehave::FLAG;
use crate::table::Death;
use crate::world::witness::command_line;
use crate::world::{Process, Stat, pids, until};

/// Those whom a death may strike.
pub(super) struct Struck<'a> {
    pub(super) stage: &'a mut Stage,
    pub(super) wrapper: Option<Process>,
    pub(super) guardian: Option<Process>,
}

impl Struck<'_> {
    /// Lets the death come. Whoever is gone already is not an error: the tree may have ended.
    pub(super) fn strike(&mut self, death: Death) -> Result<(), String> {
        match death {
            Death::StdinEof => self.order("close-stdin"),
            Death::HostClosesPipes => self.order("close-pipes"),
            Death::Sigterm => self.signal(libc::SIGTERM),
            Death::Sigint => self.signal(libc::SIGINT),
            Death::Sighup => self.signal(libc::SIGHUP),
            Death::SigkillWrapper => self.signal(libc::SIGKILL),
            Death::SigtermTwice => {
                self.signal(libc::SIGTERM)?;
                wait(Duration::from_millis(5));
                self.signal(libc::SIGTERM)
            }
            Death::SigtermThenSigkill => {
                self.signal(libc::SIGTERM)?;
                wait(Duration::from_millis(10));
                self.signal(libc::SIGKILL)
            }
            Death::SigkillGroup => self.kill_group(),
            Death::SigkillGuardian => signal(self.guardian, "guardian", libc::SIGKILL),
            Death::SigkillBoth => {
                // Stopped first, so that neither can act on the other's death: to them it is one
                // instant.
                for number in [libc::SIGSTOP, libc::SIGKILL] {
                    signal(self.guardian, "guardian", number)?;
                    self.signal(number)?;
                }
                // A kill takes a moment; the next command comes after it, not during it.
                let dead = |one: Option<Process>| one.is_none_or(|p| !p.is_alive());
                until(Duration::from_secs(1), || dead(self.wrapper) && dead(self.guardian));
                Ok(())
            }
            Death::SigkillHost => {
                self.stage.kill();
                Ok(())
            }
            Death::Close | Death::Drop | Death::Panic => {
                self.stage.say(death.name()).map_err(|error| format!("owner: {error}"))
            }
        }
    }

    fn order(&mut self, order: &str) -> Result<(), String> {
        self.stage.ask(order, Duration::ZERO).map(drop)
    }

    fn signal(&self, number: i32) -> Result<(), String> {
        signal(self.wrapper, "wrapper", number)
    }

    fn kill_group(&self) -> Result<(), String> {
        let wrapper = self.wrapper.ok_or("no wrapper was found")?;
        // The host has not reaped the wrapper, so the number still means its group.
        if wrapper.stat().is_some() {
            // SAFETY: kill takes two numbers and touches no memory of ours.
            unsafe { libc::kill(-wrapper.pid, libc::SIGKILL) };
        }
        Ok(())
    }
}

fn signal(whom: Option<Process>, who: &str, number: i32) -> Result<(), String> {
    let whom = whom.ok_or_else(|| format!("no {who} was found"))?;
    match whom.signal(number) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(format!("signalling the {who}: {error}"))
        }
        _ => Ok(()),
    }
}

/// A short distance between two events of one death.
fn wait(time: Duration) {
    until(time, || false);
}

/// The guardian: a child of the wrapper with the wrapper's executable that is not the server.
pub(super) fn find_guardian(wrapper: Process, place: &Place) -> Option<Process> {
    let executable = fs::read_link(format!("/proc/{}/exe", wrapper.pid)).ok()?;
    helpers_of(wrapper, place).find(|child| {
        fs::read_link(format!("/proc/{}/exe", child.pid)).ok().as_ref() == Some(&executable)
    })
}

/// What an owner program started to hold the tree: the parent of the guardian, which leads a
/// process group of its own. The holder need not be the owner's child. Both may carry the token
/// without being the server; if they do not, the guardian is the parent of whoever of the tree has no
/// parent there.
pub(super) fn find_holder(owner: Process, place: &Place) -> Option<Process> {
    let (server, token) = (server_line(place), place.token.as_bytes());
    // Each command line is read once: of a process that executes another program the next reading is empty,
    // and a member of the tree would look like a helper.
    let carrier = |pid: i32| {
        let line = command_line(pid);
        let carries = line.windows(token.len()).any(|word| word == token);
        let stat = Stat::of(pid).filter(|stat| carries && stat.is_alive(pid))?;
        Some((pid, stat, line.starts_with(&server)))
    };
    let carriers: Vec<(i32, Stat, bool)> =
        pids().filter(|pid| *pid != owner.pid).filter_map(carrier).collect();
    let carries = |pid: i32| carriers.iter().any(|(other, ..)| *other == pid);
    let helps = |pid: i32| carriers.iter().any(|(other, _, member)| *other == pid && !member);
    let told = carriers
        .iter()
        .find(|(pid, stat, member)| stat.group == *pid && !member && helps(stat.parent));
    let holder = match told {
        Some((_, guardian, _)) => guardian.parent,
        None => {
            let executable = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
            let ours = executable(owner.pid);
            let is_helper = |pid: &i32| *pid != owner.pid && executable(*pid) == ours;
            // Bystanders have no parent there either; theirs is the runner, whose own is a stranger.
            carriers.iter().filter(|(_, stat, _)| !carries(stat.parent)).find_map(
                |(_, root, _)| {
                    let guardian = Stat::of(Some(root.parent).filter(is_helper)?)?;
                    Some(guardian.parent).filter(is_helper)
                },
            )?
        }
    };
    Process::now(holder)
}

fn server_line(place: &Place) -> Vec<u8> {
    [place.program.as_os_str().as_encoded_bytes(), b"\0", FLAG.as_bytes()].concat()
}

fn helpers_of(parent: Process, place: &Place) -> impl Iterator<Item = Process> {
    let server = server_line(place);
    pids().filter_map(move |pid| {
        let stat = Stat::of(pid).filter(|stat| stat.parent == parent.pid && stat.is_alive(pid))?;
        let is_server = command_line(pid).starts_with(&server);
        (!is_server).then_some(Process { pid, start: stat.start })
    })
}

/// Runs the command that finishes the work of a wrapper and guardian that were both killed.
pub(super) fn sweep(place: &Place) -> Result<(), String> {
    let Some(argv) = &place.sweep else {
        return Ok(());
    };
    let mut command = place.command(argv);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    as_from_a_terminal(&mut command);
    let mut child = command.spawn().map_err(|error| format!("starting the sweep: {error}"))?;
    let ended = until(Duration::from_secs(10), || {
        child.try_wait().is_ok_and(|status: Option<_>| status.is_some())
    });
    if !ended {
        child.kill().and_then(|()| child.wait()).map_err(|error: io::Error| error.to_string())?;
        return Err("the sweep did not end within 10 s".to_owned());
    }
    Ok(())
}
