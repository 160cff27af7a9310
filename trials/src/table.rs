//! The table: every misbehaviour, every death, every moment, and which of them go together.
//!
//! Only words and numbers live here. What a misbehaviour does is in `misbehave/acts.rs`, what a
//! death does is in `trial/death.rs`.

use crate::named::named;
use crate::subject::Subject;

named! {
    /// What the server does wrong.
    Misbehaviour;
    /// Nothing: exits on end of input. The control of the experiment.
    Polite = "polite",
    /// Stays after end of input; SIGTERM ends it.
    IgnoresEof = "ignores-eof",
    /// Stays after end of input and blocks SIGTERM, SIGINT and SIGHUP.
    IgnoresEofAndTerm = "ignores-eof-and-term",
    /// Burns a whole CPU after end of input.
    SpinsOnEof = "spins-on-eof",
    /// A real `/bin/sh -c` (no exec), a launcher, and a grandchild that got the pipes.
    ShellWrapper = "shell-wrapper",
    /// A launcher that pumps bytes and never passes the end of input on.
    Middleman = "middleman",
    /// The leader exits on end of input and leaves a child of its own process group.
    LeaderLeavesChild = "leader-leaves-child",
    /// A child in a process group of its own.
    SetpgidChild = "setpgid-child",
    /// A child in a session of its own.
    SetsidChild = "setsid-child",
    /// A daemon: forked twice, own session, parent gone.
    DoubleFork = "double-fork",
    /// A daemon whose leader exits at once, before any handshake.
    DoubleForkLeaderExits = "double-fork-leader-exits",
    /// A daemon executed anew with an empty environment.
    EmptyEnv = "empty-env",
    /// A daemon executed anew with an empty environment, whose leader exits at once.
    EmptyEnvLeaderExits = "empty-env-leader-exits",
    /// A child in its own session whose `/proc` files belong to root.
    NonDumpable = "non-dumpable",
    /// A child that is pid 1 of a new user and PID namespace, with a child of its own in there.
    Namespaces = "namespaces",
    /// Chains of processes that fork and exit for ever, each in a new session.
    Rabbit = "rabbit",
    /// The same chains with an empty environment.
    RabbitEmptyEnv = "rabbit-empty-env",
    /// Two hundred children: in the group, in sessions of their own, and orphaned.
    WideTree = "wide-tree",
    /// A deaf child that forks without pause once it notices that the end has begun.
    ForksDuringKill = "forks-during-kill",
    /// SIGTERM makes the leader start a child in a new session; the leader stays.
    TermForksAndStays = "term-forks-and-stays",
    /// SIGTERM makes the leader start a child in a new session and exit.
    TermForksAndExits = "term-forks-and-exits",
    /// End of input makes the leader start a child in a new session and exit.
    EofForksAndExits = "eof-forks-and-exits",
    /// Writes 1 MiB to stderr before it serves.
    FloodsStderr = "floods-stderr",
    /// A deaf child keeps stdout open after the leader left.
    HoldsStdout = "holds-stdout",
    /// One stopped child in the leader's group and one in a session of its own.
    StoppedMembers = "stopped-members",
    /// A child in a session of its own that closed every descriptor.
    ClosedDescriptors = "closed-descriptors",
    /// A child that is by birth its parent's sibling (`CLONE_PARENT`).
    CloneParent = "clone-parent",
    /// A process that waits uninterruptibly for its vfork child, which never executes anything.
    VforkLimbo = "vfork-limbo",
    /// The main thread has exited: a zombie to look at, but a second thread serves and has a child.
    MainThreadExits = "main-thread-exits",
    /// Four threads with a child each.
    ThreadChildren = "thread-children",
    /// A child that is a subreaper itself and has collected two orphans.
    SubreaperChild = "subreaper-child",
    /// A child that gave itself another name and another command line.
    Disguised = "disguised",
    /// Sessions within sessions, four deep.
    NestedSessions = "nested-sessions",
    /// A child that executes itself again every few milliseconds.
    ReExecs = "re-execs",
    /// A child stopped under the trace of another.
    TracedMember = "traced-member",
    /// A daemon that moves itself to the root of the cgroup hierarchy.
    LeavesCgroup = "leaves-cgroup",
}

