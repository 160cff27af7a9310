//! One server for many clients, where that is safe.
//!
//! A client [joins](Pool::join) and speaks; its first words decide what it joins. Private is the rule:
//! a process is shared only where that was asked for, by clients that want exactly the same of exactly
//! the same program, and that a server can ask nothing. Whatever a shared server says that could be
//! meant for more than one is refused, counted and shown, and one that does that is not shared any
//! more with whoever comes next. `docs/design/pooling.md` has the reasons.
//!
//! ```text
//! verdict   what the first words say (pure)
//! key       what must be the same
//! hub       a process and its clients
//! drive     what becomes of it: started, asleep, started again, ended
//! seat      a client's place, before and after it is decided which
//! rest      when everything stays as it is for a moment
//! carried   all of it, handed to the next program
//! ```

#[cfg(all(target_os = "linux", feature = "cli"))]
pub(crate) mod carried;
#[cfg_attr(windows, expect(dead_code, reason = "part of it is for what only Linux has"))]
mod drive;
mod hub;
mod key;
mod rest;
mod seat;
mod verdict;

pub use crate::start::environment::Environment;
pub use seat::{Ear, Mouth, Over, Seat};
pub use verdict::Verdict;

use crate::docker::endpoint::Surroundings;
use crate::id::SessionId;
use crate::receipt::Receipt;
use crate::spec::{ServerSpec, Share};
use crate::start::local;
use crate::start::talk::{Departure, Household};
use contain::{Choice, Ladder, Mark, Member};
use drive::Begin;
use hub::{Hub, Parting};
use key::Key;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, broadcast, watch};
use verdict::Terms;

/// How many notices a listener may be behind.
const NOTICES: usize = 256;

/// How many requests may be in flight at one process before the next client gets another.
const BUSY: usize = 512;

/// A server that could not be started is not tried again for this long; each time twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Servers that are remembered for having failed, or for being unfit to be shared.
const REMEMBERED: usize = 256;

/// What a daemon or a host says about its pool.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the books, logs and events are.
    pub state_dir: PathBuf,
    /// The executable that holds a server's processes; `None` for this very program.
    pub holder: Option<PathBuf>,
    /// How servers are asked to leave.
    pub ladder: Ladder,
    /// What holds them.
    pub backend: Choice,
    /// The engine in which they may start containers; `None` to leave those alone.
    pub docker: Option<Surroundings>,
    /// How many containers a server may have at once.
    pub max_containers: usize,
}

/// A server, as those who want it say.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// What it is called in receipts and logs.
    pub name: String,
    /// What to run.
    pub spec: ServerSpec,
    /// What it finds around it, if not what this process does.
    pub environment: Option<Environment>,
}

/// What a client wants.
#[derive(Debug, Clone)]
pub struct Want {
    /// Of which server.
    pub server: Arc<Server>,
    /// For whom. Nothing is ever shared by two.
    pub principal: Arc<str>,
    /// Whether it may have a process together with others.
    pub share: Share,
    /// The host that wants it, for those who look on.
    pub host: Option<Member>,
    /// For how long a process without clients is kept for the next: where clients come and go with
    /// each request, some time; where each is a session, none.
    pub linger: Duration,
}

/// Something that happened in the pool.
#[derive(Debug, Clone)]
pub struct Notice {
    /// To which server.
    pub server: Arc<str>,
    /// Its name in the books, if it has one by now.
    pub books: Option<SessionId>,
    /// `joined`, `left`, `unshared`, `asleep`, `awake`.
    pub event: &'static str,
    /// How many clients it has now.
    pub sessions: usize,
    /// The verdict, or what made it unfit.
    pub why: String,
}

