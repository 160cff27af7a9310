//! The helper: one binary that is a bad server, a host or a bystander, as its arguments say.
//!
//! `EXE __misbehave VERB TOKEN [ROLL]`. The token marks every process of a cell. The roll is a file
//! to which each member of the tree adds a line when it has become what it is to be; when the file
//! vanishes the play is called off, and everybody leaves. Nobody stays longer than [`LIFETIME`].

mod acts;
mod host;

use super::world::until;
use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};

/// The argument by which a binary knows that it is to play a part.
pub(crate) const FLAG: &str = "__misbehave";
/// The verb that plays a host.
pub(crate) const HOST: &str = "host";
/// The variable by which a bystander knows its part, although its command line is the server's.
pub(crate) const BYSTANDER: &str = "LARIAT_TRIAL_BYSTANDER";
/// What a bystander says when somebody has sent it Ctrl-C or Ctrl-Break.
pub(crate) const INTERRUPTED: &str = "interrupted";
/// What the runner adds to the roll when the death comes.
pub(crate) const END: &str = "end";

/// What a line begins with by which a member says that it is there.
pub(crate) const UP: &str = "up ";
/// How long any helper process lives at most.
const LIFETIME: Duration = Duration::from_secs(180);

/// Plays a part and never returns, if the first argument says so; returns at once otherwise.
///
/// Call it first thing in `main` of every binary that carries the kit.
pub fn misbehave_if_asked() {
    let mut args = env::args_os();
    let Some(exe) = args.next() else { return };
    if args.next().is_none_or(|flag| flag != FLAG) {
        return;
    }
    if env::vars_os().any(|(name, _)| name == BYSTANDER) {
        stand();
    }
    let verb = args.next().and_then(|verb| verb.into_string().ok()).unwrap_or_default();
    if verb == HOST {
        host::play();
    }
    let token = args.next().unwrap_or_default();
    let roll = args.next().map(PathBuf::from).filter(|roll| roll.exists());
    let script = Script { exe, verb, token, roll, deadline: Instant::now() + LIFETIME };
    acts::play(&script);
    leave(2)
}

#[expect(clippy::disallowed_methods, clippy::exit, reason = "a part is over; nothing to drop")]
fn leave(code: i32) -> ! {
    std::process::exit(code)
}

/// Writes a line of its own into the roll. Two who append at the same time can write over each other under
/// Wine, so it is looked for and written again. Never created anew: a roll that has vanished calls the play off.
pub(crate) fn note(roll: &Path, line: &str) {
    until(Duration::from_secs(10), || {
        let Ok(text) = std::fs::read_to_string(roll) else { return !roll.exists() };
        let is_there = text.lines().any(|there| there == line);
        if let (false, Ok(mut file)) = (is_there, OpenOptions::new().append(true).open(roll)) {
            file.write_all(format!("{line}\n").as_bytes()).ok();
        }
        is_there
    });
}

/// What a member of the tree has to know.
#[derive(Clone, Debug)]
struct Script {
    exe: OsString,
    verb: String,
    token: OsString,
    roll: Option<PathBuf>,
    deadline: Instant,
}

impl Script {
    /// Reports that this process, or one that cannot speak for itself, is what it is to be.
    fn up(&self) {
        if let Some(roll) = &self.roll {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            note(roll, &format!("{UP}{}-{}", std::process::id(), now.as_nanos()));
        }
    }

    /// Whether this process should leave: its time is up, or the play was called off.
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.roll.as_ref().is_some_and(|roll| !roll.exists())
    }

    /// Whether the runner has written down that the death has come.
    fn end_has_begun(&self) -> bool {
        let text = self.roll.as_ref().and_then(|roll| std::fs::read_to_string(roll).ok());
        text.is_none_or(|text| text.lines().any(|line| line == END))
    }

    /// Sits until the end.
    fn linger(&self) -> ! {
        while !self.is_over() {
            until(Duration::from_millis(700), || false);
        }
        leave(0)
    }

    /// Another member that plays `verb`, without streams.
    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(self.words(verb)).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        command
    }

    fn words(&self, verb: &str) -> [OsString; 4] {
        let roll = self.roll.clone().unwrap_or_default().into_os_string();
        [FLAG.into(), verb.into(), self.token.clone(), roll]
    }

    /// Starts a member with these creation flags.
    fn start(&self, verb: &str, flags: u32) -> std::io::Result<Child> {
        self.command(verb).creation_flags(flags).spawn()
    }
}

static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Hears Ctrl-C and Ctrl-Break, remembers it and does nothing about it.
fn become_deaf() {
    unsafe extern "system" fn deaf(event: u32) -> i32 {
        let heard = event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT;
        WAS_INTERRUPTED.fetch_or(heard, Ordering::SeqCst);
        i32::from(heard)
    }
    // SAFETY: the handler lives as long as the program and touches an atomic only.
    unsafe { SetConsoleCtrlHandler(Some(deaf), 1) };
}

/// Plays a bystander: says that it is there, and at the end of input whether it was interrupted.
fn stand() -> ! {
    become_deaf();
    let mut out = std::io::stdout();
    out.write_all(b"up\n").and_then(|()| out.flush()).ok();
    std::thread::spawn(|| {
        // The runner may have been killed in a way that leaves our pipe open.
        until(LIFETIME, || false);
        leave(3)
    });
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    if WAS_INTERRUPTED.load(Ordering::SeqCst) {
        out.write_all(INTERRUPTED.as_bytes()).and_then(|()| out.flush()).ok();
    }
    leave(0)
}
