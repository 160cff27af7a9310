//! A seat at one server, or at all of them.

use crate::pool;
pub(super) use crate::pool::Over;
use tokio::sync::mpsc;

/// What a client says.
#[derive(Debug)]
pub(super) enum Mouth {
    One(Box<pool::Mouth>),
    All(mpsc::Sender<Vec<u8>>),
}

/// What a client hears. Dropped, the seat is left.
#[derive(Debug)]
pub(super) enum Ear {
    One(Box<pool::Ear>),
    All(mpsc::Receiver<Vec<u8>>),
}

impl Mouth {
    /// One message. Waits for room.
    pub(super) async fn say(&mut self, line: Vec<u8>) -> Result<(), Over> {
        match self {
            Mouth::One(mouth) => mouth.say(line).await,
            Mouth::All(lines) => lines
                .send(line)
                .await
                .map_err(|_| Over { why: "all servers have left".into(), code: 1 }),
        }
    }
}

impl Ear {
    /// The next message; `None` when there will be none any more. Nothing is lost if this is dropped
    /// before it is done.
    pub(super) async fn hear(&mut self) -> Option<Vec<u8>> {
        match self {
            Ear::One(ear) => ear.hear().await,
            Ear::All(lines) => lines.recv().await,
        }
    }
}
