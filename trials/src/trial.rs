//! Plays one cell from beginning to end and says what was seen.
//!
//! Set the stage, wait for the moment, count heads, let the death come, look until nobody is
//! left or patience runs out, look at the bystanders, clean up. Whatever goes wrong on the way
//! is part of the verdict; cleaning up happens in every case.

mod death;
mod place;
mod stage;

use std::io;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use death::{Struck, find_guardian, find_holder, sweep};
use place::Place;
use stage::Stage;

use crate::subject::Subject;
use crate::table::{Cell, Death, Misbehaviour, Moment};
use crate::verdict::Verdict;
use crate::world::bystander::{Bystander, control_pair};
use crate::world::lines::Line;
use crate::world::witness::Witness;
use crate::world::{Process, until};

/// How long a handshake, or the building of a tree, may take before it counts as hung.
const START_UP: Duration = Duration::from_secs(5);

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"trial","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"hang","arguments":{}}}"#;

/// Plays a misbehaviour and a death at every moment at which the subject can meet them.
///
/// # Errors
///
/// What the first verdict says that does not pass, and at which moment.
pub fn run_at_every_moment(
    misbehaviour: Misbehaviour,
    death: Death,
    subject: &Subject,
) -> Result<(), String> {
    run_at(Moment::ALL.iter().copied(), misbehaviour, death, subject)
}

/// The same at so many of these moments, which are others for each `turn`: in a table whose cells take turns,
/// every moment meets every misbehaviour and every death.
///
/// # Errors
///
/// The same.
pub fn run_at_some_moments(
    turn: usize,
    moments: usize,
    misbehaviour: Misbehaviour,
    death: Death,
    subject: &Subject,
) -> Result<(), String> {
    let cell = |moment: &Moment| Cell { misbehaviour, death, moment: *moment };
    let can_be = |moment: &Moment| cell(moment).applies_to(subject);
    let all: Vec<Moment> = Moment::ALL.iter().copied().filter(can_be).collect();
    let turns = all.iter().copied().cycle().skip(turn % all.len().max(1));
    run_at(turns.take(moments.min(all.len())), misbehaviour, death, subject)
}

fn run_at(
    moments: impl Iterator<Item = Moment>,
    misbehaviour: Misbehaviour,
    death: Death,
    subject: &Subject,
) -> Result<(), String> {
    let cells = moments.map(|moment| Cell { misbehaviour, death, moment });
    for cell in cells.filter(|cell| cell.applies_to(subject)) {
        let verdict = run(&cell, subject);
        if !verdict.passed() {
            return Err(format!("{}: {verdict}", cell.moment));
        }
    }
    Ok(())
}

/// Plays one cell against a subject.
pub fn run(cell: &Cell, subject: &Subject) -> Verdict {
    match Trial::set_up(cell, subject) {
        Ok(trial) => trial.play(),
        Err(why) => Verdict { hung: Some(why), ..Verdict::default() },
    }
}

struct Trial<'a> {
    cell: &'a Cell,
    subject: &'a Subject,
    stage: Stage,
    bystanders: Vec<Bystander>,
    witness: Witness,
    wrapper: Option<Process>,
    guardian: Option<Process>,
    verdict: Verdict,
    place: Place,
}

impl<'a> Trial<'a> {
    fn set_up(cell: &'a Cell, subject: &'a Subject) -> Result<Self, String> {
        let problem = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| format!("{what}: {error}")
        };
        let place = Place::new(subject).map_err(problem("making the cell's directory"))?;
        let server = place.server(cell.misbehaviour);
        let mut witness = Witness::new(&place.token, &place.wrap);

        let mut apart = place.command(&server);
        apart.process_group(0);
        let mut bystanders = Vec::new();
        let beside = [(place.command(&server), "beside the runner"), (apart, "in its own group")];
        for (command, position) in beside {
            let started = Bystander::start(command, position);
            bystanders.push(started.map_err(problem("starting a bystander"))?);
        }

