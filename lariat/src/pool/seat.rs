//! A client's place in the pool: before it is decided which, and after.

use super::hub::{Hub, Parting, Place};
use super::verdict::{Terms, Verdict};
use super::{Pool, Want};
use crate::mcp::{Frames, connection, refusal};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Why nothing more can be said or heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Over {
    /// In words.
    pub why: String,
    /// With what a wrapper around the server would end.
    pub code: u8,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Over {}

/// A client's place. Dropping it, or its [`Ear`], is leaving: what the client waited for is cancelled.
#[derive(Debug)]
pub struct Seat {
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
}

/// By which a client speaks.
#[derive(Debug)]
pub struct Mouth {
    pub(super) pool: Pool,
    pub(super) want: Want,
    /// What is to be said, until there is somebody to say it to.
    pub(super) unsaid: Option<Vec<u8>>,
    /// A place at a process that is not ready yet.
    pub(super) joining: Option<Place>,
    pub(super) place: Option<(Arc<Hub>, connection::Mouth)>,
    pub(super) turns: UnboundedSender<Turn>,
}

/// A line that was given to be said at once or not at all.
struct Given<'a>(&'a mut Mouth);

impl Drop for Given<'_> {
    fn drop(&mut self) {
        (self.0.unsaid, self.0.joining) = (None, None);
        if let Some((_, mouth)) = &mut self.0.place {
            mouth.unsay();
        }
    }
}

/// By which a client hears.
#[derive(Debug)]
pub struct Ear {
    pub(super) turns: Option<UnboundedReceiver<Turn>>,
    pub(super) listening: Option<Listening>,
    pub(super) over: Option<Over>,
}

/// What the mouth tells the ear.
#[derive(Debug)]
pub(super) enum Turn {
    /// Listen there.
    Joined(Listening),
    /// There is nothing to join. The line is the answer to who asked, if somebody did.
    Refused(Option<Vec<u8>>, Over),
}

/// Where an ear listens.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) pool: Pool,
    pub(super) hub: Arc<Hub>,
    pub(super) ear: Option<connection::Ear>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.ear.take());
        self.pool.0.tell_company(&self.hub, "left");
    }
}

impl Seat {
    pub(super) fn new(pool: Pool, want: Want) -> Seat {
        let (turns, taken) = unbounded_channel();
        Seat {
            mouth: Mouth { pool, want, unsaid: None, joining: None, place: None, turns },
            ear: Ear { turns: Some(taken), listening: None, over: None },
        }
    }

    /// The two halves, for two tasks.
    pub fn split(self) -> (Mouth, Ear) {
        (self.mouth, self.ear)
    }

    /// Speaks with a client, a message a line, until it closes or everything is over; then its side is
    /// shut down. Gives why.
    pub async fn serve(
        self,
        mut reader: impl AsyncRead + Send + Unpin,
        mut writer: impl AsyncWrite + Send + Unpin,
    ) -> Over {
        let (mut mouth, mut ear) = self.split();
        let mut lines = Vec::new();
        let listening = async {
            let mut frames = Frames::default();
            loop {
                while let Some(line) = frames.next() {
                    if mouth.say(line).await.is_err() {
                        // What the server said before it left is still to be heard.
                        return std::future::pending().await;
                    }
                }
                let Ok(room) = frames.room() else {
                    return Over { why: "the client said a line that is too long".into(), code: 1 };
                };
                if reader.read_buf(room).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            if let Some(line) = frames.rest()
                && mouth.say(line).await.is_err()
            {
                return std::future::pending().await;
            }
            mouth.finish(connection::LAST_ANSWERS).await;
            Over { why: "the client has left".into(), code: 0 }
        };
        let mut listening = pin!(listening);
        let mut left = None;
        let over = loop {
            let more = match &left {
                // What was answered before the client had said all is still its own.
                Some(_) => ear.fill_at_once(&mut lines),
                None => tokio::select! {
                    biased;
                    more = ear.fill(&mut lines) => more,
                    over = &mut listening => {
                        left = Some(over);
                        continue;
                    }
                },
            };
            if !more {
                break left.or_else(|| ear.over().cloned()).unwrap_or_default();
            }
            let mut writing = pin!(writer.write_all(&lines));
            let written = loop {
                tokio::select! {
                    biased;
                    written = &mut writing => break written,
                    // A client that says much before it reads is heard meanwhile.
                    over = &mut listening, if left.is_none() => left = Some(over),
                }
            };
            if written.is_err() {
                break Over { why: "the client has left".into(), code: 0 };
            }
            lines.clear();
        };
        let _gone_already = writer.shutdown().await;
        over
    }

    /// See [`Mouth::say`].
    pub async fn say(&mut self, line: Vec<u8>) -> Result<(), Over> {
        self.mouth.say(line).await
    }

    /// See [`Ear::hear`].
    pub async fn hear(&mut self) -> Option<Vec<u8>> {
        self.ear.hear().await
    }

    /// Whether it shares a process, once that is decided.
    pub fn verdict(&self) -> Option<Verdict> {
        self.mouth.verdict()
    }
}

impl Mouth {
    /// One message, without its line end. The first decides what is joined, and starts it if need be.
    /// Waits for room, which is how a client that says more than the server takes is slowed down.
    pub async fn say(&mut self, line: Vec<u8>) -> Result<(), Over> {
        self.put(line);
        // Whoever does not wait for it does not want it to be said later.
        let given = Given(self);
        given.0.go_on().await
    }

