//! What the tests of sessions share: a place of its own for each, servers, a witness.

use lariat::contain::{Choice, Ladder};
use lariat::session::Config;
use lariat::spec::{Restart, ServerSpec, Servers};
use libtest_mimic::{Failed, Trial};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trials::{Witness, until};

/// Both rungs of the ladder.
pub(crate) const RUNG: Duration = Duration::from_millis(150);

/// The ladder, and the second that the promise adds.
pub(crate) const PROMISE: Duration = Duration::from_millis(2 * 150 + 250 + 1000);

/// For what has nothing to do with a promise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How often the ends are played.
pub(crate) fn rounds() -> usize {
    #[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
    let how_much = std::env::var_os("LARIAT_TRIALS").unwrap_or_default();
    match how_much.to_str() {
        Some("full") => 50,
        Some("quick") => 1,
        _ => 3,
    }
}

/// A directory and a word that nobody else has.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) token: String,
}

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{}-{number}-{name}", std::process::id());
        // The token must not be in the name of the directory: a host may be told that one.
        let token = format!("token-{unique}");
        let dir = std::env::temp_dir().join(format!("sessions-{unique}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        Place { dir, token }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(crate) fn witness(&self) -> Witness {
        Witness::new(&self.token, &[])
    }

    /// Everything is gone in time, and so are the books.
    #[track_caller]
    pub(crate) fn assert_gone(&self, patience: Duration) {
        let mut witness = self.witness();
        let gone = until(patience, || witness.nobody_in(1));
        let left: Vec<String> = witness.look().iter().map(|p| witness.describe(*p)).collect();
        witness.end_all();
        assert!(gone, "left after {patience:?}: {left:?}");
        // A holder strikes its page after the last process has left.
        let struck = until(Duration::from_secs(5), || pages(&self.state()).is_empty());
        assert!(struck, "still in the books: {:?}", pages(&self.state()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut witness = self.witness();
        witness.end_all();
        // What a failed test leaves for a person to see may stay.
        if !std::thread::panicking() {
            let _already_gone = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn pages(state: &Path) -> Vec<PathBuf> {
    let Ok(dir) = std::fs::read_dir(state.join("sessions")) else { return Vec::new() };
    dir.flatten().map(|entry| entry.path()).collect()
}

/// A server that misbehaves in this way, and is not started again.
pub(crate) fn server(verb: &str, token: &str) -> ServerSpec {
    let me = std::env::current_exe().expect("a name").display().to_string();
    let mut spec = ServerSpec::new(me).args(["__misbehave", verb, token]);
    spec.restart = Restart::Never;
    spec
}

/// A command of the shell's as a server.
pub(crate) fn shell(script: &str, token: &str) -> ServerSpec {
    let mut spec = ServerSpec::new("sh").args(["-c", script, token]);
    spec.restart = Restart::Never;
    spec
}

/// Reads and never answers.
pub(crate) fn mute(token: &str) -> ServerSpec {
    shell("sh -c 'sleep 60; :' $0 & cat >/dev/null; wait", token)
}

/// Answers for ever, and never to the end.
pub(crate) fn babbling(token: &str) -> ServerSpec {
    shell("sh -c 'sleep 60; :' $0 & while :; do printf '{\"jsonrpc\":'; sleep 0.05; done", token)
}

pub(crate) fn config(place: &Path, servers: Servers) -> Config {
    let mut config = Config::new(place.join("state"), servers);
    config.ladder = Ladder { grace: RUNG, term_grace: RUNG, ..Ladder::default() };
    config.backend = Choice::Auto;
    config
}

/// Servers by name.
pub(crate) fn named(servers: impl IntoIterator<Item = (&'static str, ServerSpec)>) -> Servers {
    servers.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect()
}

/// A runtime with threads, as hosts have.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Tests by name. What a test says of its failure is above.
pub(crate) fn trials<const N: usize>(tests: [(&str, fn()); N]) -> Vec<Trial> {
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            std::panic::catch_unwind(test).map_err(|_| Failed::from("see above"))
        })
    };
    tests.into_iter().map(trial).collect()
}
