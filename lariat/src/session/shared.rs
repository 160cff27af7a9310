//! A server that a session may have together with others: it is the pool's, and the session is one
//! client of it. The session speaks with it as it does with its own.

use super::House;
use super::rest::{Conversation, Near, Resting, Shared};
use super::server::{Driver, Stop, View, Waiting, answer};
use super::state::{Ready, State};
use crate::mcp::connection::{Wire, take_in};
use crate::mcp::{Company, Connection, Frames, Rules};
use crate::pool::{Ear, Mouth, Over, Pool, Seat, Server, Want};
use crate::spec::ServerSpec;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What may be on its way between the two, beside what waits at either end.
const ROOM: usize = 64 << 10;

/// The near end, as a conversation has it.
pub(super) type Spoken = Conversation<WriteHalf<DuplexStream>, ReadHalf<DuplexStream>>;

/// Both ends of what the two speak by.
pub(super) struct Ends {
    pub(super) near: (WriteHalf<DuplexStream>, ReadHalf<DuplexStream>),
    pub(super) far: (WriteHalf<DuplexStream>, ReadHalf<DuplexStream>),
}

impl Ends {
    pub(super) fn new() -> Ends {
        let (near, far) = duplex(ROOM);
        let [near, far] = [near, far].map(|end| {
            let (reader, writer) = split(end);
            (writer, reader)
        });
        Ends { near, far }
    }
}

/// A session's place at a shared server, and what is on its way to and from it.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
    pub(super) frames: Frames,
    /// What the session is told and has not taken.
    pub(super) lines: Vec<u8>,
    pub(super) written: usize,
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
}

impl Bridge {
    pub(super) fn new(
        seat: Seat,
        (writer, reader): (WriteHalf<DuplexStream>, ReadHalf<DuplexStream>),
    ) -> Bridge {
        let (mouth, ear) = seat.split();
        let (frames, lines) = (Frames::default(), Vec::new());
        Bridge { mouth, ear, frames, lines, written: 0, reader, writer }
    }

    /// Speaks for the session until everything is over. If this is dropped before it is done, it can be
    /// called again.
    async fn serve(&mut self) -> Over {
        let Bridge { mouth, ear, frames, lines, written, reader, writer } = self;
        let listening = async {
            loop {
                if mouth.go_on().await.is_err() {
                    // What the server said before it left is still to be heard.
                    return std::future::pending().await;
                }
                if let Some(line) = frames.next() {
                    mouth.put(line);
                    continue;
                }
                let Ok(room) = frames.room() else {
                    return Over {
                        why: "the session said a line that is too long".into(),
                        code: 1,
                    };
                };
                if reader.read_buf(room).await.unwrap_or(0) == 0 {
                    return Over { why: "the session has left".into(), code: 0 };
                }
            }
        };
        let telling = async {
            loop {
                while *written < lines.len() {
                    match writer.write(&lines[*written..]).await {
                        Ok(count) if count > 0 => *written += count,
                        _ => return Over { why: "the session has left".into(), code: 0 },
                    }
                }
                (*lines, *written) = (Vec::new(), 0);
                if !ear.fill(lines).await {
                    return ear.over().cloned().unwrap_or_default();
                }
            }
        };
        let (listening, telling) = (pin!(listening), pin!(telling));
        tokio::select! {
            biased;
            over = telling => over,
            over = listening => over,
        }
    }
}

