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
//!
//! The crate is synchronous, knows processes and nothing else (no protocol, no containers, no
//! async runtime) and holds all the `unsafe` of the project. Linux only for now; elsewhere it is
//! empty.
#![cfg(target_os = "linux")]

mod aside;
mod error;
mod gauge;
mod guard;
mod guardian;
mod hold;
mod holder;
mod ladder;
mod limits;
mod member;
mod probe;
mod report;
mod stranger;
mod sys;
mod tree;
mod wire;

pub use aside::{Aside, detach};
pub use error::{Error, SpawnStage};
pub use gauge::Gauge;
pub use hold::{Command, Event, Hold, Options};
pub use holder::main_if_asked;
pub use ladder::{Ask, Ladder};
pub use limits::{Breach, Enforced, Limits, Usage};
pub use member::Member;
pub use probe::{Choice, Machine, probe};
pub use report::{Emptied, Exit, Kind, Report, Survivor, Survivors};
pub use stranger::end as end_strangers;
pub use sys::Backend;
pub use sys::cgroup::Leaf;
pub use sys::inherited::close_leaked;
pub use sys::launch::leave;
pub use sys::mark::{Mark, sweep};
pub use sys::signals::number as signal;
pub use sys::signals::{Signals, name as signal_name};
pub use sys::text::give_back_code;
pub use sys::wait::wait;
pub use tree::{Spec, Tree};

/// Looking at single processes.
pub mod process {
    use crate::member::Member;
    use crate::sys::mark::Mark;

    pub use crate::sys::procfs::{
        Seen, Stat, look, name, pids, proportional, resident, stat, threads, time,
    };

    /// Everyone who descends from this process, as `/proc` has it now.
    pub fn below(root: i32) -> Vec<Member> {
        crate::sys::descent::below(root, &[])
    }

    /// The mark that this process carries: it is, or was, in a tree that is held.
    pub fn mark(pid: i32) -> Option<Mark> {
        crate::sys::procfs::realtime_limit(pid).and_then(Mark::from_number)
    }
}
