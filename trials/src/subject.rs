//! What is tried: the wrapper in front of the server, or a library's owner program, or nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What stands between the host and the misbehaving server, and how it is to be treated.
///
/// Start from [`bare`](Subject::bare), [`wrapped`](Subject::wrapped) or
/// [`owner`](Subject::owner) and set the fields that differ.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The command line put in front of the server's, such as `lariat run --`. Empty for none.
    pub wrap: Vec<OsString>,
    /// A program whose `main` calls [`misbehave_if_asked`](crate::misbehave_if_asked): it plays
    /// host, server and bystanders.
    pub program: PathBuf,
    /// Whether the wrapper has a guardian: a child of the same executable, seen from outside.
    pub guardian: bool,
    /// The command to run after [`Death::SigkillBoth`](crate::Death::SigkillBoth).
    pub sweep: Option<Vec<OsString>>,
    /// The uid (and gid) of everything that is started, if the runner is root.
    pub user: Option<u32>,
    /// How long after the death everything must be gone.
    pub patience: Duration,
    /// Whether stdin and stdout are sockets, as under Node, instead of pipes.
    pub socketpair: bool,
    /// Whether the host reads the wrapper's stderr. Many do not.
    pub drains_stderr: bool,
    /// A program that uses a library to hold the tree. It is started in place of host and wrapper
    /// as `OWNER… -- SERVER…`, prints `up` once the tree is started, and obeys the lines `close`,
    /// `drop` and `panic` on its stdin.
    pub owner: Option<Vec<OsString>>,
}

impl Subject {
    /// No wrapper: the server directly under the host. Shows what the misbehaviour leaves behind.
    #[must_use]
    pub fn bare(program: impl Into<PathBuf>) -> Self {
        Self {
            wrap: Vec::new(),
            program: program.into(),
            guardian: false,
            sweep: None,
            user: None,
            patience: Duration::from_millis(400),
            socketpair: false,
            drains_stderr: true,
            owner: None,
        }
    }

    /// A wrapper in front of the server; two seconds of patience, no guardian, until told.
    #[must_use]
    pub fn wrapped<W: Into<OsString>>(
        program: impl Into<PathBuf>,
        wrap: impl IntoIterator<Item = W>,
    ) -> Self {
        Self {
            wrap: wrap.into_iter().map(Into::into).collect(),
            patience: Duration::from_secs(2),
            ..Self::bare(program)
        }
    }

    /// An owner program that holds the tree through a library; two seconds of patience.
    #[must_use]
    pub fn owner<W: Into<OsString>>(
        program: impl Into<PathBuf>,
        owner: impl IntoIterator<Item = W>,
    ) -> Self {
        Self {
            owner: Some(owner.into_iter().map(Into::into).collect()),
            patience: Duration::from_secs(2),
            ..Self::bare(program)
        }
    }
}
