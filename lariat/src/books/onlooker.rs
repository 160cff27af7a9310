//! Somebody who looks at the sessions again and again, and remembers what cannot have changed.
//!
//! A page never changes, and what lies beside it changes with the directory. So a second look reads
//! files only if something was written, and costs little more than one pass over the processes.

use super::crowd::{Crowd, Person};
use super::slumber::{self, Dormitory, Sleeper};
use super::status::{self, Felt, Pulse};
use super::{Books, Page, Place, paper, sharing};
use crate::docker::client::{Client, Kind, Thing};
use crate::id::SessionId;
use crate::moment;
use crate::receipt::{Receipt, Survivor};
use crate::snapshot::{Container, Evidence, Host, Living, Process, Sharing, State, Status};
use contain::{Member, process};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

/// Who is quiet is looked at once in so many looks, by those who look often.
const EVERY: i32 = 5;

/// A directory that was written this shortly before it was read may have been written since, in the
/// same tick of its clock.
const SAME_TICK: Duration = Duration::from_millis(100);

/// Somebody who looks at the sessions of some books.
#[derive(Debug)]
pub struct Onlooker {
    books: Books,
    crowd: Crowd,
    /// By the name of the page.
    known: BTreeMap<PathBuf, Known>,
    /// Servers of a pool that sleep.
    asleep: Vec<Dormitory>,
    /// When the directory was last written, and that it is certain that all of that was read.
    read: Option<SystemTime>,
    shares: bool,
    /// There was a page that a sweep may have to do with.
    unfinished: bool,
}

/// What is known of one session.
#[derive(Debug)]
struct Known {
    page: Page,
    /// Somebody held it when it was first seen. That does not change while its wrapper lives.
    held: bool,
    status: Option<Status>,
    pulse: Option<i32>,
    superseded: bool,
    share: Option<Sharing>,
    /// Who was left when it ended.
    left: Vec<Survivor>,
    /// It has created something in an engine.
    used_engine: bool,
}

impl Onlooker {
    /// Somebody who looks once.
    pub fn new(books: &Books) -> Onlooker {
        let (books, crowd) = (books.clone(), Crowd::patient(1));
        Onlooker {
            books,
            crowd,
            known: BTreeMap::new(),
            asleep: Vec::new(),
            read: None,
            shares: false,
            unfinished: false,
        }
    }

    /// The same, who comes every second and must not cost much: who was quiet is not looked at each
    /// time, but every five.
    pub fn patient(self) -> Onlooker {
        Onlooker { crowd: Crowd::patient(EVERY), ..self }
    }

    /// The same, who also asks what memory is shared. That takes the kernel a look at every page.
    pub fn with_shares(self) -> Onlooker {
        Onlooker { shares: true, ..self }
    }

    /// Finishes what crashed sessions left, if there is any, and then looks. To be called by a process
    /// of one thread.
    pub fn sweep_and_look(&mut self) -> Vec<Living> {
        let living = self.look();
        let is_dying = |known: &Known| contain::process::is_dying(known.page.wrapper.0);
        if !self.unfinished && !self.known.values().any(is_dying) {
            // A sweep looks at every page; this look has seen that it would find nothing.
            return living;
        }
        // Their receipts are in the event log.
        let _logged = self.books.sweep();
        self.read = None;
        self.look()
    }

    /// Every session that lives here, oldest first, and those that have ended and left somebody. Not
    /// those of another machine or container that shares the directory: its pids mean nothing here.
    pub fn look(&mut self) -> Vec<Living> {
        // The pages first: whoever is written down has its processes after that.
        self.read();
        self.crowd.look();
        self.unfinished |= self.known.values().any(|known| !known.is_in_good_hands(&self.crowd));
        let now = SystemTime::now();
        let mut seen: Vec<(u64, u64, Living)> = Vec::new();
        for (path, known) in &self.known {
            let living = known.look(path, &mut self.crowd, now, self.shares);
            let order = (known.page.started_ms, known.page.mark);
            seen.extend(living.map(|living| (order.0, order.1, living)));
        }
        for pool in &self.asleep {
            // Whoever kept them has taken their clients along.
            let keeper = self.crowd.find(pool.keeper()).map(|_| pool);
            let sleepers = keeper.into_iter().flat_map(|pool| &pool.sleepers);
            seen.extend(sleepers.map(|one| (one.started_ms, 0, pool.look(one, &self.crowd, now))));
        }
        seen.sort_by_key(|(started, mark, _)| (*started, *mark));
        seen.into_iter().map(|(_, _, living)| living).collect()
    }