impl Misbehaviour {
    /// How many processes the server's own tree has at least once it is built. For a leader that
    /// exits at once this is the leader, which reports before it does.
    #[must_use]
    pub fn members(self) -> usize {
        match self {
            Self::Polite
            | Self::IgnoresEof
            | Self::IgnoresEofAndTerm
            | Self::SpinsOnEof
            | Self::DoubleForkLeaderExits
            | Self::EmptyEnvLeaderExits
            | Self::TermForksAndStays
            | Self::TermForksAndExits
            | Self::EofForksAndExits
            | Self::FloodsStderr => 1,
            Self::Middleman
            | Self::LeaderLeavesChild
            | Self::SetpgidChild
            | Self::SetsidChild
            | Self::DoubleFork
            | Self::EmptyEnv
            | Self::NonDumpable
            | Self::HoldsStdout
            | Self::ClosedDescriptors
            | Self::CloneParent
            | Self::MainThreadExits
            | Self::Disguised
            | Self::ReExecs
            | Self::LeavesCgroup => 2,
            Self::ShellWrapper
            | Self::Namespaces
            | Self::ForksDuringKill
            | Self::StoppedMembers
            | Self::VforkLimbo
            | Self::TracedMember => 3,
            Self::Rabbit | Self::RabbitEmptyEnv | Self::SubreaperChild | Self::NestedSessions => 4,
            Self::ThreadChildren => 5,
            Self::WideTree => 201,
        }
    }

    /// Whether the leader exits before anybody asked, so that no handshake is ever answered.
    #[must_use]
    pub fn leader_exits(self) -> bool {
        matches!(self, Self::DoubleForkLeaderExits | Self::EmptyEnvLeaderExits)
    }

    /// Whether members hop from pid to pid, so that one look can miss them.
    #[must_use]
    pub fn hops(self) -> bool {
        matches!(self, Self::Rabbit | Self::RabbitEmptyEnv | Self::ForksDuringKill)
    }
}

named! {
    /// How the session ends.
    Death;
    /// The host closes the server's stdin.
    StdinEof = "stdin-eof",
    /// The host closes stdin and stdout together.
    HostClosesPipes = "host-closes-pipes",
    /// SIGTERM to the wrapper.
    Sigterm = "sigterm",
    /// SIGINT to the wrapper.
    Sigint = "sigint",
    /// SIGHUP to the wrapper.
    Sighup = "sighup",
    /// SIGTERM to the wrapper, and again 5 ms later.
    SigtermTwice = "sigterm-twice",
    /// SIGTERM to the wrapper, SIGKILL 10 ms later.
    SigtermThenSigkill = "sigterm-then-sigkill",
    /// SIGKILL to the wrapper.
    SigkillWrapper = "sigkill-wrapper",
    /// SIGKILL to the wrapper's process group.
    SigkillGroup = "sigkill-group",
    /// SIGKILL to the guardian.
    SigkillGuardian = "sigkill-guardian",
    /// SIGKILL to wrapper and guardian, then the command that sweeps.
    SigkillBoth = "sigkill-both",
    /// SIGKILL to the host (or to the owner program of a library).
    SigkillHost = "sigkill-host",
    /// The owner closes the tree. Owner programs only.
    Close = "close",
    /// The owner drops the tree. Owner programs only.
    Drop = "drop",
    /// The owner panics. Owner programs only.
    Panic = "panic",
}

impl Death {
    /// Whether the host is meant to live on.
    #[must_use]
    pub fn spares_host(self) -> bool {
        !matches!(self, Self::SigkillHost)
    }

