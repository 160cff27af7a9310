//! Plays one cell from beginning to end and says what was seen.
//!
//! Set the stage, wait for the moment, count heads, let the death come, look until nobody is left
//! or patience runs out, look at the bystanders, clean up.

mod bystander;
mod stage;

use super::misbehave::{END, FLAG, UP, note};
use super::subject::Subject;
use super::table::{Cell, Death, Misbehaviour, Moment};
use super::witness::Witness;
use super::world::{Process, problem, until};
use crate::verdict::Verdict;
use bystander::Bystander;
use stage::Stage;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long the building of a tree may take before it counts as hung.
const START_UP: Duration = Duration::from_secs(30);

/// How much longer everything may take for two hundred processes, of which one cell at a time is
/// enough for a machine.
const WIDE: u32 = 4;
static ONE_WIDE_TREE: Mutex<()> = Mutex::new(());

/// Plays a misbehaviour and a death: if everything is to be tried, three times, once as soon as the
/// tree is started and twice with the tree complete; otherwise once, at either moment in turn.
///
/// # Errors
///
/// What the first verdict says that does not pass, and at which moment.
pub fn run_in_turn(
    everything: bool,
    misbehaviour: Misbehaviour,
    death: Death,
    subject: &Subject,
) -> Result<(), String> {
    let all = [Moment::AtStart, Moment::Ready, Moment::Ready];
    let turn = (misbehaviour as usize + death as usize) % 2;
    let moments = if everything { &all[..] } else { &all[turn..=turn] };
    for &moment in moments {
        let verdict = run(&Cell { misbehaviour, death, moment }, subject);
        if !verdict.passed() {
            return Err(format!("{moment}: {verdict}"));
        }
    }
    Ok(())
}

/// Plays one cell against a subject.
pub fn run(cell: &Cell, subject: &Subject) -> Verdict {
    let mut verdict = Verdict::default();
    let wide = cell.misbehaviour == Misbehaviour::WideTree;
    let _alone = wide.then(|| ONE_WIDE_TREE.lock().unwrap_or_else(PoisonError::into_inner));
    match Trial::set_up(cell, subject) {
        Ok(mut trial) => {
            if let Err(why) = trial.play(&mut verdict) {
                verdict.hung = Some(why);
            }
            trial.clean_up(&mut verdict);
        }
        Err(why) => verdict.hung = Some(why),
    }
    verdict
}

struct Trial<'a> {
    cell: &'a Cell,
    subject: &'a Subject,
    roll: Roll,
    stage: Stage,
    bystanders: Vec<Bystander>,
    witness: Witness,
}

impl<'a> Trial<'a> {
    fn set_up(cell: &'a Cell, subject: &'a Subject) -> Result<Self, String> {
        let token = token();
        let roll = Roll::new(&token).map_err(problem("making the roll"))?;
        let server: Vec<OsString> = [
            subject.program.clone().into_os_string(),
            FLAG.into(),
            cell.misbehaviour.name().into(),
            token.clone().into(),
            roll.0.clone().into_os_string(),
        ]
        .into();
        let mut witness = Witness::new(&token);
        let bystanders =
            Bystander::look_alikes(&server).map_err(problem("starting a bystander"))?;
        for bystander in &bystanders {
            witness.spare(bystander.process());
        }
        let stage = Stage::start(subject, &server)?;
        witness.spare(stage.process());
        Ok(Self { cell, subject, roll, stage, bystanders, witness })
    }

    fn play(&mut self, verdict: &mut Verdict) -> Result<(), String> {
        self.stage.go()?;
        if self.cell.moment == Moment::Ready {
            let wanted = self.cell.misbehaviour.members();
            if !until(self.times() * START_UP, || self.roll.members() >= wanted) {
                let (came, there) = (self.roll.members(), self.witness.look().len());
                return Err(match (came, there) {
                    // They were made, and have not got as far as their first words.
                    (0, 1..) => format!("{there} are there and have not begun"),
                    _ => format!("only {came} of {wanted} members came up, {there} are there"),
                });
            }
        }
        let seen = self.witness.look().len();
        if self.cell.moment == Moment::Ready && !self.cell.misbehaviour.leader_exits() && seen == 0
        {
            verdict.unbuilt = Some("the witness saw nobody".to_owned());
        }
        if self.cell.moment == Moment::Ready && self.cell.misbehaviour == Misbehaviour::WideTree {
            let few = seen < self.cell.misbehaviour.members();
            verdict.unbuilt = few.then(|| format!("the witness saw only {seen}"));
        }
        self.roll.add(END);
        let began = Instant::now();
        self.stage.strike(self.cell.death)?;
        // One who hops is seen by one look and missed by the next.
        let looks = if self.cell.misbehaviour.hops() { 5 } else { 1 };
        let patience = self.times() * self.subject.patience;
        let witness = &mut self.witness;
        let gone = until(patience, || (0..looks).all(|_| witness.look().is_empty()));
        if gone {
            verdict.gone_ms = u64::try_from(began.elapsed().as_millis()).ok();
        } else {
            let left = self.witness.look();
            verdict.survivors = left.iter().map(|one| self.witness.describe(*one)).collect();
            if verdict.survivors.is_empty() {
                verdict.survivors.push("somebody who hops from number to number".to_owned());
            }
        }
        if !self.stage.is_as_it_should_be(self.cell.death) {
            verdict.harmed.push("the host or owner was ended".to_owned());
        }
        verdict.wrapper_exit = self.stage.wrapper_exit(self.cell.death);
        Ok(())
    }

    fn times(&self) -> u32 {
        if self.cell.misbehaviour == Misbehaviour::WideTree { WIDE } else { 1 }
    }

    fn clean_up(mut self, verdict: &mut Verdict) {
        verdict.peak = self.witness.peak();
        drop(self.stage);
        self.roll.call_off();
        let witness = &mut self.witness;
        until(Duration::from_secs(10), || {
            let left: Vec<Process> = witness.look();
            left.iter().for_each(|one| one.end());
            left.is_empty()
        });
        verdict.harmed.extend(self.bystanders.into_iter().filter_map(Bystander::end));
    }
}

/// The file in which members report, and whose vanishing ends them.
struct Roll(PathBuf);

impl Roll {
    fn new(token: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("{token}.roll"));
        fs::write(&path, "")?;
        Ok(Self(path))
    }

    fn members(&self) -> usize {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(UP)).collect::<BTreeSet<_>>().len()
    }

    fn add(&self, line: &str) {
        note(&self.0, line);
    }

    /// Somebody may have it open at the moment.
    fn call_off(&self) {
        until(Duration::from_secs(5), || fs::remove_file(&self.0).is_ok() || !self.0.exists());
    }
}

/// A word that no other cell has.
fn token() -> String {
    static CELLS: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let cell = CELLS.fetch_add(1, Ordering::SeqCst);
    format!("lariat-trial-{}-{cell}-{:x}", std::process::id(), since.as_nanos())
}
