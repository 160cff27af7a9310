//! A server's time in a conversation: its handshake, reading and writing.
//!
//! A conversation of a session has one run and is over with it. One of the pool may have several: a
//! server that nobody needs is ended, and the next is greeted as the first was before it hears what
//! has been said meanwhile.

use super::{Connection, Ended, Error, Life, Shared, State, Waiting, raw, result, us};
use crate::mcp::frame::Frames;
use crate::mcp::mux::{Company, Port, Routed};
use crate::mcp::queue::{self, Queue};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::unconstrained;

/// How a server is greeted before it hears what its clients say.
#[derive(Debug, Clone)]
pub(crate) enum Opening {
    /// Not at all: the first word is a client's.
    Straight,
    /// By us, for all clients.
    Ours {
        /// The protocol revision that we ask for.
        version: String,
        /// What we say that our clients can do.
        capabilities: Map<String, Value>,
        /// Another was greeted so before, and the clients know what that one said.
        again: bool,
    },
    /// As its one client greeted the one before.
    Again,
}

/// A server's streams, and what is on its way in them. A run that was dropped has left it as it is, and
/// another goes on from there.
#[derive(Debug)]
pub(crate) struct Wire<I, O> {
    /// Absent once nothing more will be said.
    pub(super) input: Option<I>,
    pub(super) output: O,
    pub(super) inbox: Inbox,
}

/// What a server has said.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) frames: Frames,
    /// Lines for clients whose queues were full, in the order in which they came.
    pub(super) undelivered: VecDeque<(Port, Vec<u8>)>,
}

impl<I, O> Wire<I, O> {
    pub(crate) fn new(input: I, output: O) -> Wire<I, O> {
        Wire { input: Some(input), output, inbox: Inbox::default() }
    }

    /// Takes in what is there to be read, for a stream that does not last as long as this.
    pub(crate) async fn take_in(&mut self)
    where
        O: AsyncRead + Unpin,
    {
        take_in(&mut self.output, &mut self.inbox.frames).await;
    }
}

/// Reads what is there, and waits for nothing.
pub(crate) async fn take_in(from: &mut (impl AsyncRead + Unpin), to: &mut Frames) {
    let mut space = [0; 8192];
    loop {
        let mut piece = ReadBuf::new(&mut space);
        let there = unconstrained(poll_fn(|cx| {
            Poll::Ready(Pin::new(&mut *from).poll_read(cx, &mut piece))
        }));
        // What has ended has so the next time as well.
        match there.await {
            Poll::Ready(Ok(())) if !piece.filled().is_empty() => {}
            _ => return,
        }
        // A line that is too long is so the next time as well.
        let _long = to.feed(piece.filled());
    }
}

impl Connection {
    /// The only run of a conversation, which ends with it. Made before the future is, so that it also
    /// counts if that is never polled.
    pub(crate) fn only_run(&self) -> OnlyRun {
        self.0.lock().asleep = false;
        OnlyRun(Arc::clone(&self.0))
    }

    /// Speaks with a server until it ends; the conversation goes on. `opened` is told how the
    /// handshake went. Its input is closed early if [nothing more is said](Connection::say_no_more). If
    /// this is dropped, what is in flight waits for ever, until [`Connection::fail`] is called or there is
    /// another run: of another server, or, if the handshake was over, of this one.
    pub(crate) async fn run(
        &self,
        wire: &mut Wire<impl AsyncWrite + Unpin, impl AsyncRead + Unpin>,
        opening: Opening,
        opened: oneshot::Sender<Result<(), Error>>,
    ) -> Ended {
        let shared = &*self.0;
        shared.lock().asleep = false;
        let mut parcels = shared.parcels.lock().await;
        let parcels = &mut *parcels;
        let Wire { input, output, inbox } = wire;
        let mut reading = pin!(shared.read(output, inbox));
        let writing = async move {
            if let Some(open) = input {
                let greeted = self.open_with(open, opening).await;
                let failed = greeted.is_err();
                // Whoever started it may not want to know.
                let _unheard = opened.send(greeted);
                if failed {
                    return std::future::pending().await;
                }
                queue::write(open, parcels).await?;
                // It has heard all there is, and knows. What it still says is heard.
                *input = None;
            }
            std::future::pending::<std::io::Result<()>>().await
        };
        tokio::select! {
            ended = &mut reading => ended,
            // It does not listen any more, but may have said something before.
            _ = writing => tokio::select! {
                biased;
                ended = &mut reading => ended,
                () = tokio::task::yield_now() => Ended::Input,
            },
        }
    }

