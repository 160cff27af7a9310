//! Process trees that cannot outlive their owner.
//!
//! A program that starts another program usually remembers a pid and hopes. This crate holds the
//! whole tree instead: every process that descends from the command, however it detached itself.
//! When the owner ends it (politely, by dropping the handle, by panicking, by being killed with
//! `SIGKILL`), the tree is emptied, and *empty* is what the kernel said, never what a `kill`
//! returned.
//!
//! ```text
//! owner ⇄ socket ⇄ holder ⇄ socket ⇄ guardian → command → …
//! ```
//!
//! The guardian is the command's parent and a subreaper, so each orphan below it comes back to it.
//! The socket closing is the one death signal: an orderly end, `Drop`, a panic and `SIGKILL` of the
//! owner all end in the same function. The holder is a subreaper too and takes over if the guardian
//! alone is killed.
//!
//! | backend | needs | holds | does not hold |
//! | --- | --- | --- | --- |
//! | `cgroup` | root or a delegated cgroup v2 subtree | every descendant, also after SIGKILL of holder and guardian (the next sweep finds the leaf) | a privileged process that moves itself elsewhere *and* outlives both |
//! | `descent` | nothing | every descendant while holder or guardian lives; after both died, those that kept the [`Mark`] | a process of another user (sudo) cannot be signalled: it is named as a survivor |
//! | `pidns` | root or user namespaces; by choice | every descendant, even if everything of ours is killed at once | the server sees another process world |
//! | `session` | macOS | every descendant that stays in the session or below one that does, and whoever shows the [`Mark`], while one of the two lives; after both died, those who show the mark | a process that left both before it was seen, and cleared its environment or is a program of the system |
//! | `job` | Windows | every descendant, even if everything of ours is killed at once | a process that another program starts for the server (a service, the task scheduler) |
//!
//! On macOS the owner executes the guardian itself, and behind that is a process that ends the tree if
//! the guardian alone is killed.
//!
//! On Windows there is no guardian: the owner holds the handle of a job object, and the kernel ends
//! every member when that handle closes, whoever or whatever closes it.
//!
//! The crate is synchronous, knows processes and nothing else (no protocol, no containers, no
//! async runtime) and holds all the `unsafe` of the product but that of the children that misbehave
//! in trials. Linux, Windows and macOS; elsewhere it is empty.
#![cfg(any(target_os = "linux", target_os = "macos", windows))]

mod choice;
mod error;
mod event;
mod ladder;
mod limits;
mod member;
mod report;
mod spec;
mod sys;

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod wire;

// Where a tree stands and who was in it: pure, and the same wherever a guardian ends it.
#[cfg(any(target_os = "linux", target_os = "macos", test))]
mod census;
#[cfg(any(target_os = "linux", target_os = "macos", test))]
mod climb;

// What macOS leaves to us to decide is pure, and tried wherever tests run.
#[cfg(any(target_os = "macos", test))]
mod kin;
#[cfg(any(target_os = "macos", test))]
mod lines;
#[cfg(any(target_os = "macos", test))]
mod procargs;

// What Windows makes of a command line, and what a pipe is called, is pure, and tried wherever tests run.
#[cfg(any(windows, test))]
mod quote;
#[cfg(any(windows, test))]
mod resolve;
#[cfg(any(windows, test))]
mod title;

pub use choice::Choice;
pub use error::{Error, SpawnStage};
pub use event::Event;
pub use ladder::{Ask, Ladder};
pub use limits::{Breach, Enforced, Limits, Usage};
pub use member::Member;
pub use report::{Emptied, Exit, Kind, Report, Survivor, Survivors};
pub use spec::Spec;
pub use sys::Backend;

#[cfg(target_os = "linux")]
pub use {
    sys::linux::aside::{Aside, detach},
    sys::linux::cgroup::Leaf,
    sys::linux::gauge::Gauge,
    sys::linux::hold::{Command, Hold, Options},
    sys::linux::holder::main_if_asked,
    sys::linux::inherited::{close_leaked, hear_signals, inherited, turn_into},
    sys::linux::launch::leave,
    sys::linux::mark::{Mark, sweep},
    sys::linux::probe::{Machine, probe},
    sys::linux::signals::Signals,
    sys::linux::signals::number as signal,
    sys::linux::stranger::end as end_strangers,
    sys::linux::text::give_back_code,
    sys::linux::tree::Tree,
    sys::linux::waits::Waits,
    sys::named::name as signal_name,
    sys::wait::wait,
};
#[cfg(target_os = "macos")]
pub use {
    sys::macos::guardian::{close_leaked, main_if_asked},
    sys::macos::mark::{Mark, sweep},
    sys::macos::probe::{Machine, probe},
    sys::macos::tree::Tree,
    sys::macos::vigil::number as signal,
    sys::macos::vigil::{Sign, Vigil},
    sys::named::name as signal_name,
    sys::wait::wait,
};
#[cfg(windows)]
pub use {
    sys::windows::bell::Bell,
    sys::windows::interrupt::{Interrupts, name as signal_name},
    sys::windows::launch::detach,
    sys::windows::mark::Mark,
    sys::windows::stream::Stream,
    sys::windows::tree::Tree,
    sys::windows::vigil::Vigil,
};

/// Looking at single processes.
#[cfg(target_os = "macos")]
pub mod process {
    pub use crate::sys::macos::process::{around, name};
}

/// What is asked of the machine as a whole.
#[cfg(windows)]
pub mod machine {
    pub use crate::sys::windows::machine::{FileId, file_id, name, random};
}

/// Pipes with a name, for one user alone.
#[cfg(windows)]
pub mod pipe {
    pub use crate::sys::windows::pipe::{Anchor, client, is_closing, name, stranger};
}

/// Looking at single processes.
#[cfg(windows)]
pub mod process {
    pub use crate::sys::windows::member::{
        Handle, Seen, descendants, look, name, parent, resident, threads,
    };
    pub use crate::sys::windows::roll::below;

    /// This process's own variables, for a command that is to get them and others.
    pub fn variables() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
        std::env::vars_os().collect()
    }
}

/// Looking at single processes.
#[cfg(target_os = "linux")]
pub mod process {
    use crate::member::Member;
    use crate::sys::linux::mark::Mark;

    pub use crate::sys::linux::procfs::{
        Seen, Stat, is_dying, look, name, pids, proportional, resident, stat, threads, time,
    };

    /// Everyone who descends from this process, as `/proc` has it now.
    pub fn below(root: i32) -> Vec<Member> {
        crate::sys::linux::descent::below(root, &[])
    }

    /// The mark that this process carries: it is, or was, in a tree that is held.
    pub fn mark(pid: i32) -> Option<Mark> {
        Mark::of(pid)
    }
}
