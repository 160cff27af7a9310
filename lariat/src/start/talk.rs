//! What passes between a server's task and its holder, from the first word to the receipt.

#[cfg(target_os = "linux")]
mod carried;
#[cfg(target_os = "linux")]
mod holder;
#[cfg(windows)]
#[path = "windows/holder.rs"]
mod holder;

#[cfg(target_os = "linux")]
pub(crate) use carried::Carried;

use super::environment::Environment;
use super::image;
use super::local::{self, Holder, Leash, Line, Streams, Theirs};
use super::word::{Order, Word};
use crate::docker::endpoint::Surroundings;
use crate::id::{ServerName, SessionId};
use crate::receipt::Receipt;
use crate::spec::ServerSpec;
use contain::{Choice, Ladder, Member};
use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How long to wait for the word that explains why a server closed its output.
const EXPLANATION: Duration = Duration::from_millis(500);

/// How long past its ladder a holder may be silent.
const OVERDUE: Duration = Duration::from_secs(1);

/// How long it may be silent once the processes are gone: an engine can take its time.
const ENGINE: Duration = Duration::from_secs(40);

/// How long a start that hangs may keep others from theirs.
const TURN: Duration = Duration::from_secs(1);

/// How long a holder may take to leave when all is said.
const PARTING: Duration = Duration::from_millis(250);

/// The right to be started now.
pub(crate) type Turn = Option<SemaphorePermit<'static>>;

/// Waits until it is a server's turn to be started. Starting is work for the CPU, and many starts at
/// once would keep those that are to end from ending. The handshake is the server's own time.
pub(crate) async fn turn() -> Turn {
    static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Semaphore::new(cpus * 2)
    });
    TURNS.acquire().await.ok()
}

/// What the servers of one owner have in common.
#[derive(Debug)]
pub(crate) struct Household {
    /// What they are written down as part of.
    pub(crate) id: SessionId,
    /// For whom the owner wants them, if that is somebody else.
    pub(crate) on_behalf: Option<Member>,
    /// What is executed to hold them.
    pub(crate) holder: PathBuf,
    /// Where the books are.
    pub(crate) state_dir: PathBuf,
    /// How they are asked to leave.
    pub(crate) ladder: Ladder,
    /// What holds them.
    pub(crate) backend: Choice,
    /// The engine in which they may start containers; `None` to leave those alone.
    pub(crate) docker: Option<Surroundings>,
    /// How many containers each may have at once.
    pub(crate) max_containers: usize,
    /// One was started already.
    pub(crate) started: AtomicBool,
}

impl Household {
    /// True once: the first server finishes what crashed sessions left.
    fn is_first(&self) -> bool {
        !self.started.swap(true, Ordering::Relaxed)
    }
}

/// How a server ended, as far as anybody could tell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Departure {
    /// Of its last run, and of those before that left something.
    pub(crate) receipts: Vec<Receipt>,
    /// True if something ran and nobody can say what became of it.
    pub(crate) unaccounted: bool,
}

impl Departure {
    /// What must not be forgotten when it is started again.
    pub(crate) fn debts(mut self) -> Departure {
        self.receipts.retain(|receipt| !receipt.survivors.is_empty());
        self
    }

    pub(crate) fn add(&mut self, other: Departure) {
        self.receipts.extend(other.receipts);
        self.unaccounted |= other.unaccounted;
    }
}

/// How far a run has come, for those who look on while it is driven.
#[derive(Debug, Default)]
pub(crate) struct Trace(Mutex<Place>);

/// Where a run is to be found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// Whose descendants its processes are.
    pub(crate) guardian: Option<Member>,
    /// Its name in the books.
    pub(crate) books: Option<SessionId>,
}

impl Trace {
    fn inner(&self) -> MutexGuard<'_, Place> {
        // Nothing that is done under this lock can leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self) -> Place {
        self.inner().clone()
    }

    /// Nothing of it runs any more.
    pub(crate) fn over(&self) {
        self.inner().guardian = None;
    }
}