    /// Whether the owner brings it about itself when it is told to. Owner programs only.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::Close | Self::Drop | Self::Panic)
    }

    fn needs_guardian(self) -> bool {
        matches!(self, Self::SigkillGuardian | Self::SigkillBoth)
    }

    /// Whether this death can be tried on that subject.
    #[must_use]
    pub fn applies_to(self, subject: &Subject) -> bool {
        if self.needs_guardian() && !subject.guardian {
            return false;
        }
        if self == Self::SigkillBoth && subject.sweep.is_none() {
            return false;
        }
        if subject.owner.is_some() {
            self.is_told()
                || self == Self::SigkillHost
                || (subject.guardian && (self == Self::SigkillWrapper || self.needs_guardian()))
        } else {
            !self.is_told()
        }
    }
}

named! {
    /// When the death comes.
    Moment;
    /// Within 10 ms of the start; the tree may be half built.
    AtStart = "at-start",
    /// After the handshake, with the tree complete.
    Ready = "ready",
    /// While a call is in flight that is never answered.
    InCall = "in-call",
}

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// What the server does wrong.
    pub misbehaviour: Misbehaviour,
    /// How the session ends.
    pub death: Death,
    /// When it ends.
    pub moment: Moment,
}

impl Cell {
    /// The cell's name, which states its fact: `setsid-child::sigkill-host::ready`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}::{}", self.misbehaviour, self.death, self.moment)
    }

    /// Whether trying this cell on that subject makes sense.
    #[must_use]
    pub fn applies_to(&self, subject: &Subject) -> bool {
        let in_call = self.moment == Moment::InCall;
        // Without a leader nobody takes a call; and an owner program does not speak the protocol.
        let nobody_to_call = self.misbehaviour.leader_exits() || subject.owner.is_some();
        self.death.applies_to(subject) && !(in_call && nobody_to_call)
    }
}

/// Every pair of misbehaviour and death that applies to the subject.
#[must_use]
pub fn list(subject: &Subject) -> Vec<(Misbehaviour, Death)> {
    let deaths = || Death::ALL.iter().copied().filter(|death| death.applies_to(subject));
    Misbehaviour::ALL
        .iter()
        .flat_map(|&misbehaviour| deaths().map(move |death| (misbehaviour, death)))
        .collect()
}

/// Every cell that applies to the subject: the pairs of [`list`] at each of their moments.
#[must_use]
pub fn cells(subject: &Subject) -> Vec<Cell> {
    list(subject)
        .into_iter()
        .flat_map(|(misbehaviour, death)| {
            Moment::ALL.iter().map(move |&moment| Cell { misbehaviour, death, moment })
        })
        .filter(|cell| cell.applies_to(subject))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for &one in Misbehaviour::ALL {
            assert_eq!(Misbehaviour::from_name(one.name()), Some(one));
        }
        for &one in Death::ALL {
            assert_eq!(Death::from_name(one.name()), Some(one));
        }
        for &one in Moment::ALL {
            assert_eq!(Moment::from_name(one.name()), Some(one));
        }
    }

    #[test]
    fn deaths_that_need_a_guardian_are_left_out_without_one() {
        let bare = Subject::bare("x");
        assert!(!Death::SigkillGuardian.applies_to(&bare));
        assert!(!Death::Close.applies_to(&bare));
        assert!(Death::SigkillHost.applies_to(&bare));
        assert!(cells(&bare).iter().all(|cell| cell.applies_to(&bare)));
    }

    #[test]
    fn owners_are_closed_dropped_and_killed_but_not_spoken_to() {
        let owner = Subject::owner("x", ["x", "owner"]);
        assert!(cells(&owner).iter().all(|cell| cell.moment != Moment::InCall));
        assert!(Death::Drop.applies_to(&owner));
        assert!(!Death::StdinEof.applies_to(&owner));
    }
}