    async fn open_with(
        &self,
        input: &mut (impl AsyncWrite + Unpin),
        opening: Opening,
    ) -> Result<(), Error> {
        let garbled = || Err(Error::Garbled("initialize".into()));
        let is_other;
        match opening {
            Opening::Straight => return Ok(()),
            Opening::Ours { version, capabilities, again } => {
                let hello = json!({
                    "protocolVersion": version, "capabilities": capabilities, "clientInfo": us(),
                });
                let hello = raw(&hello)?;
                let (waiting, line, answer) = Waiting::ask(&self.0, "initialize", Some(&hello))?;
                say(input, line).await?;
                let line = answer.await.map_err(|_| Error::Closed)?;
                drop(waiting);
                let result = result(&line).unwrap_or_else(garbled)?;
                let initialized =
                    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
                say(input, initialized.to_string().into_bytes()).await?;
                let mut state = self.0.lock();
                is_other = again && !state.mux.is_same_greeting(&line);
                state.mux.greeted(&result);
            }
            Opening::Again => {
                let again = self.0.lock().mux.greeting_again();
                // Nothing was said by which it was greeted, so there is nothing to repeat.
                let Some(again) = again else { return Ok(()) };
                let (waiting, answer) = Waiting::of(&self.0, again.id);
                say(input, again.initialize).await?;
                let line = answer.await.map_err(|_| Error::Closed)?;
                drop(waiting);
                result(&line).unwrap_or_else(garbled)?;
                is_other = !self.0.lock().mux.is_same_greeting(&line);
                if let Some(initialized) = again.initialized {
                    say(input, initialized).await?;
                }
            }
        }
        let again = self.0.lock().mux.replay();
        for line in again {
            say(input, line).await?;
        }
        if is_other {
            self.tell_changed();
        }
        Ok(())
    }

    /// The server is another than before: whoever keeps lists of what it offers is to ask again.
    fn tell_changed(&self) {
        let queues: Vec<Queue> = self.0.lock().ports.values().cloned().collect();
        for what in ["tools", "prompts", "resources"] {
            let method = format!("notifications/{what}/list_changed");
            let line = json!({ "jsonrpc": "2.0", "method": method }).to_string();
            for queue in &queues {
                // One that has left does not need it.
                let _left = queue.lend(line.clone().into_bytes());
            }
        }
    }

