//! The words between owner, holder and guardian: one short text per packet.
//!
//! Pure: text in, values out. The transport is a pair of sockets, of packets where there are such and
//! of lines elsewhere; end-of-file is the owner's death.

use crate::error::SpawnStage;
use crate::ladder::Ask;
use crate::limits::Breach;
use crate::member::Member;
use crate::report::{Exit, Kind, Report, Survivor};
use crate::sys::Backend;
use std::time::Duration;

/// The stages that the guardian can tell of, in the order of their numbers.
const STAGES: [SpawnStage; 8] = [
    SpawnStage::Proc,
    SpawnStage::Socket,
    SpawnStage::Guardian,
    SpawnStage::Namespace,
    SpawnStage::Fork,
    SpawnStage::Stdio,
    SpawnStage::Holder,
    SpawnStage::Signals,
];

/// From the owner's side down to the guardian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// End the tree, starting on this rung.
    Ask(Ask),
    /// Pass a signal to the command alone; nothing ends.
    Forward(i32),
    /// The report has been dealt with: nothing is left for the guardian to do.
    Done,
}

/// From the guardian up to the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The command runs.
    Started(Member, Backend),
    /// The command could not be executed (errno).
    NotExecuted(i32),
    /// A step of ours failed (errno).
    Failed(SpawnStage, i32),
    /// The command itself ended; others may still be there.
    Exited(Exit),
    /// The kill still meets new processes, and goes on for at most this long.
    Killing(Duration),
    /// One line per survivor, before `Ended`.
    Survivor(Survivor),
    /// The tree has been dealt with. Survivors were listed before.
    Ended(Report),
}

impl Report {
    /// The same with the survivors that were told of before it, of whom it says only how many there are.
    pub(crate) fn with_told(mut self, told: &mut Vec<Survivor>) -> Report {
        let mut all = std::mem::take(told);
        all.resize_with(all.len().max(self.survivors.len()), untold);
        self.survivors = all;
        self
    }
}

/// A survivor of whom nothing came through but that there is one.
fn untold() -> Survivor {
    Survivor {
        kind: Kind::Process,
        member: Member { pid: 0, start: 0 },
        name: "unknown".into(),
        why: "who it is got lost on the way".into(),
    }
}

impl Order {
    pub(crate) fn encode(&self) -> String {
        match self {
            Order::Ask(Ask::Closed) => "closed".into(),
            Order::Ask(Ask::Signal(n)) => format!("signal {n}"),
            Order::Ask(Ask::OwnerDied) => "owner-died".into(),
            Order::Ask(Ask::Kill) => "kill".into(),
            Order::Forward(n) => format!("forward {n}"),
            Order::Done => "done".into(),
        }
    }

    pub(crate) fn decode(text: &str) -> Option<Order> {
        let mut words = text.split(' ');
        let order = match words.next()? {
            "closed" => Order::Ask(Ask::Closed),
            "signal" => Order::Ask(Ask::Signal(signal(words.next()?)?)),
            "owner-died" => Order::Ask(Ask::OwnerDied),
            "kill" => Order::Ask(Ask::Kill),
            "forward" => Order::Forward(signal(words.next()?)?),
            "done" => Order::Done,
            _ => return None,
        };
        words.next().is_none().then_some(order)
    }
}

impl Word {
    pub(crate) fn encode(&self) -> String {
        match self {
            Word::Started(m, b) => format!("started {} {} {}", m.pid, m.start, b.name()),
            Word::NotExecuted(errno) => format!("not-executed {errno}"),
            Word::Failed(stage, errno) => {
                let number = STAGES.iter().position(|s| s == stage).unwrap_or(0);
                format!("failed {number} {errno}")
            }
            Word::Exited(exit) => format!("exited {}", exit_text(Some(*exit))),
            Word::Killing(left) => format!("killing {}", left.as_millis()),
            Word::Survivor(s) => format!(
                "survivor {} {} {} {} {}",
                s.kind.name(),
                s.member.pid,
                s.member.start,
                s.name.replace([' ', '\n'], "_"),
                s.why
            ),
            Word::Ended(r) => format!(
                "ended {} {} {} {} {} {} {} {} {}",
                exit_text(r.exit),
                r.backend.name(),
                r.seen,
                r.left,
                r.asked,
                r.killed,
                r.survivors.len(),
                r.breach.map_or("unbroken", Breach::name),
                r.took.as_micros()
            ),
        }
    }