/// A command that runs.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    /// Its pid, as this process sees it.
    pub(crate) pid: i32,
    /// Whose descendants its processes are.
    pub(crate) guardian: Member,
    /// What holds it.
    pub(crate) backend: String,
}

/// What a holder said.
pub(crate) enum Heard {
    /// The command runs.
    Started,
    /// Something that changes nothing.
    News,
    /// It is not there any more; the sentence says why.
    Left(String),
}

/// One server's holder, from the owner's side. Dropped, it ends the server.
#[derive(Debug)]
pub(crate) struct Talk {
    household: Arc<Household>,
    /// Where others see how far it has come.
    trace: Arc<Trace>,
    server: ServerName,
    line: Line,
    /// Its name in the books, once it is written down.
    noted: Option<SessionId>,
    started: Option<Started>,
    /// Its processes are gone.
    emptied: bool,
    /// How the command left, if it did.
    exited: Option<String>,
    /// The same in a word or two.
    how: Option<String>,
    /// With what `lariat run` would end, once that is known.
    code: Option<u8>,
    receipt: Option<Receipt>,
    /// Nothing more will be said.
    over: bool,
    /// A holder was executed, so there is something to account for.
    executed: bool,
    /// Reaped when this is dropped, or soon after.
    holder: Option<Holder>,
}

impl Talk {
    pub(crate) fn new(
        household: &Arc<Household>,
        server: &str,
    ) -> io::Result<(Talk, Theirs, Streams)> {
        let (line, theirs, streams) = Line::new()?;
        let server = ServerName::given(server).ok_or(io::ErrorKind::InvalidInput)?;
        let talk = Talk {
            household: household.clone(),
            trace: Arc::default(),
            server,
            line,
            noted: None,
            started: None,
            emptied: false,
            exited: None,
            how: None,
            code: None,
            receipt: None,
            over: false,
            executed: false,
            holder: None,
        };
        Ok((talk, theirs, streams))
    }

    pub(crate) fn leash(&self) -> Leash {
        self.line.leash()
    }

    /// How the command left, without what it wrote: that may be for one of several only.
    pub(crate) fn plainly(&self, why: String) -> String {
        match &self.how {
            Some(how) => format!("it left with {how}; `lariat logs` has what it wrote"),
            None => why,
        }
    }

    /// With what a wrapper around it would end.
    pub(crate) fn code(&self) -> Option<u8> {
        self.code
    }

    pub(crate) fn trace(&self) -> Arc<Trace> {
        self.trace.clone()
    }