    /// The same in two steps: this line is to be said, by [`Mouth::go_on`].
    pub(crate) fn put(&mut self, line: Vec<u8>) {
        self.unsaid = Some(line);
    }

    /// Says what is to be said. If this is dropped before it is done, it can be called again.
    pub(crate) async fn go_on(&mut self) -> Result<(), Over> {
        if let Some(line) = &self.unsaid {
            if self.is_to_move(line) {
                self.place = None;
            }
            if self.place.is_none() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    self.unsaid = None;
                    return Ok(());
                }
                if let Err(over) = self.join().await {
                    let answer = self.unsaid.take().and_then(|line| refusal(&line, &over.why));
                    // Nobody may be listening.
                    let _deaf = self.turns.send(Turn::Refused(answer, over.clone()));
                    return Err(over);
                }
            }
        }
        let Some((hub, mouth)) = &mut self.place else {
            // Nothing has been said yet.
            return Ok(());
        };
        if let Some(line) = self.unsaid.take() {
            mouth.say(line);
        }
        mouth.go_on().await.map_err(|_| hub.over().unwrap_or_default())
    }

    async fn join(&mut self) -> Result<(), Over> {
        let hub = match &self.joining {
            Some(place) => place.hub.clone(),
            None => {
                let first = self.unsaid.as_deref().unwrap_or_default();
                let place = self.pool.assign(&self.want, first)?;
                self.joining.insert(place).hub.clone()
            }
        };
        let greeted = hub.greeted().await;
        let Some(place) = self.joining.take() else {
            return Err(Over::default());
        };
        greeted?;
        self.pool.0.tell_company(&place.hub, "joined");
        self.sit_down(place);
        Ok(())
    }

    fn sit_down(&mut self, Place { hub, mouth, ear }: Place) {
        let listening = Listening { pool: self.pool.clone(), hub: hub.clone(), ear: Some(ear) };
        // Nobody may be listening; then it leaves at once.
        let _deaf = self.turns.send(Turn::Joined(listening));
        self.place = Some((hub, mouth));
    }

    /// True if a client that has tried the modern era, perhaps in vain, begins again in the other.
    fn is_to_move(&self, line: &[u8]) -> bool {
        self.place.as_ref().is_some_and(|(hub, _)| hub.is_modern())
            && matches!(Terms::of(line), Terms::Legacy { .. })
    }

    /// Nothing more will be said. True if the server hears that and leaves: it is this client's alone.
    /// What it still says is heard, and then why it is over. `unheard` if it has already had the time
    /// that it would have for that.
    pub fn part(&mut self, unheard: bool) -> bool {
        let how = if unheard { Parting::Unheard } else { Parting::Said };
        if let Some(place) = self.joining.take_if(|place| self.pool.0.part(&place.hub, how)) {
            // It has never been ready. How it leaves is heard all the same.
            self.sit_down(place);
            return true;
        }
        self.place.as_ref().is_some_and(|(hub, _)| self.pool.0.part(hub, how))
    }

    /// Nothing more will be said: waits, for so long, for what was asked.
    pub async fn finish(&self, patience: Duration) {
        if let Some((_, mouth)) = &self.place {
            mouth.last_answers(patience).await;
        }
    }

    /// Whether it shares a process, once that is decided.
    pub fn verdict(&self) -> Option<Verdict> {
        self.place.as_ref().map(|(hub, _)| hub.verdict())
    }
}