    /// Reads what was written since the last time.
    fn read(&mut self) {
        let dir = self.books.sessions();
        let changed = fs::metadata(&dir).and_then(|meta| meta.modified()).ok();
        if changed.is_some() && changed == self.read {
            return;
        }
        let certain = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > SAME_TICK);
        let Ok(here) = Place::here() else { return };
        self.read = changed.filter(certain);
        let files = fs::read_dir(&dir).into_iter().flatten().flatten();
        let files: BTreeSet<PathBuf> = files.map(|file| file.path()).collect();
        let asleep =
            files.iter().filter(|path| path.extension().is_some_and(|e| e == slumber::ENDING));
        self.asleep = asleep.filter_map(|path| Dormitory::read(path, &here)).collect();
        let mut before = std::mem::take(&mut self.known);
        self.unfinished = false;
        for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "json")) {
            let known = before.remove(path).map(|known| (known.page, known.held));
            let known = known.or_else(|| read_page(path));
            let Some((page, held)) = known else {
                self.unfinished = true;
                continue;
            };
            if !page.place.shares_pids(&here) {
                // A page from before a reboot is a sweep's to finish. That of another machine or
                // container is not, and stays for as long as that wants.
                self.unfinished |= page.place.is_finished_from(&here);
                continue;
            }
            let is_beside = |what: &str| files.contains(&path.with_extension(what));
            let told = is_beside("state").then(|| status::of(path)).flatten();
            let (status, pulse) = told.map_or((None, None), |(s, pulse)| (Some(s), pulse));
            let generation = page.generation.as_ref();
            let generation = generation.map(|name| self.books.generation(name, &page.session));
            let superseded = generation.is_some_and(|generation| generation.is_superseded());
            let left = if is_beside("receipt") { left(path) } else { Vec::new() };
            let used_engine = is_beside("docker");
            let share = is_beside("share").then(|| sharing::of(path)).flatten();
            let known = Known { page, held, status, pulse, superseded, share, left, used_engine };
            self.known.insert(path.clone(), known);
        }
    }

    /// Adds the containers of those that have used an engine, as far as engines answer within this
    /// time. Blocks for that long at most, and asks nobody if no session has used one. Returns those
    /// of which no engine has said anything: that is not the same as having none.
    pub fn ask_engines(&self, living: &mut [Living], within: Duration) -> BTreeSet<SessionId> {
        let users = self.known.values().filter(|known| known.used_engine);
        let users = users.filter_map(|k| Some((k.page.session.clone(), k.page.docker.as_ref()?)));
        let users: Vec<_> = users.map(|(s, docker)| (s, Client::new(&docker.endpoint))).collect();
        let mut silent: BTreeSet<SessionId> = users.iter().map(|(s, _)| s.clone()).collect();
        if users.is_empty() {
            return silent;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return silent };
        let listed = runtime.block_on(async {
            let mut asked = JoinSet::new();
            for (session, client) in users {
                asked.spawn(async move {
                    let listed = client.of_session(Kind::Container, session.as_str()).await;
                    Some((session, listed.ok()?))
                });
            }
            let mut listed = Vec::new();
            let collect = async {
                while let Some(answer) = asked.join_next().await {
                    listed.extend(answer.ok().flatten());
                }
            };
            // Who has not answered by then has said nothing.
            let _late = tokio::time::timeout(within, collect).await;
            listed
        });
        for (session, things) in listed {
            silent.remove(&session);
            if let Some(living) = living.iter_mut().find(|living| living.session == session) {
                let container =
                    |thing: Thing| Container { id: thing.key().into(), image: thing.image };
                living.containers = things.into_iter().map(container).collect();
            }
        }
        silent
    }
}

impl Known {
    /// True if those who are to end it live, and whom it is for.
    fn is_in_good_hands(&self, crowd: &Crowd) -> bool {
        let lives = |(pid, start): (i32, u64)| crowd.find(Member { pid, start }).is_some();
        self.held && lives(self.page.wrapper) && self.page.host.is_none_or(lives)
    }

