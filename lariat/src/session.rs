//! Sessions: servers that belong to one owner, and end with it.
//!
//! [`Manager`] owns; [`Session`] speaks. A host keeps the one manager and hands out as many session
//! handles as it likes: clones of them, calls in flight, attached clients and tasks that hold any of
//! these keep nothing alive. When the manager is closed or dropped, in whatever way, the servers end,
//! and what was in flight fails with [`Error::Closed`].
//!
//! What ends a server is its holder's socket closing, on Windows the handle of its job, so it ends just
//! as well when this process is killed, panics, or drops its runtime first.

#[cfg(all(target_os = "linux", feature = "cli"))]
pub(crate) mod carried;
mod handle;
#[cfg(feature = "rmcp")]
mod peer;
#[cfg(target_os = "linux")]
mod picture;
#[cfg(windows)]
#[path = "session/picture/windows.rs"]
mod picture;
mod refresh;
mod rest;
mod server;
mod shared;
mod state;

pub use handle::Session;
pub use refresh::Change;
pub use state::{Error, Event, Ready, State};

use crate::docker::endpoint::Surroundings;
use crate::id::{ServerName, SessionId};
use crate::journal::make_private_dir;
use crate::pool::Pool;
use crate::receipt::{Receipt, Survivor};
use crate::spec::{ServerSpec, Servers};
use crate::start::local;
use crate::start::talk::{Departure, Household};
use contain::{Choice, Ladder, Mark, Member};
use rest::Course;
use server::{Begin, Driver, Order, View};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use tokio::sync::{broadcast, mpsc, oneshot};

/// How many events a listener may be behind.
const EVENTS: usize = 256;

/// How many containers a server may have at once, unless told otherwise.
const MAX_CONTAINERS: usize = 50;

/// What a host says about a session.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the host calls it.
    pub name: Option<String>,
    /// For whom the host wants it, if that is somebody else: those who look on are told.
    pub on_behalf: Option<Member>,
    /// Which servers.
    pub servers: Servers,
    /// Where the books, logs and events are.
    pub state_dir: PathBuf,
    /// The executable that holds a server's processes: one whose `main` begins with
    /// [`main_if_asked`](crate::main_if_asked). `None` for this very program. On Windows this process
    /// holds them itself, whatever is named here.
    pub holder: Option<PathBuf>,
    /// How servers are asked to leave.
    pub ladder: Ladder,
    /// What holds them.
    pub backend: Choice,
    /// Where to look for the engine in which they may start containers that end with them, and in
    /// which servers with an image run; `None` to leave containers alone. The library reads no
    /// environment: whoever does fills it in, with at least the home directory and the uid.
    pub docker: Option<Surroundings>,
    /// How many containers a server may have at once.
    pub max_containers: usize,
    /// Who else wants to know what happens in the session.
    pub events: Option<broadcast::Sender<Event>>,
    /// Where servers are that may be shared with other sessions. Without one, each has its own.
    pub pool: Option<Pool>,
}

impl Config {
    /// These servers, with everything else as usual and containers left alone.
    pub fn new(state_dir: impl Into<PathBuf>, servers: Servers) -> Config {
        Config {
            name: None,
            on_behalf: None,
            servers,
            state_dir: state_dir.into(),
            holder: None,
            ladder: Ladder::default(),
            backend: Choice::Auto,
            docker: None,
            max_containers: MAX_CONTAINERS,
            events: None,
            pool: None,
        }
    }
}

/// What the servers of a session have in common.
#[derive(Debug)]
struct House {
    name: Option<String>,
    events: broadcast::Sender<Event>,
    household: Arc<Household>,
    pool: Option<Pool>,
}

impl House {
    fn new(config: Config, id: SessionId) -> Result<House, Error> {
        let holder = config.holder.or_else(local::this_program).ok_or(Error::NoHolder)?;
        let unwritable = |e| Error::State(config.state_dir.clone(), e);
        make_private_dir(&config.state_dir).map_err(unwritable)?;
        let household = Arc::new(Household {
            id,
            on_behalf: config.on_behalf,
            holder,
            state_dir: config.state_dir,
            ladder: config.ladder,
            backend: config.backend,
            docker: config.docker,
            max_containers: config.max_containers,
            started: AtomicBool::new(false),
        });
        let events = config.events.unwrap_or_else(|| broadcast::channel(EVENTS).0);
        Ok(House { name: config.name, events, household, pool: config.pool })
    }

    fn id(&self) -> &SessionId {
        &self.household.id
    }

    fn tell(
        &self,
        server: Option<&str>,
        event: &'static str,
        why: Option<Arc<str>>,
        receipt: Option<Arc<Receipt>>,
    ) {
        // Nobody may be listening.
        let _unheard = self.events.send(Event {
            time: crate::moment::rfc3339(SystemTime::now()),
            session: self.id().clone(),
            server: server.map(Into::into),
            event,
            why,
            receipt,
        });
    }
}

/// How everything that a session started has left.
#[derive(Debug, Default)]
pub struct Ended {
    /// One for each server that ran at the end, in the order of their names, and for earlier runs
    /// that left something.
    pub receipts: Vec<Receipt>,
    /// Servers of which nobody can say what became; the next lariat command looks again.
    pub unaccounted: Vec<String>,
}

impl Ended {
    /// What is still there.
    pub fn survivors(&self) -> impl Iterator<Item = &Survivor> {
        self.receipts.iter().flat_map(|receipt| &receipt.survivors)
    }

