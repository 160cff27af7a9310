//! The helper: one binary that is a bad server, a host or a bystander, as its arguments say.
//!
//! `EXE __misbehave VERB TOKEN [ROLL [DEADLINE]]`. The token marks every process of a cell. The
//! roll is a file to which each member of the tree adds a line when it has become what it is to
//! be; when the file vanishes the play is called off, and everybody leaves. Nobody stays longer
//! than [`LIFETIME`], whatever happens: the kit itself must never leak for long.

mod acts;
mod bystander;
mod host;
mod process;
mod serve;

use std::env;
use std::ffi::{CString, OsString};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use process::{leave, now_ns};

/// The argument by which a binary knows that it is to play a part.
pub(crate) const FLAG: &str = "__misbehave";
/// The verb that plays a host.
pub(crate) const HOST: &str = "host";
/// How long any helper process lives at most.
const LIFETIME: Duration = Duration::from_secs(60);

/// Plays a part and never returns, if the first argument says so; returns at once otherwise.
///
/// Call it first thing in `main` of every binary that carries the kit.
pub fn misbehave_if_asked() {
    let mut args = env::args_os();
    let Some(exe) = args.next() else { return };
    if args.next().is_none_or(|flag| flag != FLAG) {
        return;
    }
    if bystander::is_asked() {
        bystander::stand();
    }
    let verb = args.next().and_then(|verb| verb.into_string().ok()).unwrap_or_default();
    if verb == HOST {
        host::play();
    }
    let token = args.next().unwrap_or_default();
    let roll = args.next().map(PathBuf::from).filter(|roll| roll.exists());
    let deadline = args.next().and_then(|ns| ns.to_str()?.parse().ok());
    let lifetime = u64::try_from(LIFETIME.as_nanos()).unwrap_or(u64::MAX);
    let deadline = deadline.unwrap_or_else(|| now_ns().saturating_add(lifetime));
    let script = Script { exe, verb, token, roll, deadline };
    script.arm();
    acts::play(&script);
    leave(2)
}

/// What a member of the tree has to know; it is inherited by fork and handed on by exec.
#[derive(Clone, Debug)]
struct Script {
    exe: OsString,
    verb: String,
    token: OsString,
    roll: Option<PathBuf>,
    /// On the monotonic clock, in nanoseconds, so that it means the same after an exec.
    deadline: u64,
}

impl Script {
    /// Tells the runner something through the roll.
    fn note(&self, line: &str) {
        let Some(roll) = &self.roll else { return };
        // Never created anew: a roll that has vanished calls the play off.
        if let Ok(mut file) = OpenOptions::new().append(true).open(roll) {
            file.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }

    /// Reports that this process has become what it is to be.
    fn up(&self) {
        self.note("up");
    }

    /// Reports that this machine does not allow the misbehaviour.
    fn impossible(&self, why: &str) {
        self.note(&format!("skip {why}"));
    }

    /// Waits until that many members have reported, or the machine has refused.
    fn await_roll(&self, members: usize) {
        let Some(roll) = &self.roll else { return };
        let complete = || {
            let text = std::fs::read_to_string(roll).unwrap_or_default();
            text.lines().filter(|line| *line == "up").count() >= members || text.contains("skip ")
        };
        crate::world::until(Duration::from_secs(10), complete);
    }

    /// Whether this process should leave: its time is up, or the play was called off.
    fn is_over(&self) -> bool {
        now_ns() >= self.deadline || self.roll.as_ref().is_some_and(|roll| !roll.exists())
    }

    /// Shows a sign of life by which even a process that is never seen is known to live; false if
    /// this process should leave.
    fn pulse(&self) -> bool {
        let touched = self.roll.as_ref().is_none_or(|roll| process::touch(roll));
        touched && now_ns() < self.deadline
    }

    /// Sits until the end, deaf to everything that can be blocked.
    fn linger(&self) -> ! {
        while !self.is_over() {
            process::pause(Duration::from_millis(500));
        }
        leave(0)
    }

    /// Has the kernel end this process a little after its deadline, even if it is stopped, spins,
    /// or is traced. Timers do not survive fork and exec, so every member arms its own.
    fn arm(&self) {
        process::end_at(self.deadline.saturating_add(2_000_000_000));
    }

    /// The command line by which another member plays `verb`.
    fn argv(&self, verb: &str) -> Vec<CString> {
        let roll = self.roll.clone().unwrap_or_default().into_os_string();
        let deadline = OsString::from(self.deadline.to_string());
        [self.exe.clone(), FLAG.into(), verb.into(), self.token.clone(), roll, deadline]
            .into_iter()
            // An argument has come from the kernel as a C string and so has no zero byte.
            .filter_map(|word| CString::new(word.into_vec()).ok())
            .collect()
    }
}
