//! What can fail, how, and to whom. Only words live here.

/// Which process of the run the fault goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Wrapper,
    Guardian,
    Child,
}
use Target::{Child as Born, Guardian, Wrapper};

impl Target {
    /// The call at which it is caught: the first that it makes and nobody before it.
    pub(crate) fn snare(self) -> Option<&'static str> {
        match self {
            Wrapper => None,
            Guardian => Some("setpgid"),
            Born => Some("setpgid"),
        }
    }
}

/// A kind of system call, how it fails in the wild, and who makes it.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// As strace names them; `?` for those that not every architecture has.
    pub(crate) set: &'static str,
    /// The first is tried always, the others in a full run.
    pub(crate) errors: &'static [&'static str],
    pub(crate) by: &'static [Target],
    /// Where in the table of a sample it is, beyond failing once: k(illed there), l(asting
    /// failure), a(lone: the other of wrapper and guardian was killed).
    pub(crate) sample: &'static str,
}

/// Written as a table: one line per kind of call.
macro_rules! calls {
    ($($name:literal $set:literal [$($error:literal)+] [$($by:ident)+] $sample:literal;)+) => {
        &[$(Call { name: $name, set: $set, errors: &[$($error),+], by: &[$($by),+], sample: $sample }),+]
    };
}

#[rustfmt::skip]
pub(crate) const CALLS: &[Call] = calls! {
    "fork"        "?fork,?vfork,clone,clone3" ["EAGAIN" "ENOMEM" "ENOSYS"] [Wrapper Guardian]      "kl";
    "open"        "?open,openat"              ["EMFILE" "ENFILE" "ENOMEM"] [Wrapper Guardian]      "kla";
    "read"        "read"                      ["EIO"]                      [Wrapper Guardian]      "";
    "write"       "write"                     ["ENOSPC" "EIO"]             [Wrapper Guardian]      "kl";
    "mkdir"       "?mkdir,mkdirat"            ["ENOSPC" "EACCES"]          [Wrapper]               "kl";
    "rmdir"       "?rmdir"                    ["EBUSY"]                    [Guardian]              "";
    "rename"      "?rename,renameat,renameat2" ["ENOSPC"]                  [Wrapper]               "k";
    "unlink"      "?unlink,unlinkat"          ["EPERM"]                    [Wrapper Guardian]      "a";
    "flock"       "flock"                     ["ENOLCK" "EINTR"]           [Wrapper]               "";
    "readdir"     "getdents64"                ["ENOMEM"]                   [Wrapper Guardian]      "";
    "stat"        "?stat,?fstat,?newfstatat,statx" ["ENOMEM"]              [Wrapper Guardian]      "";
    "pidfd_open"  "pidfd_open"                ["EMFILE" "ENOSYS"]          [Wrapper Guardian]      "la";
    "pidfd_send"  "pidfd_send_signal"         ["EPERM"]                    [Guardian]              "";
    "socketpair"  "socketpair"                ["EMFILE"]                   [Wrapper]               "";
    "sendto"      "sendto"                    ["ENOBUFS" "EAGAIN" "ENOMEM"] [Wrapper Guardian]     "kl";
    "recvfrom"    "recvfrom"                  ["ENOMEM" "EAGAIN"]          [Wrapper Guardian]      "kl";
    "pipe2"       "pipe2"                     ["EMFILE" "ENFILE"]          [Wrapper Guardian]      "";
    "fcntl"       "fcntl"                     ["EMFILE"]                   [Wrapper Guardian Born] "";
    "dup2"        "?dup2,dup3"                ["EMFILE" "EBUSY"]           [Guardian Born]         "";
    "poll"        "?poll,ppoll"               ["ENOMEM" "EINTR"]           [Wrapper Guardian]      "ka";
    "wait"        "wait4"                     ["EINTR"]                    [Wrapper Guardian]      "";
    "signalfd"    "signalfd4"                 ["EMFILE"]                   [Wrapper Guardian]      "k";
    "prctl"       "prctl"                     ["EPERM" "EINVAL"]           [Wrapper Guardian Born] "la";
    "rlimit"      "prlimit64"                 ["EPERM"]                    [Wrapper Born]          "";
    "close_range" "close_range"               ["ENOSYS"]                   [Guardian Born]         "l";
    "random"      "getrandom"                 ["ENOSYS"]                   [Wrapper]               "";
    "setsid"      "setsid"                    ["EPERM"]                    [Guardian]              "k";
    "setpgid"     "setpgid"                   ["EPERM"]                    [Born]                  "k";
    "exec"        "execve"                    ["ENOMEM" "EACCES"]          [Born]                  "k";
};

/// What happens at the Nth call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Once(&'static str),
    /// From then on every time.
    Lasting(&'static str),
    /// The caller is killed just before it.
    Kill,
}

impl Fault {
    /// For strace, at the Nth call.
    pub(crate) fn inject(self, n: u32) -> String {
        match self {
            Fault::Once(error) => format!("error={error}:when={n}"),
            Fault::Lasting(error) => format!("error={error}:when={n}+"),
            Fault::Kill => format!("signal=KILL:when={n}"),
        }
    }
}

/// A way to run the wrapper.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) backend: &'static str,
    pub(crate) mode: &'static str,
    /// Also in a sample.
    pub(crate) main: bool,
}

#[rustfmt::skip]
pub(crate) const COLUMNS: &[Column] = &[
    Column { backend: "descent", mode: "direct", main: true },
    Column { backend: "descent", mode: "relay", main: false },
    Column { backend: "cgroup", mode: "direct", main: false },
    Column { backend: "cgroup", mode: "relay", main: true },
    Column { backend: "descent", mode: "watched", main: false },
    Column { backend: "cgroup", mode: "watched", main: false },
];