/// A process of the pool, or one that sleeps.
#[derive(Debug, Clone)]
pub struct View {
    /// Which server.
    pub server: String,
    /// Its name in the books, while it runs.
    pub books: Option<SessionId>,
    /// Whose descendants its processes are, while it runs.
    pub guardian: Option<Member>,
    /// Whether it is shared.
    pub verdict: Verdict,
    /// How many clients it has.
    pub sessions: usize,
    /// Requests without an answer.
    pub in_flight: usize,
    /// What nobody could be given.
    pub dropped: u64,
    /// `starting`, `ready`, `asleep` or `ending`.
    pub state: &'static str,
    /// What it did that makes it unfit for several clients.
    pub hazard: Option<&'static str>,
    /// What is left of it while it sleeps.
    pub asleep: Option<Asleep>,
}

/// A process that sleeps: how it was when it was last awake.
#[derive(Debug, Clone)]
pub struct Asleep {
    /// Its name in the books.
    pub books: SessionId,
    /// What held it.
    pub backend: String,
    /// Who wanted it, if that is one host.
    pub host: Option<Member>,
    /// When it was started.
    pub started: SystemTime,
    /// When it last said or heard something.
    pub quiet_since: SystemTime,
}

/// How the servers of a pool ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Of each that ended now.
    pub receipts: Vec<Receipt>,
    /// Those of which nobody can say how they ended.
    pub unaccounted: Vec<String>,
}

/// Processes that clients can join. Cheap to clone. Dropping the last handle ends all of them.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    holder: PathBuf,
    id: SessionId,
    started: AtomicBool,
    table: Mutex<Table>,
    notices: broadcast::Sender<Notice>,
    /// How many there are.
    hubs: watch::Sender<usize>,
    /// True while everything is to stay as it is.
    rest: watch::Sender<bool>,
    /// One more process does.
    rested: Notify,
}

#[derive(Debug, Default)]
struct Table {
    closing: bool,
    hubs: Vec<Arc<Hub>>,
    /// With the era that they did it in: what is unsafe in one need not be so in the other.
    unfit: Vec<(Key, bool, &'static str)>,
    failed: Vec<Failed>,
}

impl Table {
    /// What makes a server unfit to be shared, if anything does. There is no room to remember more of
    /// them than so many; from then on nobody can say of any that it is fit.
    fn is_unfit(&self, key: &Key, modern: bool) -> Option<&'static str> {
        let known = self.unfit.iter().find(|it| (&it.0, it.1) == (key, modern));
        let full = self.unfit.len() >= REMEMBERED;
        known.map(|it| it.2).or(full.then_some("too many servers were unfit to be shared"))
    }

    /// An error if a server has just failed to start.
    fn may_start(&self, key: &Key) -> Result<(), Over> {
        let failed = self.failed.iter().find(|failed| failed.key == *key);
        match failed.filter(|failed| Instant::now() < failed.not_before) {
            Some(failed) => Err(Over { why: failed.why.clone(), code: failed.code }),
            None => Ok(()),
        }
    }
}

/// A server that could not be started.
#[derive(Debug)]
struct Failed {
    key: Key,
    times: u32,
    not_before: Instant,
    why: String,
    code: u8,
}

impl Pool {
    /// An empty one.
    pub fn new(config: Config) -> io::Result<Pool> {
        let id = SessionId::of(Mark::random()?);
        Pool::with_id(config, id)
    }

    fn with_id(config: Config, id: SessionId) -> io::Result<Pool> {
        let no_holder = "no program is named that can hold a server";
        let holder = config.holder.clone().or_else(local::this_program);
        Ok(Pool(Arc::new(Inner {
            holder: holder.ok_or_else(|| io::Error::other(no_holder))?,
            id,
            started: AtomicBool::new(false),
            table: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            hubs: watch::Sender::new(0),
            rest: watch::Sender::new(false),
            rested: Notify::new(),
            config,
        })))
    }

    /// A place for a client. Nothing is started before its first line.
    pub fn join(&self, want: Want) -> Seat {
        Seat::new(self.clone(), want)
    }