    pub(crate) fn decode(text: &str) -> Option<Word> {
        let (verb, rest) = text.split_once(' ')?;
        let mut words = rest.split(' ');
        let mut next = || words.next();
        Some(match verb {
            "started" => {
                let member = Member { pid: next()?.parse().ok()?, start: next()?.parse().ok()? };
                Word::Started(member, Backend::named(next()?)?)
            }
            "not-executed" => Word::NotExecuted(next()?.parse().ok()?),
            "failed" => {
                let number: usize = next()?.parse().ok()?;
                Word::Failed(*STAGES.get(number)?, next()?.parse().ok()?)
            }
            "exited" => Word::Exited(parse_exit(next()?)??),
            "killing" => Word::Killing(Duration::from_millis(next()?.parse().ok()?)),
            "survivor" => {
                let mut fields = rest.splitn(5, ' ');
                Word::Survivor(Survivor {
                    kind: kind(fields.next()?)?,
                    member: Member {
                        pid: fields.next()?.parse().ok()?,
                        start: fields.next()?.parse().ok()?,
                    },
                    name: fields.next()?.into(),
                    why: fields.next()?.into(),
                })
            }
            "ended" => Word::Ended(Report {
                exit: parse_exit(next()?)?,
                backend: Backend::named(next()?)?,
                seen: next()?.parse().ok()?,
                left: next()?.parse().ok()?,
                asked: next()?.parse().ok()?,
                killed: next()?.parse().ok()?,
                // Who they are was said before; whoever is heard of too little is still a survivor.
                survivors: vec![untold(); next()?.parse::<u16>().ok()?.into()],
                breach: match next()? {
                    "unbroken" => None,
                    name => Some(breach(name)?),
                },
                took: Duration::from_micros(next()?.parse().ok()?),
            }),
            _ => return None,
        })
    }
}

fn signal(text: &str) -> Option<i32> {
    text.parse().ok().filter(|n| (1..=64).contains(n))
}

fn kind(name: &str) -> Option<Kind> {
    [Kind::Process, Kind::Cgroup].into_iter().find(|k| k.name() == name)
}

fn breach(name: &str) -> Option<Breach> {
    [Breach::Memory, Breach::Processes].into_iter().find(|b| b.name() == name)
}

fn exit_text(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Code(n)) => format!("code:{n}"),
        Some(Exit::Signal(n)) => format!("signal:{n}"),
        None => "unknown".into(),
    }
}

fn parse_exit(text: &str) -> Option<Option<Exit>> {
    if text == "unknown" {
        return Some(None);
    }
    let (kind, number) = text.split_once(':')?;
    let number = number.parse().ok()?;
    match kind {
        "code" => Some(Some(Exit::Code(number))),
        "signal" => Some(Some(Exit::Signal(number))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_wire() {
        for order in [
            Order::Ask(Ask::Closed),
            Order::Ask(Ask::Signal(15)),
            Order::Ask(Ask::OwnerDied),
            Order::Ask(Ask::Kill),
            Order::Forward(10),
            Order::Done,
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
    }

    /// Those of this platform.
    fn backends() -> Vec<Backend> {
        ["cgroup", "descent", "pidns", "session"].into_iter().filter_map(Backend::named).collect()
    }

    #[test]
    fn words_survive_the_wire() {
        let member = Member { pid: 42, start: 99 };
        for backend in backends() {
            for word in [Word::Started(member, backend), Word::Ended(Report::nothing(backend))] {
                assert_eq!(Word::decode(&word.encode()), Some(word));
            }
        }
        for word in [
            Word::NotExecuted(2),
            Word::Failed(SpawnStage::Namespace, 1),
            Word::Exited(Exit::Signal(9)),
            Word::Killing(Duration::from_millis(5_000)),
            Word::Survivor(Survivor {
                kind: Kind::Process,
                member,
                name: "sleep".into(),
                why: "permission denied, it runs as another user".into(),
            }),
            Word::Ended(Report {
                exit: Some(Exit::Code(3)),
                backend: backends()[0],
                seen: 4,
                left: 1,
                asked: 2,
                killed: 1,
                survivors: vec![],
                breach: Some(Breach::Processes),
                took: Duration::from_micros(1_500),
            }),
        ] {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
    }

    #[test]
    fn a_survivor_whose_name_got_lost_is_one_all_the_same() {
        let mut report = Report::nothing(backends()[0]);
        report.survivors = vec![untold(), untold()];
        let Some(Word::Ended(heard)) = Word::decode(&Word::Ended(report).encode()) else {
            panic!("it is a report");
        };
        let named = Survivor { name: "sleep".into(), ..untold() };
        let survivors = heard.with_told(&mut vec![named.clone()]).survivors;
        assert_eq!(survivors, [named, untold()]);
    }

    #[test]
    fn nonsense_is_refused_and_never_panics() {
        let words = [
            "",
            "kill now",
            "signal 0",
            "signal 65",
            "signal x",
            "ended",
            "started 1",
            "exited code:",
        ];
        for text in words {
            assert_eq!(Order::decode(text), None, "{text:?}");
            assert_eq!(Word::decode(text), None, "{text:?}");
        }
        // Every prefix and every single-byte change of a valid word must decode to something or nothing.
        let valid = format!("ended signal:15 {} 200 1 0 199 0 memory 2500", backends()[0].name());
        assert!(Word::decode(&valid).is_some());
        for i in 0..valid.len() {
            let _ignored = Word::decode(&valid[..i]);
            for b in [b' ', b':', b'-', b'9', b'z'] {
                let mut bytes = valid.as_bytes().to_vec();
                bytes[i] = b;
                let _ignored = Word::decode(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
