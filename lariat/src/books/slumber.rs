//! What a pool says of its servers that sleep. Nothing of them runs, so they have no page of their own;
//! but they have clients, and whoever looks on is to see both.
//!
//! One file for each pool, beside the pages. Nothing depends on it: if the pool dies, its clients have
//! left, and what the file says is not believed any more.

use super::{Books, Place, paper, replace};
use crate::id::{ServerName, SessionId};
use crate::snapshot::Sharing;
use contain::Member;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// How such a file ends.
pub(super) const ENDING: &str = "asleep";

/// A server that sleeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeper {
    /// The name in the books that it had when it was last awake.
    pub session: SessionId,
    /// Which server.
    pub server: ServerName,
    /// Who wanted it, by pid and start time, if that is one host.
    pub host: Option<(i32, u64)>,
    /// What held it.
    pub backend: String,
    /// When it was last started, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it last said or heard something.
    pub quiet_since_ms: u64,
    /// Who uses it.
    pub share: Sharing,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Dormitory {
    pub(super) place: Place,
    /// Whose servers they are, by pid and start time.
    pub(super) keeper: (i32, u64),
    pub(super) pool: SessionId,
    pub(super) sleepers: Vec<Sleeper>,
}

impl Dormitory {
    /// What this file says, if it is about here.
    pub(super) fn read(path: &Path, here: &Place) -> Option<Dormitory> {
        let told: Dormitory = serde_json::from_slice(&paper::read(path).ok()?).ok()?;
        told.place.shares_pids(here).then_some(told)
    }

    pub(super) fn keeper(&self) -> Member {
        Member { pid: self.keeper.0, start: self.keeper.1 }
    }
}

impl Books {
    /// Says which servers of a pool sleep; `keeper` is whose pool it is. A full disk must not keep them
    /// from it.
    pub fn tell_sleepers(&self, pool: &SessionId, keeper: Member, sleepers: &[Sleeper]) {
        let path = self.sessions().join(format!("{pool}.{ENDING}"));
        if sleepers.is_empty() {
            let _absent = fs::remove_file(&path);
            return;
        }
        let Ok(place) = Place::here() else { return };
        let told = Dormitory {
            place,
            keeper: (keeper.pid, keeper.start),
            pool: pool.clone(),
            sleepers: sleepers.into(),
        };
        let draft = path.with_extension("asleep.new");
        let _untold = serde_json::to_vec(&told)
            .map_err(io::Error::from)
            .and_then(|text| replace(&path, &draft, &text));
    }
}

/// Takes away what a pool has said that is not there any more.
pub(super) fn discard_if_orphaned(path: &Path, here: &Place) {
    if Dormitory::read(path, here).is_some_and(|told| !told.keeper().is_alive()) {
        let _absent = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use super::*;
    use crate::snapshot::{State, Verdict};
    use contain::Mark;

    #[test]
    fn who_sleeps_is_seen_for_as_long_as_somebody_keeps_it() {
        let desk = Desk::new();
        let (pool, own) = (SessionId::of(Mark::random().unwrap()), Member::current().unwrap());
        let sleeper = Sleeper {
            session: SessionId::of(Mark::random().unwrap()),
            server: ServerName::given("time").unwrap(),
            host: None,
            backend: "descent".into(),
            started_ms: 1,
            quiet_since_ms: 2,
            share: Sharing { verdict: Verdict::Shared, why: None, sessions: 3 },
        };
        let seen = || desk.books.living().into_iter().map(|one| (one.session, one.state));
        desk.books.tell_sleepers(&pool, own, std::slice::from_ref(&sleeper));
        assert_eq!(seen().collect::<Vec<_>>(), [(sleeper.session.clone(), State::Asleep)]);
        desk.books.sweep();
        assert_eq!(seen().count(), 1, "its keeper lives");
        desk.books.tell_sleepers(&pool, own, &[]);
        assert_eq!(seen().count(), 0);
        let nobody = Member { start: own.start + 1, ..own };
        desk.books.tell_sleepers(&pool, nobody, &[sleeper]);
        assert_eq!(seen().count(), 0, "whoever kept it is dead");
        desk.books.sweep();
        assert_eq!(fs::read_dir(desk.books.sessions()).unwrap().count(), 0);
    }
}
