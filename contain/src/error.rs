//! What can go wrong when a tree is started, one error per operation.

use std::fmt;
use std::io;

/// Why a tree could not be started.
#[derive(Debug)]
pub enum Error {
    /// The command itself could not be executed.
    Exec(io::Error),
    /// Something of ours failed before the command could run; `0` names it.
    Spawn(SpawnStage, io::Error),
    /// The backend was asked for by name and this machine does not allow it.
    Backend(&'static str, String),
    /// The holder must be single-threaded: a fork copies only the calling thread.
    Threads(usize),
}

/// The step of a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnStage {
    /// `/proc` is not mounted or not readable.
    Proc,
    /// The socket between holder and guardian.
    Socket,
    /// Forking the guardian.
    Guardian,
    /// Creating namespaces for the `pidns` backend.
    Namespace,
    /// Forking the command.
    Fork,
    /// Giving the command its standard streams.
    Stdio,
    /// Starting the holder process for a library owner.
    Holder,
    /// Watching for signals.
    Signals,
    /// Making the job that holds the tree.
    Job,
    /// Finding the directory that the system's own programs are in.
    System,
    /// Listing the processes of this machine.
    Processes,
}

impl SpawnStage {
    fn words(self) -> &'static str {
        match self {
            SpawnStage::Proc => "read /proc",
            SpawnStage::Socket => "make the guardian's socket",
            SpawnStage::Guardian => "fork the guardian",
            SpawnStage::Namespace => "make a pid namespace",
            SpawnStage::Fork => "fork the command",
            SpawnStage::Stdio => "hand over the standard streams",
            SpawnStage::Holder => "start the holder",
            SpawnStage::Signals => "watch for signals",
            SpawnStage::Job => "make the job that holds the tree",
            SpawnStage::System => "find the system's directory",
            SpawnStage::Processes => "list the processes",
        }
    }
}

impl Error {
    /// The exit code a transparent wrapper gives for it: 127 not found, 126 not executable,
    /// 125 for a failure of ours.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Exec(e) if e.kind() == io::ErrorKind::NotFound => 127,
            Error::Exec(_) => 126,
            _ => 125,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Exec(_) => f.write_str("execute the command"),
            Error::Spawn(stage, _) => f.write_str(stage.words()),
            Error::Backend(name, why) => write!(f, "use the {name} backend: {why}"),
            Error::Threads(n) => write!(f, "fork the guardian from a process with {n} threads"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Exec(e) | Error::Spawn(_, e) => Some(e),
            Error::Backend(..) | Error::Threads(_) => None,
        }
    }
}