    /// What happens from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.0.notices.subscribe()
    }

    /// True if everybody who listens has heard what has happened so far.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(crate) fn is_minuted(&self) -> bool {
        self.0.notices.is_empty()
    }

    /// All processes.
    pub fn view(&self) -> Vec<View> {
        self.0.table().hubs.iter().map(|hub| hub.view()).collect()
    }

    /// How many processes there are, with those asleep, now and whenever that changes.
    pub fn size(&self) -> watch::Receiver<usize> {
        self.0.hubs.subscribe()
    }

    /// What its servers are written down as part of.
    pub fn id(&self) -> &SessionId {
        &self.0.id
    }

    /// True if there is no process, and none asleep.
    pub fn is_empty(&self) -> bool {
        self.0.table().hubs.is_empty()
    }

    /// Ends all processes. Nobody can join any more.
    pub async fn close(&self) -> Ended {
        let hubs = {
            let mut table = self.0.table();
            table.closing = true;
            table.hubs.clone()
        };
        hubs.iter().for_each(|hub| hub.end());
        let mut ended = Ended::default();
        for hub in hubs {
            let Departure { receipts, unaccounted } = hub.gone().await;
            ended.receipts.extend(receipts);
            ended.unaccounted.extend(unaccounted.then(|| hub.name().to_owned()));
        }
        ended
    }

    /// Sees to it that a process is ready for the next client that wants this.
    pub fn warm(&self, want: &Want) {
        let mut table = self.0.table();
        self.warm_up(&mut table, want, &Key::of(want));
    }

    fn warm_up(&self, table: &mut Table, want: &Want, key: &Key) {
        if table.closing || table.hubs.iter().any(|hub| hub.is_spare_for(key)) {
            return;
        }
        let hub = match want.share {
            // Whoever comes greets it.
            Share::Never => Hub::spare(want, key.clone()),
            Share::Strict | Share::Reduced => {
                let version = crate::mcp::LEGACY.into();
                let terms = Terms::Legacy { version, capabilities: serde_json::Map::new() };
                Hub::new(want, key.clone(), terms, Verdict::Shared)
            }
        };
        self.admit(table, hub);
    }

    fn admit(&self, table: &mut Table, hub: Hub) -> Arc<Hub> {
        let hub = Arc::new(hub);
        table.hubs.push(hub.clone());
        self.0.hubs.send_modify(|hubs| *hubs += 1);
        let household = Arc::new(self.0.household(&hub));
        tokio::spawn(drive::drive(hub.clone(), household, Arc::downgrade(&self.0), Begin::New));
        hub
    }

    /// Which process a client gets that says this first.
    fn assign(&self, want: &Want, first: &[u8]) -> Result<hub::Place, Over> {
        let (terms, mut verdict) = Terms::of(first).judge(want.share);
        let key = Key::of(want);
        let mut table = self.0.table();
        if table.closing {
            return Err(Over { why: "the pool is ending".into(), code: 125 });
        }
        let modern = matches!(terms, Terms::Modern { .. });
        if verdict == Verdict::Shared
            && let Some(why) = table.is_unfit(&key, modern)
        {
            verdict = Verdict::private(why);
        }
        // Where each request of the modern era has a place of its own, those for one person are
        // together: a second would otherwise find nothing of what the first began.
        let each_its_own = modern && !want.linger.is_zero();
        let together = verdict == Verdict::Shared || each_its_own;
        let found = match together {
            true => table.hubs.iter().find_map(|hub| hub.admit(&key, &terms)),
            false => table.hubs.iter().find_map(|hub| hub.take(&key, &terms, &verdict)),
        };
        let place = match found {
            Some(place) => place,
            None => {
                table.may_start(&key)?;
                let hub = Hub::new(want, key.clone(), terms, verdict);
                self.admit(&mut table, hub).sit()?
            }
        };
        if want.server.spec.warm {
            self.warm_up(&mut table, want, &key);
        }
        Ok(place)
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that is done under this lock can leave it half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn household(&self, hub: &Hub) -> Household {
        let Config { state_dir, ladder, backend, docker, max_containers, .. } = self.config.clone();
        Household {
            id: self.id.clone(),
            on_behalf: hub.host(),
            holder: self.holder.clone(),
            state_dir,
            ladder,
            backend,
            docker,
            max_containers,
            started: AtomicBool::new(self.started.swap(true, Ordering::Relaxed)),
        }
    }

    /// A process is not to be joined any more.
    fn strike(&self, hub: &Hub) {
        let _nobody_joins = self.table();
        hub.struck.store(true, Ordering::Relaxed);
    }

    /// The same if nobody uses it. False if somebody has just joined it.
    fn strike_unused(&self, hub: &Hub) -> bool {
        let _nobody_joins = self.table();
        let unused = hub.sessions() == 0;
        hub.struck.fetch_or(unused, Ordering::Relaxed);
        unused
    }

    /// A process leaves with its only client, which says nothing more. False if it has others, or may
    /// have.
    fn part(&self, hub: &Hub, how: Parting) -> bool {
        let _nobody_joins = self.table();
        let parts = hub.is_for_one() && (hub.connection.say_no_more() || how == Parting::Unheard);
        if parts {
            hub.struck.store(true, Ordering::Relaxed);
            hub.parted.send_replace(Some(how));
        }
        parts
    }

    /// A process is not there any more.
    fn forget(&self, hub: &Arc<Hub>) {
        self.table().hubs.retain(|other| !Arc::ptr_eq(other, hub));
        self.hubs.send_modify(|hubs| *hubs -= 1);
    }

    /// True if this is the one process that is kept ready for the next client that wants it.
    fn keeps_warm(&self, hub: &Arc<Hub>) -> bool {
        let first = |other: &&Arc<Hub>| other.is_spare_for(hub.key());
        hub.is_warm()
            && self.table().hubs.iter().find(first).is_some_and(|one| Arc::ptr_eq(one, hub))
    }

    /// Whether a server could be started.
    fn started(&self, key: &Key, failure: Option<(&str, u8)>) {
        let mut table = self.table();
        let before = table.failed.iter().position(|failed| failed.key == *key);
        let before = before.map(|at| table.failed.swap_remove(at));
        let Some((why, code)) = failure else { return };
        let times = before.map_or(0, |failed| failed.times + 1);
        let pause = (FIRST_PAUSE * 2u32.saturating_pow(times.min(10))).min(LONGEST_PAUSE);
        let not_before = Instant::now() + pause;
        if table.failed.len() < REMEMBERED {
            table.failed.push(Failed {
                key: key.clone(),
                times,
                not_before,
                why: why.into(),
                code,
            });
        }
    }

    /// A server did what one for several clients must not do.
    fn unfit(&self, key: &Key, modern: bool, why: &'static str) -> bool {
        let mut table = self.table();
        let known = table.unfit.iter().any(|it| (&it.0, it.1) == (key, modern));
        if !known && table.unfit.len() < REMEMBERED {
            table.unfit.push((key.clone(), modern, why));
        }
        !known
    }

    /// Somebody has come or gone. Where each request comes and goes, that is no news.
    fn tell_company(&self, hub: &Hub, event: &'static str) {
        if !hub.has_requests_only() {
            self.tell(hub, event, hub.verdict().to_string());
        }
    }

    fn tell(&self, hub: &Hub, event: &'static str, why: String) {
        // Nobody may be listening.
        let _unheard = self.notices.send(Notice {
            server: hub.name().into(),
            books: hub.view().books,
            event,
            sessions: hub.sessions(),
            why,
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.table().hubs.iter().for_each(|hub| hub.let_go());
    }
}

/// The pool, for its own tasks: they do not keep it.
type Handle = Weak<Inner>;