    /// How it is; `None` if nobody cares for it and nobody is left.
    fn look(&self, path: &Path, crowd: &mut Crowd, now: SystemTime, pss: bool) -> Option<Living> {
        let page = &self.page;
        let (pid, start) = page.wrapper;
        let wrapper = Member { pid, start };
        let is_held = self.held && crowd.find(wrapper).is_some();
        let left: Vec<&Survivor> = self.left.iter().filter(|one| is_left(one, crowd)).collect();
        let ended = !is_held && !self.left.is_empty();
        if !is_held
            && if ended { left.is_empty() } else { !read_page(path).is_some_and(|(_, held)| held) }
        {
            return None;
        }
        let (tree, percents) = {
            let people: Vec<&Person> = if ended {
                let members = left.iter().map(|one| Member { pid: one.pid, start: one.start });
                members.filter_map(|member| crowd.find(member)).collect()
            } else {
                crowd.below(wrapper)
            };
            let percents: Vec<f64> = people.iter().filter_map(|person| person.percent()).collect();
            (people.into_iter().map(picture).collect::<Vec<Process>>(), percents)
        };
        let told = self.status.as_ref();
        let pulse = self.pulse.filter(|_| is_held).and_then(|at| Pulse::feel(wrapper, at));
        let state = match told.map(|status| status.state) {
            _ if ended => State::Survivors,
            // Its guardian holds the page, and is ending the tree.
            _ if !is_held => State::Ending,
            // Whoever speaks with it has not been answered yet.
            Some(State::Ready) if pulse == Some(Felt::Nothing) => State::Starting,
            Some(State::Ready) if pulse == Some(Felt::Awaited) => State::Busy,
            Some(State::Ready) if self.superseded => State::Superseded,
            None if tree.is_empty() => State::Starting,
            None if self.superseded => State::Superseded,
            None => State::Ready,
            Some(told) => told,
        };
        let since = |ms: u64| seconds_since(ms, now);
        let idle_s = match (state, pulse) {
            (State::Busy, _) => None,
            (State::Ready | State::Superseded, Some(Felt::Silence(silence))) => {
                Some(silence.as_millis() as f64 / 1000.0)
            }
            _ => told.and_then(|status| status.quiet_since_ms).map(since),
        };
        let mut evidence = told.map(|status| status.evidence.clone()).unwrap_or_default();
        if self.superseded && !ended && !evidence.contains(&Evidence::Superseded) {
            evidence.insert(0, Evidence::Superseded);
        }
        let host = page.on_behalf.or(page.host).map(|host| named(host, crowd));
        let is_container = |one: &&&Survivor| one.kind == "container";
        let container = |one: &&Survivor| Container {
            id: one.id.clone().unwrap_or_default(),
            image: String::new(),
        };
        let containers = left.iter().filter(is_container).map(container);
        Some(Living {
            session: page.session.clone(),
            within: page.within.clone(),
            server: page.server.clone(),
            host,
            wrapper: pid,
            state,
            idle_s,
            evidence,
            share: self.share.clone().filter(|_| is_held),
            backend: page.backend.clone(),
            started: moment::rfc3339(UNIX_EPOCH + Duration::from_millis(page.started_ms)),
            age_s: since(page.started_ms),
            processes: tree.len(),
            rss_bytes: tree.iter().map(|process| process.rss_bytes).sum(),
            pss_bytes: pss.then(|| shares(&tree)).flatten(),
            cpu_ms: tree.iter().map(|process| process.cpu_ms).sum(),
            cpu_percent: (!percents.is_empty()).then(|| percents.iter().sum()),
            containers: if ended { containers.collect() } else { Vec::new() },
            tree,
        })
    }
}

impl Dormitory {
    /// How one of its servers is, of which nothing runs.
    fn look(&self, one: &Sleeper, crowd: &Crowd, now: SystemTime) -> Living {
        Living {
            session: one.session.clone(),
            within: Some(self.pool.clone()),
            server: one.server.clone(),
            host: one.host.map(|host| named(host, crowd)),
            wrapper: self.keeper.0,
            state: State::Asleep,
            idle_s: Some(seconds_since(one.quiet_since_ms, now)),
            evidence: Vec::new(),
            share: Some(one.share.clone()),
            backend: one.backend.clone(),
            started: moment::rfc3339(UNIX_EPOCH + Duration::from_millis(one.started_ms)),
            age_s: seconds_since(one.started_ms, now),
            processes: 0,
            rss_bytes: 0,
            pss_bytes: None,
            cpu_ms: 0,
            cpu_percent: None,
            containers: Vec::new(),
            tree: Vec::new(),
        }
    }
}

