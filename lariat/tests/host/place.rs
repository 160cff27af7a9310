//! A place for one test: a directory of its own, and Lariat set up to keep its books in it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long anything here may take on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A directory that goes when the test does.
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lariat-place-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Place { dir: dir.canonicalize().unwrap() }
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `lariat VERB` with its state in here, ready for more options, `--` and a command.
    pub(crate) fn lariat(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lariat"));
        command.arg(verb).arg("--state-dir").arg(self.path("state"));
        command.current_dir(&self.dir);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A guardian may be writing its last line just now.
        trials::until(PATIENCE, || fs::remove_dir_all(&self.dir).is_ok() || !self.dir.exists());
    }
}