    /// Lets go of the server, if nothing speaks against it: from here on what is said waits for the
    /// next. The run is then to be dropped.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut state = self.0.lock();
        let is_quiet = state.mux.may_sleep() && !state.is_parked() && self.0.queue.is_empty();
        let may = state.open && !state.asleep && !state.parting && is_quiet;
        if may {
            (state.asleep, state.wanted) = (true, false);
            state.pulse = None;
            // Nobody waits, so nobody is told; but what this server left undone is over with it.
            let _nothing = state.mux.server_left("the server sleeps");
        }
        may
    }

    /// Closes the server's input behind what has been said so far; it is heard until it ends. False if
    /// there is no server.
    pub(crate) fn say_no_more(&self) -> bool {
        let mut state = self.0.lock();
        // One that is wanted is about to be there, and hears it then.
        let may = state.open && (!state.asleep || state.wanted);
        if may && !state.parting {
            state.parting = true;
            for Routed { to_server, to_ports, .. } in state.unpark() {
                for line in to_server {
                    // There is an end to how much of it there can be.
                    let _closing = self.0.queue.lend(line);
                }
                for (port, line) in to_ports {
                    // One that has left does not need it.
                    let _left = state.ports.get(&port).map(|queue| queue.lend(line));
                }
            }
            self.0.queue.end();
        }
        may
    }

    /// True if the server could go and nobody would notice.
    pub(crate) fn may_sleep(&self) -> bool {
        self.0.lock().mux.may_sleep()
    }

    /// Waits until something waits for a server.
    pub(crate) async fn wanted(&self) {
        loop {
            let wanted = self.0.wanted.notified();
            if self.0.lock().wanted {
                return;
            }
            wanted.await;
        }
    }

    /// The server is not there any more and no other will come: an error for each that waits, and
    /// then everything is over.
    pub(crate) fn fail(&self, why: &str) {
        let deliveries = {
            let mut state = self.0.lock();
            let Routed { mut to_ports, .. } = state.mux.server_left(why);
            to_ports.extend(state.refuse_parked(why));
            let way = |(port, line)| Some((state.ports.get(&port)?.clone(), line));
            to_ports.into_iter().filter_map(way).collect::<Vec<_>>()
        };
        for (queue, line) in deliveries {
            // One that has left does not need it.
            let _left = queue.lend(line);
        }
        self.finish();
    }

    /// Everything is over, and whoever still waits has said that it waits for nothing.
    pub(crate) fn finish(&self) {
        self.0.close(Life::Over);
    }

    /// Waits until a client has come or gone.
    pub(crate) async fn company_changed(&self) {
        self.0.company_changed.notified().await;
    }

    /// The handshake is its client's own.
    pub(crate) fn greeted_by_client(&self) {
        self.0.lock().mux.greeted_by_client();
    }

    /// There is no handshake. Each client may be one request, and whoever began a task comes back as
    /// another.
    pub(crate) fn greeted_modern(&self, requests_only: bool) {
        let mut state = self.0.lock();
        state.mux.greeted_modern();
        state.mux.requests_only(requests_only);
    }

    /// What it did that makes it unfit for several clients, if it has.
    pub(crate) fn hazard(&self) -> Option<&'static str> {
        self.0.lock().mux.hazards().first().copied()
    }
}

/// A line of ours that does not wait in the queue behind those of the clients.
async fn say(input: &mut (impl AsyncWrite + Unpin), mut line: Vec<u8>) -> Result<(), Error> {
    line.push(b'\n');
    let said = async {
        input.write_all(&line).await?;
        input.flush().await
    };
    said.await.map_err(|_: std::io::Error| Error::Closed)
}

impl Shared {
    async fn read(&self, output: &mut (impl AsyncRead + Unpin), inbox: &mut Inbox) -> Ended {
        loop {
            self.deliver_all(&mut inbox.undelivered).await;
            while let Some(line) = inbox.frames.next() {
                self.server_says(line, &mut inbox.undelivered);
                self.deliver_all(&mut inbox.undelivered).await;
            }
            let Ok(room) = inbox.frames.room() else { return Ended::TooLong };
            // A stream that cannot be read has ended too.
            if output.read_buf(room).await.unwrap_or(0) == 0 {
                break;
            }
        }
        if let Some(line) = std::mem::take(&mut inbox.frames).rest() {
            self.server_says(line, &mut inbox.undelivered);
            self.deliver_all(&mut inbox.undelivered).await;
        }
        Ended::Output
    }

    fn server_says(&self, line: Vec<u8>, undelivered: &mut VecDeque<(Port, Vec<u8>)>) {
        if line.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.last = Instant::now();
        let Routed { to_server, mut to_ports, to_us, tools_changed } = state.mux.server_says(line);
        if state.mux.take_hazard().is_some() {
            self.company_changed.notify_one();
        }
        for (id, line) in to_us {
            let waiting = state.waiting.remove(&id);
            // Somebody who has just stopped waiting does not want it.
            let _unwanted = waiting.map(|waiting| waiting.send(line));
        }
        self.squeeze(&mut state, to_server);
        for at in 0..to_ports.len() {
            to_ports.extend(self.go_on(&mut state, to_ports[at].0));
        }
        undelivered.extend(to_ports);
        drop(state);
        if tools_changed {
            self.tools_changed.send_modify(|count| *count += 1);
        }
        if undelivered.is_empty() {
            self.heard.notify_waiters();
        }
    }