/// The task that speaks for a session. Dropped, its place is left.
pub(super) struct Membership {
    serving: JoinHandle<Result<Bridge, Over>>,
    halt: Arc<Notify>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Membership {
    /// Joins, and speaks by the connection. Nothing is started before something is said.
    pub(super) fn new(
        pool: &Pool,
        house: &House,
        view: &View,
        spec: &ServerSpec,
    ) -> (Membership, Connection, Spoken) {
        let server = Server { name: view.name.clone(), spec: spec.clone(), environment: None };
        let seat = pool.join(Want {
            server: Arc::new(server),
            principal: "".into(),
            share: spec.share,
            host: house.household.on_behalf,
            linger: Duration::ZERO,
        });
        let Ends { near: (writer, reader), far } = Ends::new();
        let rules = Rules { tools: spec.tools.clone(), capabilities: spec.capabilities.clone() };
        let connection = Connection::new(rules, Company::Kin);
        let conversation = Conversation::of(connection.only_run(), Wire::new(writer, reader));
        (Membership::of(Bridge::new(seat, far)), connection, conversation)
    }

    pub(super) fn of(mut bridge: Bridge) -> Membership {
        let halt = Arc::new(Notify::new());
        let halted = halt.clone();
        let serving = tokio::spawn(async move {
            let over = tokio::select! {
                biased;
                over = bridge.serve() => over,
                () = halted.notified() => return Ok(bridge),
            };
            // The session sees that it is over when this is dropped.
            let _gone_already = bridge.writer.shutdown().await;
            Err(over)
        });
        Membership { serving, halt }
    }

    /// Stops both ends where they are, and takes in what is between them. Nothing if it is over: then why.
    pub(super) async fn halt(
        &mut self,
        connection: &Connection,
        conversation: &mut Spoken,
    ) -> Result<Box<Shared>, String> {
        let near: Option<(_, Near)> = conversation.halt().await;
        self.halt.notify_one();
        let far = (&mut self.serving).await.unwrap_or_else(|_| Err(lost()));
        let (Some((life, mut wire)), mut bridge) = (near, far.map_err(|over| over.why)?) else {
            return Err("its conversation has ended".into());
        };
        take_in(&mut bridge.reader, &mut bridge.frames).await;
        wire.take_in().await;
        Ok(Box::new(Shared { bridge, connection: connection.clone(), life, wire }))
    }

    /// Shakes hands. Gives a sentence if it does not come to that.
    pub(super) async fn begin(&mut self, connection: &Connection) -> Result<Ready, String> {
        let greeted = async {
            let hello = connection.greet().await?;
            Ok::<_, crate::mcp::connection::Error>((hello, connection.tools().await?))
        };
        match greeted.await {
            // Its processes are the pool's.
            Ok((hello, tools)) => Ok(Ready { pid: 0, backend: "pool".into(), hello, tools }),
            Err(crate::mcp::connection::Error::Closed) => Err(self.why().await),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Why it is over, which it is.
    pub(super) async fn why(&mut self) -> String {
        match (&mut self.serving).await {
            Ok(Err(over)) => over.why,
            _ => lost().why,
        }
    }
}

impl Driver {
    /// Joins it, and stays until it is left. How it ends is the pool's to say.
    pub(super) async fn run_shared(
        &mut self,
        pool: &Pool,
        spec: &Arc<ServerSpec>,
        waiting: &mut Waiting,
    ) -> Stop {
        let (mut membership, connection, conversation) =
            Membership::new(pool, &self.house, &self.view, spec);
        let begun = tokio::select! {
            biased;
            order = self.orders.recv() => Err(Stop::Told(order)),
            ready = timeout(spec.startup_timeout, membership.begin(&connection)) => {
                let late = || Err(format!("it was not ready after {} ms", spec.startup_timeout.as_millis()));
                let ready = ready.unwrap_or_else(|_| late());
                ready.map_err(|why| Stop::Left { why: why.into(), was_ready: false })
            }
        };
        let stop = match begun {
            Err(stop) => stop,
            Ok(ready) => {
                {
                    let mut inner = self.view.inner();
                    inner.connection = (!inner.let_go).then(|| connection.clone());
                    (inner.told, inner.since) = (false, Instant::now());
                }
                self.view.enter(&self.house, State::Ready(Arc::new(ready)));
                answer(waiting);
                return self.attend_shared(membership, connection, conversation).await;
            }
        };
        self.leave(stop)
    }

    /// Goes on with one that was joined.
    pub(super) async fn stay_shared(&mut self, from: Shared) -> Stop {
        let Shared { bridge, connection, life, wire } = from;
        let conversation = Conversation::of(life, wire);
        self.attend_shared(Membership::of(bridge), connection, conversation).await
    }

    async fn attend_shared(
        &mut self,
        mut membership: Membership,
        connection: Connection,
        mut conversation: Spoken,
    ) -> Stop {
        let stop = loop {
            tokio::select! {
                biased;
                order = self.orders.recv() => break Stop::Told(order),
                () = conversation.ended() => {
                    break Stop::Left { why: membership.why().await.into(), was_ready: true };
                }
                () = self.house.called_to_rest() => {}
            }
            let shared = match membership.halt(&connection, &mut conversation).await {
                Ok(shared) => shared,
                Err(why) => break Stop::Left { why: why.into(), was_ready: true },
            };
            let Some(Resting::Shared(shared)) = self.rest(Resting::Shared(shared)).await else {
                break Stop::Told(None);
            };
            let Shared { bridge, life, wire, .. } = *shared;
            membership = Membership::of(bridge);
            conversation = Conversation::of(life, wire);
        };
        self.leave(stop)
    }

    fn leave(&self, stop: Stop) -> Stop {
        if matches!(stop, Stop::Told(_)) {
            self.view.inner().told = true;
            self.view.enter(&self.house, State::Ending);
        }
        self.view.inner().connection = None;
        stop
    }
}

fn lost() -> Over {
    Over { why: "the pool has ended".into(), code: 1 }
}
