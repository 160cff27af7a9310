//! What is tried: the wrapper in front of the server, or a library's owner program, or nothing.

use crate::named::named;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

named! {
    /// What is around the host: consoles and jobs are inherited, and hosts differ.
    Around;
    /// A console without a window, as programs with windows give their helpers.
    Console = "console",
    /// No console at all.
    NoConsole = "no-console",
    /// A job of the host's own, out of which nobody may break.
    Job = "in-job",
    /// A job of the host's own, out of which whoever wants to may break.
    OpenJob = "in-open-job",
    /// A job of the host's own, out of which every child is born.
    SilentJob = "in-silent-job",
}

/// What stands between the host and the misbehaving server, and how it is to be treated.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The command line put in front of the server's. Empty for none.
    pub wrap: Vec<OsString>,
    /// A program whose `main` calls [`misbehave_if_asked`](crate::misbehave_if_asked): it plays
    /// host, server and bystanders.
    pub program: PathBuf,
    /// How long after the death everything must be gone.
    pub patience: Duration,
    /// What is around the host, or the owner.
    pub around: Around,
    /// A program that uses a library to hold the tree. It is started in place of host and wrapper
    /// as `OWNER… -- SERVER…`, waits for the line `go` on its stdin, prints `up` once the tree is
    /// started, and obeys the lines `close`, `drop` and `panic`.
    pub owner: Option<Vec<OsString>>,
}

impl Subject {
    /// No wrapper: the server directly under the host. Shows what the misbehaviour leaves behind.
    #[must_use]
    pub fn bare(program: impl Into<PathBuf>) -> Self {
        Self {
            wrap: Vec::new(),
            program: program.into(),
            patience: Duration::from_secs(1),
            around: Around::Console,
            owner: None,
        }
    }

    /// A wrapper in front of the server.
    #[must_use]
    pub fn wrapped<W: Into<OsString>>(
        program: impl Into<PathBuf>,
        wrap: impl IntoIterator<Item = W>,
    ) -> Self {
        Self {
            wrap: wrap.into_iter().map(Into::into).collect(),
            patience: Duration::from_secs(10),
            ..Self::bare(program)
        }
    }

    /// An owner program that holds the tree through a library.
    #[must_use]
    pub fn owner<W: Into<OsString>>(
        program: impl Into<PathBuf>,
        owner: impl IntoIterator<Item = W>,
    ) -> Self {
        Self {
            owner: Some(owner.into_iter().map(Into::into).collect()),
            patience: Duration::from_secs(10),
            ..Self::bare(program)
        }
    }
}