    fn verdict(self) -> Result<Ended, Survivors> {
        if self.unaccounted.is_empty() && self.survivors().next().is_none() {
            Ok(self)
        } else {
            Err(Survivors(self))
        }
    }
}

/// Something of a session is still there, or may be.
#[derive(Debug)]
pub struct Survivors(pub Ended);

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.survivors().map(ToString::to_string).collect();
        match (names.is_empty(), self.0.unaccounted.is_empty()) {
            (false, _) => write!(f, "still there: {}", names.join(", ")),
            (true, _) => write!(f, "not accounted for: {}", self.0.unaccounted.join(", ")),
        }
    }
}

impl std::error::Error for Survivors {}

/// What a probe found.
#[derive(Debug)]
pub struct Probed {
    /// How far each server came.
    pub states: BTreeMap<String, State>,
    /// How they left.
    pub ended: Ended,
}

/// A server that the manager has told nothing final yet, or has.
#[derive(Debug)]
struct Slot {
    orders: mpsc::UnboundedSender<Order>,
    view: Arc<View>,
    /// It was told to end.
    ending: bool,
}

/// Owns the servers of one session. See the module's words.
#[derive(Debug)]
pub struct Manager {
    session: Session,
    slots: Mutex<BTreeMap<String, Slot>>,
    /// One refresh after the other.
    refreshing: tokio::sync::Mutex<()>,
}

impl Manager {
    /// Starts all servers in parallel, and waits until each is ready or has failed by itself.
    pub async fn start(config: Config) -> Result<Manager, Error> {
        let manager = Manager::open(config)?;
        manager.session.settled().await;
        Ok(manager)
    }

    /// Begins to start all servers, and does not wait: see [`Session::settled`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn open(mut config: Config) -> Result<Manager, Error> {
        check(&config.servers)?;
        let unwritable = |e| Error::State(config.state_dir.clone(), e);
        let mark = Mark::random().map_err(unwritable)?;
        let servers = std::mem::take(&mut config.servers);
        let house = House::new(config, SessionId::of(mark))?;
        house.tell(None, "opened", None, None);
        let manager = Manager::over(house);
        for (name, spec) in servers {
            manager.add(name, Arc::new(spec));
        }
        Ok(manager)
    }

    /// One without servers.
    fn over(house: House) -> Manager {
        Manager {
            session: Session::new(Arc::new(house)),
            slots: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
        }
    }

    /// Starts servers, lists what they offer, and ends them. Nothing is left when it returns.
    pub async fn probe(config: Config) -> Result<Probed, Error> {
        let manager = Manager::start(config).await?;
        let states = manager.session.states();
        let ended = manager.close().await.unwrap_or_else(|Survivors(ended)| ended);
        Ok(Probed { states, ended })
    }

    /// A handle to speak with them.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Ends all servers. What is in flight fails at once; nothing waits for it.
    pub async fn close(self) -> Result<Ended, Survivors> {
        let told: Vec<(String, Told)> =
            self.slots().iter_mut().map(|(name, slot)| (name.clone(), slot.end())).collect();
        let mut ended = Ended::default();
        for (name, told) in told {
            let gone = match told {
                Told::Now(reply) => reply.await.ok(),
                // By a refresh that was given up.
                Told::Before(view) => {
                    view.ended().await;
                    view.gone()
                }
                Told::Nobody => None,
            };
            // Without its task, which went with its runtime, nobody can say how it ended.
            let Departure { receipts, unaccounted } =
                gone.unwrap_or(Departure { unaccounted: true, ..Departure::default() });
            ended.receipts.extend(receipts);
            ended.unaccounted.extend(unaccounted.then_some(name));
        }
        ended.verdict()
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        // Nothing that is done under this lock can leave it half done.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a server and sets its task to work.
    fn add(&self, name: String, spec: Arc<ServerSpec>) -> Arc<View> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let view = Arc::new(View::new(&name, spec));
        self.session.show(&view);
        self.slots().insert(name, Slot { orders, view: view.clone(), ending: false });
        let house = self.session.house().clone();
        let course = Course { crashes: 0, debts: Departure::default(), began: Instant::now() };
        let driver = Driver { view: view.clone(), house, orders: inbox, course };
        tokio::spawn(driver.drive(Begin::New));
        view
    }
}

/// What came of telling a server to end.
enum Told {
    /// It will answer.
    Now(oneshot::Receiver<Departure>),
    /// It had been told already.
    Before(Arc<View>),
    /// Its task is not there any more.
    Nobody,
}

impl Slot {
    /// Tells it to end.
    fn end(&mut self) -> Told {
        if self.ending {
            return Told::Before(self.view.clone());
        }
        let (reply, answer) = oneshot::channel();
        let told = self.orders.send(Order::End(reply)).is_ok();
        self.ending = true;
        if told { Told::Now(answer) } else { Told::Nobody }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // One system call each. It needs no runtime, and cannot block or fail.
        self.session.let_go();
        self.session.house().tell(None, "closed", None, None);
    }
}

/// Says what is wrong with servers, if something is.
fn check(servers: &Servers) -> Result<(), Error> {
    for (name, spec) in servers {
        if ServerName::given(name).is_none_or(|clean| clean.as_str() != name) {
            let short: String = name.chars().take(80).collect();
            let why = "a name is 1 to 80 letters, digits, `-`, `_`, `.` or `+`, no dot first";
            return Err(Error::Spec(short, why.into()));
        }
        if let Some(why) = spec.complaint() {
            return Err(Error::Spec(name.clone(), why));
        }
    }
    Ok(())
}