    async fn deliver_all(&self, undelivered: &mut VecDeque<(Port, Vec<u8>)>) {
        let many = !undelivered.is_empty();
        while let Some((port, line)) = undelivered.front_mut() {
            // Now, not when it was said: whoever rested meanwhile hears by another queue. Who has left has none.
            let queue = self.lock().ports.get(port).cloned();
            if let Some(queue) = queue {
                self.deliver(*port, &queue, line).await;
            }
            undelivered.pop_front();
        }
        if many {
            self.heard.notify_waiters();
        }
    }

    /// Passes on what of a client's has waited and may go now. Gives what it is to be told at once.
    pub(super) fn go_on(&self, state: &mut State, port: Port) -> Vec<(Port, Vec<u8>)> {
        let mut told = Vec::new();
        // It is to read first what it has asked for.
        if state.ports.get(&port).is_some_and(Queue::owes) {
            return told;
        }
        while let Some(Routed { to_server, to_ports, .. }) = state.next_of(port) {
            for line in to_server {
                // There is an end to how much of it there can be.
                let _closing = self.queue.lend(line);
            }
            told.extend(to_ports);
        }
        told
    }

    /// Queues a line for a client; one that has left does not need it. Kin wait for each other;
    /// strangers must not, and one that reads nothing of what it has asked for is parted with.
    /// If this is dropped before it is done, the line is where it was.
    pub(super) async fn deliver(&self, port: Port, queue: &Queue, line: &mut Vec<u8>) {
        match self.company {
            Company::Kin => {
                if let Ok(room) = queue.room(line.len()).await {
                    let _left = queue.push(room, std::mem::take(line));
                }
            }
            Company::Strangers => {
                if queue.lend(std::mem::take(line)).is_err() {
                    self.part_with(port);
                    queue.close();
                }
                queue.stir();
            }
        }
    }

    /// A client hears nothing more, and what it waited for is cancelled.
    pub(super) fn part_with(&self, port: Port) {
        let mut state = self.lock();
        state.ports.remove(&port);
        state.forget(port);
        let routed = state.mux.depart(port);
        self.squeeze(&mut state, routed.to_server);
        drop(state);
        self.company_changed.notify_one();
    }

    pub(super) fn close(&self, life: Life) {
        let (waiting, ports) = {
            let mut state = self.lock();
            if !state.open {
                return;
            }
            state.open = false;
            state.mux.end();
            state.pulse = None;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.ports))
        };
        self.life.send_replace(life);
        self.queue.close();
        ports.values().for_each(Queue::close);
        drop(waiting);
        self.heard.notify_waiters();
    }
}

/// The life of a conversation that has one run. Dropped, it is over.
#[derive(Debug)]
pub(crate) struct OnlyRun(Arc<Shared>);

impl OnlyRun {
    /// Speaks with the server until it ends. If this is dropped before it is done, it can be called again.
    pub(crate) async fn go_on(
        &self,
        wire: &mut Wire<impl AsyncWrite + Unpin, impl AsyncRead + Unpin>,
    ) -> Ended {
        let connection = Connection(Arc::clone(&self.0));
        let (opened, _at_once) = oneshot::channel();
        connection.run(wire, Opening::Straight, opened).await
    }

    /// The server has ended. What it said before still reaches the clients.
    pub(crate) fn end<I, O>(self, wire: Wire<I, O>) {
        // Both are closed before anybody hears of it.
        drop(wire);
        self.0.close(Life::Over);
    }
}

impl Drop for OnlyRun {
    fn drop(&mut self) {
        self.0.close(Life::Cut);
    }
}
