//! A seat at one server, or at all of them.

use super::many::{Ends, Number};
use crate::pool;
pub(super) use crate::pool::Over;
use std::collections::VecDeque;
use tokio::sync::mpsc;

/// What a client says.
#[derive(Debug)]
pub(super) enum Mouth {
    One(Box<pool::Mouth>),
    /// By somebody who stands between.
    All(Number, mpsc::Sender<Vec<u8>>),
}

/// What a client hears. Dropped, the seat is left.
#[derive(Debug)]
pub(super) struct Ear {
    /// What comes before everything else.
    pub(super) unheard: VecDeque<Vec<u8>>,
    pub(super) from: From,
}

/// Where that comes from.
#[derive(Debug)]
pub(super) enum From {
    One(Box<pool::Ear>),
    All(mpsc::Receiver<Vec<u8>>),
}

impl Mouth {
    /// One message. Waits for room.
    pub(super) async fn say(&mut self, line: Vec<u8>) -> Result<(), Over> {
        match self {
            Mouth::One(mouth) => mouth.say(line).await,
            Mouth::All(_, lines) => lines
                .send(line)
                .await
                .map_err(|_| Over { why: "all servers have left".into(), code: 1 }),
        }
    }
}

impl Ear {
    pub(super) fn new(from: From) -> Ear {
        Ear { unheard: VecDeque::new(), from }
    }

    /// The next message; `None` when there will be none any more. Nothing is lost if this is dropped
    /// before it is done.
    pub(super) async fn hear(&mut self) -> Option<Vec<u8>> {
        if let Some(line) = self.unheard.pop_front() {
            return Some(line);
        }
        match &mut self.from {
            From::One(ear) => ear.hear().await,
            From::All(lines) => lines.recv().await,
        }
    }
}

impl std::convert::From<Ends> for (Mouth, Ear) {
    fn from(Ends { number, mouth, ear }: Ends) -> (Mouth, Ear) {
        (Mouth::All(number, mouth), Ear::new(From::All(ear)))
    }
}