impl Ear {
    /// The next message, without its line end; nothing once everything is over.
    pub async fn hear(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.next(&mut line, false).await.then(|| {
            line.pop_if(|end| *end == b'\n');
            line
        })
    }

    /// Waits for a message and takes whatever else is there, each with its line end. False once
    /// everything is over.
    pub async fn fill(&mut self, lines: &mut Vec<u8>) -> bool {
        self.next(lines, true).await
    }

    fn fill_at_once(&mut self, lines: &mut Vec<u8>) -> bool {
        let ear = self.listening.as_mut().and_then(|there| there.ear.as_mut());
        ear.is_some_and(|ear| ear.fill_at_once(lines))
    }

    /// Where it hears something, if it is to hear anything.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn heard_at(&mut self) -> Option<(&Arc<Hub>, &mut connection::Ear)> {
        let Listening { hub, ear, .. } = self.listening.as_mut()?;
        ear.as_mut().map(|ear| (&*hub, ear))
    }

    /// Goes where the mouth has gone already. What was said to it before that is added to `lines`.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn settle(&mut self, lines: &mut Vec<u8>) {
        while let Some(turn) = self.turns.as_mut().and_then(|turns| turns.try_recv().ok()) {
            let mut before = Vec::new();
            while self.fill_at_once(&mut before) {
                lines.append(&mut before);
            }
            self.take(turn, lines);
        }
    }

    /// Turns there. False if there is nothing to be heard there.
    fn take(&mut self, turn: Turn, lines: &mut Vec<u8>) -> bool {
        match turn {
            Turn::Joined(listening) => self.listening = Some(listening),
            Turn::Refused(answer, over) => {
                self.listening = None;
                self.over = Some(over);
                self.turns = None;
                let Some(answer) = answer else { return false };
                lines.extend_from_slice(&answer);
                lines.push(b'\n');
            }
        }
        true
    }

    /// Whoever wanted this does not any more: its server is to leave at once, if it is this client's
    /// alone. Done when it has left.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(crate) async fn dismiss(&mut self) {
        let alone = |there: &Listening| there.pool.0.part(&there.hub, Parting::Unheard);
        if self.listening.as_ref().is_some_and(alone) {
            let mut unheard = Vec::new();
            while self.fill(&mut unheard).await {
                unheard.clear();
            }
        }
    }

    /// Why it is over, after there was nothing more to hear.
    pub fn over(&self) -> Option<&Over> {
        self.over.as_ref()
    }

    async fn next(&mut self, lines: &mut Vec<u8>, many: bool) -> bool {
        while self.listening.is_some() || self.turns.is_some() {
            let turn = tokio::select! {
                biased;
                heard = heard(&mut self.listening, lines, many) => match heard {
                    true => return true,
                    false => {
                        // If the server is still there, it is this client that was parted with.
                        let unread = || Over {
                            why: "the client did not read what it had asked for".into(),
                            code: 1,
                        };
                        let there = self.listening.take();
                        let over = there.map(|there| there.hub.over().unwrap_or_else(unread));
                        self.over = self.over.take().or(over);
                        // Its client may have gone on to somewhere else.
                        match self.turns.as_mut().and_then(|turns| turns.try_recv().ok()) {
                            Some(turn) => Some(turn),
                            None => return false,
                        }
                    }
                },
                turn = next_turn(&mut self.turns) => turn,
            };
            match turn {
                Some(turn) => {
                    let refused = matches!(turn, Turn::Refused(..));
                    let told = self.take(turn, lines);
                    if refused {
                        return told;
                    }
                }
                // Nothing more will be said, but what was asked is still answered.
                None => self.turns = None,
            }
        }
        false
    }
}

async fn heard(listening: &mut Option<Listening>, lines: &mut Vec<u8>, many: bool) -> bool {
    let Some(ear) = listening.as_mut().and_then(|there| there.ear.as_mut()) else {
        return std::future::pending().await;
    };
    match many {
        true => ear.fill(lines).await,
        false => match ear.hear().await {
            Some(line) => {
                *lines = line;
                true
            }
            None => false,
        },
    }
}

async fn next_turn(turns: &mut Option<UnboundedReceiver<Turn>>) -> Option<Turn> {
    match turns {
        Some(turns) => turns.recv().await,
        None => std::future::pending().await,
    }
}
