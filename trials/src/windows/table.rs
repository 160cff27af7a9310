//! The table: every misbehaviour, every death, and which of them go together.

use crate::named::named;
use crate::windows::subject::Subject;

named! {
    /// What the server does wrong.
    Misbehaviour;
    /// Nothing: exits on end of input. The control of the experiment.
    Polite = "polite",
    /// Stays after end of input; Ctrl-Break ends it.
    IgnoresEof = "ignores-eof",
    /// Stays after end of input, and Ctrl-Break is nothing to it.
    IgnoresBreak = "ignores-break",
    /// `cmd /c`, which runs `cmd /c`, which runs a leaf that is deaf to everything.
    CmdChain = "cmd-chain",
    /// A shell that starts a leaf and leaves, so that the leaf's parent is gone.
    CmdStarts = "cmd-starts",
    /// A leaf without a console (`DETACHED_PROCESS`).
    Detached = "detached",
    /// A leaf that was to break away from the job.
    Breakaway = "breakaway",
    /// A leaf with a console of its own, which no Ctrl-Break of ours reaches.
    OwnConsole = "own-console",
    /// A leaf that is created suspended and never runs.
    Suspended = "suspended",
    /// A leaf in a job of the server's own.
    NestedJob = "nested-job",
    /// A detached leaf whose parent, the leader, leaves at once.
    LeaderExits = "leader-exits",
    /// A leaf keeps stdout open after the leader left.
    HoldsStdout = "holds-stdout",
    /// A chain of processes that start a successor and leave, for ever.
    Rabbit = "rabbit",
    /// Once the end has begun, the server starts leaves without pause.
    StartsDuringKill = "starts-during-kill",
    /// Two hundred leaves.
    WideTree = "wide-tree",
}

impl Misbehaviour {
    /// How many processes of the server's own report once its tree is built. For a leader that exits
    /// at once this is the leader, which reports before it does.
    #[must_use]
    pub fn members(self) -> usize {
        match self {
            Self::Polite
            | Self::IgnoresEof
            | Self::IgnoresBreak
            | Self::LeaderExits
            | Self::StartsDuringKill => 1,
            Self::CmdChain
            | Self::CmdStarts
            | Self::Detached
            | Self::Breakaway
            | Self::OwnConsole
            | Self::Suspended
            | Self::NestedJob
            | Self::HoldsStdout => 2,
            Self::Rabbit => 4,
            Self::WideTree => 201,
        }
    }

    /// Whether members hop from number to number, so that one look can miss them.
    #[must_use]
    pub fn hops(self) -> bool {
        matches!(self, Self::Rabbit | Self::StartsDuringKill)
    }

    /// Whether the leader leaves before anybody asked.
    #[must_use]
    pub fn leader_exits(self) -> bool {
        self == Self::LeaderExits
    }
}

named! {
    /// How the session ends.
    Death;
    /// The host closes the server's stdin. Wrappers only.
    StdinEof = "stdin-eof",
    /// The wrapper is ended by `TerminateProcess`.
    WrapperKilled = "wrapper-killed",
    /// The host, or the owner program of a library, is ended by `TerminateProcess`.
    HostKilled = "host-killed",
    /// The owner closes the tree. Owner programs only.
    Close = "close",
    /// The owner drops the tree. Owner programs only.
    Drop = "drop",
    /// The owner panics. Owner programs only.
    Panic = "panic",
}

impl Death {
    /// Whether this death can be tried on that subject.
    #[must_use]
    pub fn applies_to(self, subject: &Subject) -> bool {
        match self {
            Self::HostKilled => true,
            Self::StdinEof => subject.owner.is_none(),
            Self::WrapperKilled => subject.owner.is_none() && !subject.wrap.is_empty(),
            Self::Close | Self::Drop | Self::Panic => subject.owner.is_some(),
        }
    }
}

named! {
    /// When the death comes.
    Moment;
    /// As soon as the tree is started, which may be half built.
    AtStart = "at-start",
    /// With the tree complete.
    Ready = "ready",
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
    /// The cell's name, which states its fact: `cmd-chain::host-killed::ready`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}::{}", self.misbehaviour, self.death, self.moment)
    }
}

/// Every pair of misbehaviour and death that applies to the subject.
#[must_use]
pub fn list(subject: &Subject) -> Vec<(Misbehaviour, Death)> {
    let deaths = || Death::ALL.iter().copied().filter(|death| death.applies_to(subject));
    let all = Misbehaviour::ALL.iter();
    all.flat_map(|&misbehaviour| deaths().map(move |death| (misbehaviour, death))).collect()
}

/// Every cell that applies to the subject: the pairs of [`list`] at each moment.
#[must_use]
pub fn cells(subject: &Subject) -> Vec<Cell> {
    let pairs = list(subject).into_iter();
    let at = |(misbehaviour, death)| {
        Moment::ALL.iter().map(move |&moment| Cell { misbehaviour, death, moment })
    };
    pairs.flat_map(at).collect()
}