        let mut wrapper = None;
        let stage = if let Some(owner) = &place.owner {
            Stage::owner(&place, owner, &server)?
        } else {
            let (ours, theirs) = control_pair().map_err(problem("making a socket pair"))?;
            let mut stage = Stage::host(&place, subject, &server, theirs)?;
            let sibling = Bystander::meet(ours, None, "beside the host");
            bystanders.push(sibling.map_err(problem("starting the host's bystander"))?);
            wrapper = Some(stage.start()?);
            stage
        };
        for bystander in &bystanders {
            witness.spare(bystander.process());
        }
        // An owner program has the server's command line, token included, among its arguments.
        witness.spare(stage.process);
        if place.owner.is_some() {
            witness.know_by_environment();
        }
        let (guardian, verdict) = (None, Verdict::default());
        Ok(Self { cell, subject, stage, bystanders, witness, wrapper, guardian, verdict, place })
    }

    fn play(mut self) -> Verdict {
        if let Err(why) = self.wait_for_moment() {
            self.verdict.hung = Some(why);
        }
        self.count_heads();
        let began = Instant::now();
        self.die();
        self.see_them_leave(began);
        self.look_around();
        self.clean_up();
        let Self { stage, place, mut verdict, .. } = self;
        // Whoever is on the stage may write to the last.
        drop(stage);
        verdict.cluttered = place.clear();
        verdict
    }

    fn wait_for_moment(&mut self) -> Result<(), String> {
        if self.cell.moment == Moment::AtStart {
            until(delay(self.cell), || false);
            return Ok(());
        }
        if self.subject.owner.is_some() {
            match self.stage.hear(START_UP) {
                Line::Text(line) if line == "up" => {}
                other => return Err(format!("the owner did not say up: {other:?}")),
            }
        } else if !self.cell.misbehaviour.leader_exits() {
            self.shake_hands().map_err(|error| format!("handshake: {error}"))?;
        }
        self.wait_for_tree();
        if self.cell.moment == Moment::InCall {
            self.stage.send(CALL)?;
            let place = &self.place;
            if !until(START_UP, || place.roll().in_call) {
                return Err("the call never reached the server".to_owned());
            }
        }
        Ok(())
    }

    fn shake_hands(&mut self) -> Result<(), String> {
        self.stage.send(INITIALIZE)?;
        let reply = self.stage.receive(START_UP)?;
        if !reply.contains(r#""protocolVersion""#) {
            return Err(format!("unexpected reply: {reply}"));
        }
        self.stage.send(INITIALIZED)
    }

    /// Waits until the tree is complete: by what the members report of themselves, and by what the
    /// witness sees with its own eyes.
    fn wait_for_tree(&mut self) {
        let members = self.cell.misbehaviour.members();
        let (place, witness) = (&self.place, &mut self.witness);
        // Who hops, or has a leader that exits at once, need not be met by any look.
        let evasive = self.cell.misbehaviour.hops() || self.cell.misbehaviour.leader_exits();
        let built = until(START_UP, || {
            witness.look();
            let roll = place.roll();
            let seen = evasive || witness.seen() >= members;
            (roll.up >= members && seen) || roll.skipped.is_some()
        });
        if self.cell.misbehaviour.leader_exits() {
            // The leader has reported. What it left behind has too, unless it is dead already.
            let wrapper = self.wrapper;
            until(Duration::from_millis(300), || {
                place.roll().up > members || wrapper.is_some_and(|wrapper| !wrapper.is_alive())
            });
        }
        if !built {
            let roll = place.roll();
            let (up, seen) = (roll.up, witness.seen());
            let why = roll.failed.map_or_else(String::new, |why| format!("; {why}"));
            self.verdict.unbuilt =
                Some(format!("{members} members expected, {up} reported, {seen} seen{why}"));
        }
    }

    /// The census before the death: who is there, and who is wrapper and guardian among them.
    fn count_heads(&mut self) {
        let needs_wrapper = self.subject.guardian
            && matches!(
                self.cell.death,
                Death::SigkillWrapper | Death::SigkillGuardian | Death::SigkillBoth
            );
        let (stage, place) = (self.stage.process, &self.place);
        if needs_wrapper {
            let (wrapper, guardian) = (&mut self.wrapper, &mut self.guardian);
            // At the start it may not have been born yet; afterwards it is there at once.
            until(Duration::from_secs(1), || {
                if wrapper.is_none() {
                    *wrapper = find_holder(stage, place);
                }
                *guardian = wrapper.and_then(|wrapper| find_guardian(wrapper, place));
                guardian.is_some() || wrapper.is_some_and(|wrapper| !wrapper.is_alive())
            });
        }
        self.witness.adopt_descendants(stage);
        self.witness.look();
    }

    fn die(&mut self) {
        let (wrapper, guardian) = (self.wrapper, self.guardian);
        // A wrapper that has ended by itself, after its leader did, has no guardian to be killed;
        // an owner's holder that has, cannot even be found.
        let leaderless = self.cell.misbehaviour.leader_exits();
        let ended = wrapper.map_or(leaderless, |wrapper| !wrapper.is_alive());
        let mut struck = Struck { stage: &mut self.stage, wrapper, guardian };
        let mut outcome = struck.strike(self.cell.death);
        if outcome.is_err() && ended && guardian.is_none() {
            outcome = Ok(());
        }
        if outcome.is_ok() && self.cell.death == Death::SigkillBoth {
            outcome = sweep(&self.place);
        }
        if outcome.is_ok() && self.cell.death.is_told() && self.cell.moment == Moment::AtStart {
            // It hears of its end when it has begun. Whoever looks before that sees nobody yet.
            if let Line::Late = self.stage.hear(START_UP) {
                outcome = Err("the owner did not begin".to_owned());
            }
        }
        if let Err(why) = outcome {
            self.verdict.hung.get_or_insert(why);
        }
    }

    fn see_them_leave(&mut self, began: Instant) {
        // Hopping processes can be missed by one look, and by five; but they show signs of life.
        let hops = self.cell.misbehaviour.hops();
        let (place, witness) = (&self.place, &mut self.witness);
        let mut empty_since = began;
        let gone = until(self.subject.patience, || {
            empty_since = Instant::now();
            witness.nobody_in(if hops { 10 } else { 3 }) && (!hops || place.is_still())
        });
        if gone {
            let took = empty_since.duration_since(began).as_millis();
            self.verdict.gone_ms = u64::try_from(took).ok();
        } else {
            let left = self.witness.look();
            let mut survivors: Vec<_> =
                left.into_iter().map(|process| self.witness.describe(process)).collect();
            if survivors.is_empty() {
                survivors.push("somebody who hops from pid to pid".to_owned());
            }
            self.verdict.survivors = survivors;
        }
    }

    /// Everything but the survivors: bystanders, the host, exit code, cgroups, what was skipped.
    fn look_around(&mut self) {
        self.verdict.harmed = self.bystanders.iter().filter_map(Bystander::harm).collect();
        if self.subject.owner.is_none() && self.cell.death.spares_host() {
            if self.stage.is_well() {
                self.verdict.wrapper_exit = self.stage.wrapper_exit(Duration::from_millis(100));
            } else {
                self.verdict.harmed.push("the host was ended or stopped".to_owned());
            }
        }
        let witness = &self.witness;
        if !until(Duration::from_millis(500), || witness.left_cgroups().is_empty()) {
            self.verdict.left_cgroups = witness.left_cgroups();
        }
        self.verdict.peak = witness.peak();
        self.verdict.skipped = self.place.roll().skipped;
    }

    /// Leaves nothing of the cell behind, whatever its verdict.
    fn clean_up(&mut self) {
        self.place.call_off();
        if !self.verdict.survivors.is_empty() {
            let beyond_us = self.witness.end_all();
            let witness = &self.witness;
            let descriptions = beyond_us.into_iter().map(|process| witness.describe(process));
            self.verdict.survivors.extend(descriptions.map(|who| format!("unkillable: {who}")));
        }
        self.witness.remove_cgroups(&self.verdict.left_cgroups);
        for bystander in self.bystanders.drain(..) {
            bystander.end();
        }
    }
}

/// Up to 10 ms, different for each cell and the same each time.
fn delay(cell: &Cell) -> Duration {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in cell.name().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Duration::from_micros(hash % 10_000)
}
