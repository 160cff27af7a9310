//! What passes between a server's task and its holder, from the first word to the receipt.

use super::House;
use super::server::{Gone, View};
use super::state::Ready;
use crate::books::Books;
use crate::docker::endpoint::Surroundings;
use crate::id::{ServerName, SessionId};
use crate::mcp::Connection;
use crate::mcp::connection::Error as ConnectionError;
use crate::receipt::Receipt;
use crate::spec::ServerSpec;
use crate::start::Containers;
use crate::start::image;
use crate::start::local::{self, Holder, Leash, Line, Streams, Theirs};
use crate::start::wire::{Brief, Order, Word};
use contain::{Choice, Member};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
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
pub(super) type Turn = Option<SemaphorePermit<'static>>;

/// Waits until it is a server's turn to be started. Starting is work for the CPU, and many starts at
/// once would keep those that are to end from ending. The handshake is the server's own time.
pub(super) async fn turn() -> Turn {
    static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Semaphore::new(cpus * 2)
    });
    TURNS.acquire().await.ok()
}

/// What a holder said.
pub(super) enum Heard {
    /// The command runs.
    Started,
    /// Something that changes nothing.
    News,
    /// It is not there any more; the sentence says why.
    Left(String),
}

/// One server's holder, from the owner's side. Dropped, it ends the server.
pub(super) struct Talk {
    house: Arc<House>,
    /// Where others see how far it has come.
    view: Arc<View>,
    server: ServerName,
    line: Line,
    /// Its name in the books, once it is written down.
    noted: Option<SessionId>,
    started: Option<(i32, Member, String)>,
    /// Its processes are gone.
    emptied: bool,
    /// How the command left, if it did.
    exited: Option<String>,
    receipt: Option<Receipt>,
    /// Nothing more will be said.
    over: bool,
    /// A holder was executed, so there is something to account for.
    executed: bool,
    /// Reaped when this is dropped, or soon after.
    holder: Option<Holder>,
}

impl Talk {
    pub(super) fn new(house: &Arc<House>, view: &Arc<View>) -> io::Result<(Talk, Theirs, Streams)> {
        let (line, theirs, streams) = Line::new()?;
        let server = ServerName::given(&view.name).ok_or(io::ErrorKind::InvalidInput)?;
        let talk = Talk {
            house: house.clone(),
            view: view.clone(),
            server,
            line,
            noted: None,
            started: None,
            emptied: false,
            exited: None,
            receipt: None,
            over: false,
            executed: false,
            holder: None,
        };
        Ok((talk, theirs, streams))
    }

    pub(super) fn leash(&self) -> Leash {
        self.line.leash()
    }