fn named((pid, start): (i32, u64), crowd: &Crowd) -> Host {
    let host = crowd.find(Member { pid, start });
    Host { pid, name: host.map(|host| host.seen.name.clone()) }
}

/// To the millisecond, which is what was written down.
fn seconds_since(ms: u64, now: SystemTime) -> f64 {
    let then = UNIX_EPOCH + Duration::from_millis(ms);
    now.duration_since(then).unwrap_or_default().as_millis() as f64 / 1000.0
}

/// What a file says, if it is ours, and whether somebody holds it.
pub(super) fn read_page(path: &Path) -> Option<(Page, bool)> {
    let file = paper::open(path, false).ok()?;
    let meta = file.metadata().ok()?;
    // What a page says is shown and done. One that somebody else has put there is not ours.
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.nlink() == 0 {
        return None;
    }
    Some((serde_json::from_slice(&paper::rest(&file).ok()?).ok()?, is_locked(&file)))
}

/// True if somebody holds this page.
fn is_locked(page: &File) -> bool {
    // Shared, and for a moment only: whoever wants to finish a crash tries again.
    flock(page, FlockOperation::NonBlockingLockShared).is_err()
}

/// Who was left when the session with this page ended.
fn left(page: &Path) -> Vec<Survivor> {
    let text = paper::read(&page.with_extension("receipt")).ok();
    let receipt = text.and_then(|text| serde_json::from_slice::<Receipt>(&text).ok());
    receipt.map(|receipt| receipt.survivors).unwrap_or_default()
}

/// False for a process that has left since. What is no process is believed.
fn is_left(one: &Survivor, crowd: &Crowd) -> bool {
    one.pid == 0 || crowd.find(Member { pid: one.pid, start: one.start }).is_some()
}

fn picture(person: &Person) -> Process {
    let seen = &person.seen;
    Process {
        pid: seen.pid,
        ppid: seen.stat.ppid,
        start: seen.stat.start,
        command: seen.name.clone(),
        rss_bytes: seen.resident,
        cpu_ms: process::time(seen.stat.cpu_ticks).as_millis() as u64,
    }
}

/// Their memory with what is shared divided; `None` if that is not to be known of all of them.
fn shares(tree: &[Process]) -> Option<u64> {
    let share = |process: &Process| {
        let share = process::proportional(process.pid);
        let is_there = || Member { pid: process.pid, start: process.start }.is_alive();
        // Who has gone meanwhile has none.
        share.or_else(|| (!is_there()).then_some(0))
    };
    tree.iter().map(share).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use super::*;
    use crate::receipt::Reason;
    use contain::{Backend, Report};

    #[test]
    fn only_what_a_sweep_can_finish_makes_one() {
        let desk = Desk::new();
        let dir = desk.books.sessions();
        let entry = desk.note();
        let page = serde_json::to_value(entry.page()).unwrap();
        assert!(
            entry.settle(&Reason::Closed, Report::nothing(Backend::Descent)).unwritten.is_none()
        );
        let cases: [(&[&str], bool); 5] = [
            // It was given another name while it ran.
            (&["machine"], true),
            (&["machine", "boot"], false),
            // In it, if this is outside of all others.
            (&["pid_namespace"], page["place"]["pid_namespace"] == super::super::place::OUTERMOST),
            (&["pid_namespace", "boot", "machine"], false),
            (&["boot"], true),
        ];
        for (keys, wanted) in cases {
            let mut page = page.clone();
            for key in keys {
                page["place"][*key] = "another".into();
            }
            fs::write(dir.join("other.json"), page.to_string()).unwrap();
            let mut onlooker = Onlooker::new(&desk.books);
            assert!(onlooker.look().is_empty());
            assert_eq!(onlooker.unfinished, wanted, "{keys:?}");
        }
    }
}
