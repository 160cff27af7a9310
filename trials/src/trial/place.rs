//! Where a cell takes place: its token, its directory, its environment and its user.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::misbehave::FLAG;
use crate::subject::Subject;
use crate::table::Misbehaviour;
use crate::world::until;

/// A marked place of its own, removed at the end.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) token: String,
    pub(super) program: PathBuf,
    pub(super) wrap: Vec<OsString>,
    pub(super) owner: Option<Vec<OsString>>,
    pub(super) sweep: Option<Vec<OsString>>,
    directory: PathBuf,
    home: PathBuf,
    roll: PathBuf,
    user: Option<u32>,
}

/// What the members have reported so far.
#[derive(Debug, Default)]
pub(super) struct Roll {
    pub(super) up: usize,
    pub(super) in_call: bool,
    pub(super) skipped: Option<String>,
    pub(super) failed: Option<String>,
}

impl Place {
    pub(super) fn new(subject: &Subject) -> io::Result<Self> {
        let token = token();
        let directory = std::env::temp_dir().join(&token);
        fs::create_dir(&directory)?;
        let mut place = Self {
            home: directory.join("home"),
            roll: directory.join("roll"),
            program: subject.program.clone(),
            wrap: subject.wrap.clone(),
            owner: subject.owner.clone(),
            sweep: subject.sweep.clone(),
            user: subject.user.filter(|_| is_root()),
            directory,
            token,
        };
        fs::create_dir(&place.home)?;
        fs::write(&place.roll, "")?;
        if let Some(user) = place.user {
            for path in [&place.directory, &place.home, &place.roll] {
                chown(path, Some(user), Some(user))?;
            }
            place.program = place.within_reach(&subject.program, user)?;
            let (mut wrap, mut owner, mut sweep) =
                (place.wrap.clone(), place.owner.clone(), place.sweep.clone());
            let lines = [Some(&mut wrap), owner.as_mut(), sweep.as_mut()];
            for line in lines.into_iter().flatten() {
                let first = line.first().map(PathBuf::from).filter(|p| p.is_absolute());
                if let Some(first) = first {
                    line[0] = place.within_reach(&first, user)?.into_os_string();
                }
            }
            (place.wrap, place.owner, place.sweep) = (wrap, owner, sweep);
        }
        Ok(place)
    }

    /// The server's command line, which is the bystanders' too.
    pub(super) fn server(&self, misbehaviour: Misbehaviour) -> Vec<OsString> {
        let program = self.program.clone().into_os_string();
        let roll = self.roll.clone().into_os_string();
        vec![program, FLAG.into(), misbehaviour.name().into(), self.token.clone().into(), roll]
    }

    /// A command as a host would start it: six variables, the cell's user, a home of its own.
    pub(super) fn command<W: Into<OsString>>(&self, argv: impl IntoIterator<Item = W>) -> Command {
        let mut argv = argv.into_iter().map(Into::into);
        let mut command = Command::new(argv.next().unwrap_or_default());
        command.args(argv).env_clear().current_dir(&self.home);
        #[expect(clippy::disallowed_methods, reason = "a host hands its own PATH on")]
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command.env("HOME", &self.home).env("PATH", path);
        for (name, value) in
            [("LOGNAME", "trial"), ("USER", "trial"), ("SHELL", "/bin/sh"), ("TERM", "dumb")]
        {
            command.env(name, value);
        }
        if let Some(user) = self.user {
            // The standard library drops the supplementary groups when root gives up its uid.
            command.uid(user).gid(user);
        }
        command
    }

    pub(super) fn roll(&self) -> Roll {
        let text = fs::read_to_string(&self.roll).unwrap_or_default();
        let mut roll = Roll::default();
        for line in text.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("up", _) => roll.up += 1,
                ("call", _) => roll.in_call = true,
                ("skip", why) => roll.skipped = Some(why.to_owned()),
                ("failed", why) => roll.failed = Some(why.to_owned()),
                _ => {}
            }
        }
        roll
    }

    /// Whether nobody shows a sign of life any more. Who hops does so with every hop.
    pub(super) fn is_still(&self) -> bool {
        let pulse = || fs::metadata(&self.roll).and_then(|roll| roll.modified()).ok();
        let before = pulse();
        !until(Duration::from_millis(60), || pulse() != before)
    }

    /// Sends everybody home who still looks at the roll. Hopping processes cannot be caught by
    /// looking, so this is what ends them after a failed cell.
    pub(super) fn call_off(&self) {
        fs::remove_file(&self.roll).ok();
    }

    /// Removes the directory. Says why not, if it is not gone for good.
    pub(super) fn clear(&self) -> Option<String> {
        let mut last = None;
        let gone = until(Duration::from_secs(1), || {
            last = fs::remove_dir_all(&self.directory).err();
            !self.directory.exists()
        });
        let why = last.map_or_else(String::new, |error| format!(": {error}"));
        (!gone).then(|| format!("{} is still there{why}", self.directory.display()))
    }

    /// The program itself if that user may execute it where it is, else a copy.
    fn within_reach(&self, program: &Path, user: u32) -> io::Result<PathBuf> {
        if is_executable_by(program, user) {
            return Ok(program.to_owned());
        }
        let name = program.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let copy = self.directory.join(name);
        if !copy.exists() {
            fs::copy(program, &copy)?;
            chown(&copy, Some(user), Some(user))?;
        }
        Ok(copy)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.directory).ok();
    }
}

/// A word that no other cell has. Its last letter keeps one token from beginning another.
fn token() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("trial-{}-{:x}-{count}x", std::process::id(), since.as_nanos())
}

pub(super) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and touches no memory of ours.
    unsafe { libc::geteuid() == 0 }
}

/// Whether the mode bits let that user reach and execute a file. Access lists are not read; if
/// they say otherwise the copy that follows is harmless.
fn is_executable_by(file: &Path, user: u32) -> bool {
    let allows = |path: &Path, bits: u32| {
        fs::metadata(path).is_ok_and(|found| {
            let shift = match () {
                () if found.uid() == user => 6,
                () if found.gid() == user => 3,
                () => 0,
            };
            (found.mode() >> shift) & bits == bits
        })
    };
    let Ok(file) = file.canonicalize() else {
        return false;
    };
    allows(&file, 0o5) && file.ancestors().skip(1).all(|directory| allows(directory, 0o1))
}
