//! What the machine wants done, for whoever can do it.

use crate::relay::policy::Signs;
use std::time::Duration;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Act {
    /// Start the server.
    Start,
    /// End the server; the host is not to notice. Or it has failed to come back.
    Rest { failed: bool },
    /// End the session.
    End(Over),
    /// Say this to the server.
    ToServer(Vec<u8>),
    /// Say this to the host.
    ToHost(Vec<u8>),
    /// Everything was said that the host will ever say.
    CloseInput,
    /// The host says nothing more: the server's time is up, whatever it is doing.
    Hurry,
    /// Write this down.
    Tell(Told),
}

/// Why a session ends that we end ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Over {
    /// The host has closed its end.
    HostClosed,
    /// The server did not introduce itself in time.
    InitTimeout,
}

/// What is worth writing down.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Told {
    /// It begins to leave, and why it may.
    Slept(Signs),
    /// It was looked for signs, and what there are is not enough.
    Stayed(Signs),
    /// It is gone, and why it might.
    Asleep(Signs),
    /// It is being started.
    Waking,
    /// It is back, after this long.
    Woke(Duration),
    /// It did not come back.
    WakeFailed(String),
    /// It is not quite what it was before.
    Differs(String),
}