    /// How far it came, for a start that took too long.
    pub(crate) fn so_far(&self) -> &'static str {
        match (&self.started, self.executed) {
            (Some(_), _) => ": its process runs, but the handshake did not finish",
            (None, true) => ": its process did not start",
            (None, false) => "",
        }
    }

    /// From nothing to a process that runs. Gives a sentence if it does not come to that.
    pub(crate) async fn begin(
        &mut self,
        turn: Turn,
        theirs: Theirs,
        spec: &ServerSpec,
        environment: Option<&Environment>,
    ) -> Result<Started, String> {
        let brief = self.brief(spec, environment)?;
        self.executed = true;
        let holder = &self.household.holder;
        let own = image::environment(spec);
        let executed = local::execute(holder, theirs, own, environment).await;
        let unexecuted = |e| format!("the holder {} cannot be executed: {e}", holder.display());
        self.holder = Some(executed.map_err(unexecuted)?);
        let unheard = |e| format!("the holder does not listen: {e}");
        self.line.brief(&brief).await.map_err(unheard)?;
        let in_its_turn = timeout(TURN, self.started()).await;
        drop(turn);
        match in_its_turn {
            Ok(started) => started?,
            // Nothing is lost by waiting anew.
            Err(_) => self.started().await?,
        }
        let mut started = self.started.clone().ok_or("it was never started")?;
        // A namespace has numbers of its own; here it is the guardian's first child.
        if started.backend == "pidns"
            && let Some(first) = contain::process::below(started.guardian.pid).first()
        {
            started.pid = first.pid;
        }
        Ok(started)
    }

    /// Waits until its process runs.
    async fn started(&mut self) -> Result<(), String> {
        loop {
            match self.next().await {
                Heard::Started => return Ok(()),
                Heard::News => {}
                Heard::Left(why) => return Err(why),
            }
        }
    }

    /// What the holder says next. Nothing is lost if this is dropped before it is done.
    pub(crate) async fn next(&mut self) -> Heard {
        if self.over {
            return Heard::Left(self.explanation());
        }
        match self.line.word().await {
            Some(Word::Noted(session)) => {
                self.trace.inner().books = Some(session.clone());
                self.noted = Some(session);
            }
            Some(Word::Started { pid, guardian: (guardian, start), backend }) => {
                let guardian = Member { pid: guardian, start };
                self.trace.inner().guardian = Some(guardian);
                self.started = Some(Started { pid, guardian, backend });
                return Heard::Started;
            }
            Some(Word::Emptied) => self.emptied = true,
            Some(Word::Exited { how, code, last_words }) => {
                self.code = Some(code);
                self.how = Some(how.clone());
                let why = match last_words.as_str() {
                    "" => format!("it left with {how}"),
                    words => format!("it left with {how}: {words}"),
                };
                self.exited = Some(why.clone());
                return Heard::Left(why);
            }
            Some(Word::Failed { why, code }) => {
                self.code = Some(code);
                // It never came to be, so there is nothing to account for.
                (self.over, self.executed) = (true, false);
                self.exited = Some(why.clone());
                return Heard::Left(why);
            }
            Some(Word::Ended(receipt)) => {
                self.over = true;
                self.receipt = Some(*receipt);
                return Heard::Left(self.explanation());
            }
            None => {
                self.over = true;
                return Heard::Left(self.explanation());
            }
        }
        Heard::News
    }

    fn explanation(&self) -> String {
        match (&self.exited, &self.receipt) {
            (Some(why), _) => why.clone(),
            (None, Some(receipt)) => format!("it ended ({})", receipt.reason),
            (None, None) => "what held it was killed".into(),
        }
    }

    /// The server has closed its output; most often it left, and we are about to be told.
    pub(crate) async fn why_left(&mut self) -> String {
        let told = timeout(EXPLANATION, async {
            loop {
                if let Heard::Left(why) = self.next().await {
                    return why;
                }
            }
        });
        told.await.unwrap_or_else(|_| "it closed its output".into())
    }

    /// Ends it by the ladder, its stdin being closed, and waits until it is accounted for.
    pub(crate) async fn end(&mut self) -> Departure {
        self.end_by(&[Order::Close]).await
    }

    /// The same for one that has had its time to leave in.
    pub(crate) async fn hasten(&mut self) -> Departure {
        // A holder of another version may not know how to make haste.
        self.end_by(&[Order::Close, Order::Hasten]).await
    }

    async fn end_by(&mut self, orders: &[Order]) -> Departure {
        let ladder = self.household.ladder;
        let longest = ladder.grace + ladder.linger + ladder.term_grace + ladder.look + OVERDUE;
        let asked = timeout(longest, async {
            for order in orders {
                if !self.over {
                    self.line.order(*order).await;
                }
            }
            while !self.over && !self.emptied {
                self.next().await;
            }
        });
        if asked.await.is_err() {
            // Stopped, or stuck. What they do not do is ours to do.
            self.kill_holders();
        }
        let accounted = timeout(ENGINE, async {
            while !self.over {
                self.next().await;
            }
        });
        let in_time = accounted.await.is_ok();
        // The receipt comes just before holder and guardian leave. Then nothing of ours is left.
        let parting = timeout(PARTING, async { while self.line.word().await.is_some() {} });
        if parting.await.is_err() && self.over {
            self.kill_holders();
        }
        if let (Some(holder), true) = (&mut self.holder, self.over) {
            holder.reaped().await;
        }
        let receipt = match (self.receipt.take(), self.noted.clone()) {
            (None, Some(session)) if self.over => self.look(session).await,
            (receipt, _) => receipt,
        };
        let unaccounted = receipt.is_none() && self.executed && !(in_time && self.noted.is_none());
        Departure { receipts: receipt.into_iter().collect(), unaccounted }
    }
}
