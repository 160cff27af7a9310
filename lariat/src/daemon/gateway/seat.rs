//! A seat at one server, or at all of them.

pub(super) use crate::pool::Over;

/// What a client says.
#[derive(Debug)]
pub(super) enum Mouth {
    One(crate::pool::Mouth),
}

/// What a client hears.
#[derive(Debug)]
pub(super) enum Ear {
    One(crate::pool::Ear),
}

impl Mouth {
    /// One message. Waits for room.
    pub(super) async fn say(&mut self, line: Vec<u8>) -> Result<(), Over> {
        match self {
            Mouth::One(mouth) => mouth.say(line).await,
        }
    }
}

impl Ear {
    /// The next message; `None` when there will be none any more.
    pub(super) async fn hear(&mut self) -> Option<Vec<u8>> {
        match self {
            Ear::One(ear) => ear.hear().await,
        }
    }
}