    /// How far it came, for a start that took too long.
    pub(super) fn so_far(&self) -> &'static str {
        match (&self.started, self.executed) {
            (Some(_), _) => ": its process runs, but the handshake did not finish",
            (None, true) => ": its process did not start",
            (None, false) => "",
        }
    }

    /// From nothing to the end of the handshake. Gives a sentence if it does not come to that.
    pub(super) async fn begin(
        &mut self,
        turn: Turn,
        theirs: Theirs,
        spec: &ServerSpec,
        connection: &Connection,
    ) -> Result<Ready, String> {
        let brief = self.brief(spec)?;
        self.executed = true;
        let holder = &self.house.holder;
        let executed = local::execute(holder, theirs, image::environment(spec)).await;
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
        let greeted = async {
            let hello = connection.greet().await?;
            Ok((hello, connection.tools().await?))
        };
        let mut greeted = std::pin::pin!(greeted);
        let greeting: Result<_, ConnectionError> = loop {
            tokio::select! {
                biased;
                greeting = &mut greeted => break greeting,
                heard = self.next() => if let Heard::Left(why) = heard {
                    return Err(why);
                },
            }
        };
        match greeting {
            Ok((hello, tools)) => {
                let Some((pid, guardian, backend)) = self.started.clone() else {
                    return Err("it was never started".into());
                };
                // A namespace has numbers of its own; here it is the guardian's first child.
                let pid = match backend.as_str() {
                    "pidns" => contain::process::below(guardian.pid).first().map_or(pid, |m| m.pid),
                    _ => pid,
                };
                Ok(Ready { pid, backend, hello, tools })
            }
            Err(ConnectionError::Closed) => Err(self.why_left().await),
            Err(e) => Err(e.to_string()),
        }
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

    fn brief(&self, spec: &ServerSpec) -> Result<Brief, String> {
        let (program, args) = image::command(spec);
        let mut words: Vec<OsString> = args.iter().map(Into::into).collect();
        let mut docker = None;
        if let Some(around) = &self.house.docker {
            let most = self.house.max_containers;
            let around = told(around.clone(), spec);
            let found = Containers::of(program.as_ref(), &mut words, around, most);
            docker = found.docker.map_err(|e| format!("its containers cannot be held: {e}"))?;
        }
        if spec.image.is_some() && docker.is_none() {
            return Err(match &self.house.docker {
                Some(_) => "there is no Docker engine to run its image".into(),
                None => "containers are left alone in this session, so its image cannot run".into(),
            });
        }
        let args = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Brief {
            owner: Member::current().map(|me| (me.pid, me.start)),
            on_behalf: self.house.on_behalf.map(|one| (one.pid, one.start)),
            within: self.house.id.clone(),
            server: self.server.clone(),
            program,
            args,
            // In an image it is a directory there.
            cwd: spec.cwd.clone().filter(|_| spec.image.is_none()),
            backend: match self.house.backend {
                Choice::Auto => None,
                Choice::Named(backend) => Some(backend.name().into()),
            },
            ladder: Brief::rungs(&self.house.ladder),
            docker,
            state_dir: self.house.state_dir.clone(),
            sweep: self.house.is_first(),
        })
    }

    /// What the holder says next. Nothing is lost if this is dropped before it is done.
    pub(super) async fn next(&mut self) -> Heard {
        if self.over {
            return Heard::Left(self.explanation());
        }
        match self.line.word().await {
            Some(Word::Noted(session)) => {
                self.view.noted(session.clone());
                self.noted = Some(session);
            }
            Some(Word::Started { pid, guardian: (guardian, start), backend }) => {
                let guardian = Member { pid: guardian, start };
                self.view.guarded(guardian);
                self.started = Some((pid, guardian, backend));
                return Heard::Started;
            }
            Some(Word::Emptied) => self.emptied = true,
            Some(Word::Exited { how, last_words }) => {
                let why = match last_words.as_str() {
                    "" => format!("it left with {how}"),
                    words => format!("it left with {how}: {words}"),
                };
                self.exited = Some(why.clone());
                return Heard::Left(why);
            }
            Some(Word::Failed { why }) => {
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
    pub(super) async fn why_left(&mut self) -> String {
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
    pub(super) async fn end(mut self) -> Gone {
        let ladder = self.house.ladder;
        let longest = ladder.grace + ladder.linger + ladder.term_grace + ladder.look + OVERDUE;
        let asked = timeout(longest, async {
            if !self.over {
                self.line.order(Order::Close).await;
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
        Gone { receipts: receipt.into_iter().collect(), unaccounted }
    }

    fn kill_holders(&mut self) {
        if let Some(holder) = &mut self.holder {
            holder.kill();
        }
        if let Some((_, guardian, _)) = &self.started {
            // It is gone, or it is that very process.
            let _gone = guardian.signal(Signal::KILL);
        }
    }

    /// Neither holder nor guardian lives: does their work.
    async fn look(&self, session: SessionId) -> Option<Receipt> {
        let dir = self.house.state_dir.clone();
        let looked =
            tokio::task::spawn_blocking(move || Books::open(&dir).ok()?.finish(&session)).await;
        looked.ok().flatten()
    }
}

/// The same with what the server's own variables say of an engine.
fn told(mut around: Surroundings, spec: &ServerSpec) -> Surroundings {
    let said = |name: &str| spec.env.get(name).cloned();
    let path = |name: &str| said(name).map(PathBuf::from);
    around.host = said("DOCKER_HOST").or(around.host);
    around.context = said("DOCKER_CONTEXT").or(around.context);
    around.config = path("DOCKER_CONFIG").or(around.config);
    around.cert_path = path("DOCKER_CERT_PATH").or(around.cert_path);
    let flag = |name: &str, before| said(name).map_or(before, |value| !value.is_empty());
    around.tls_verify = flag("DOCKER_TLS_VERIFY", around.tls_verify);
    around.tls = flag("DOCKER_TLS", around.tls);
    around
}
