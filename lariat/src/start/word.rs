//! What an owner and whoever holds its server say to each other. Plain data.

use crate::id::SessionId;
use crate::receipt::Receipt;
use serde::{Deserialize, Serialize};

/// Why a command could not be started, for whoever asked for this program.
pub(super) fn not_started(program: &str, error: &contain::Error) -> String {
    match (error.exit_code(), std::error::Error::source(error)) {
        (127, _) => format!("`{program}` was not found; check the spelling and PATH"),
        (126, Some(cause)) => format!("`{program}` cannot be executed: {cause}"),
        (_, Some(cause)) => format!("cannot {error}: {cause}"),
        (_, None) => format!("cannot {error}"),
    }
}

/// What the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Ask the server to leave: its standard input has been closed.
    Close,
    /// The same, and it has had its time to leave in.
    Hasten,
}

/// What the holder has to say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// It is written down under this name.
    Noted(SessionId),
    /// The command runs.
    Started {
        /// Its pid, as the holder sees it.
        pid: i32,
        /// Whose descendants its processes are, by pid and start time.
        guardian: (i32, u64),
        /// What holds it.
        backend: String,
    },
    /// It could not be started. Nothing is left of it.
    Failed {
        /// A sentence.
        why: String,
        /// With what `lariat run` would end.
        #[serde(default = "no_code")]
        code: u8,
    },
    /// The command itself ended; others may still be there.
    Exited {
        /// In words.
        how: String,
        /// With what `lariat run` would end.
        #[serde(default = "no_code")]
        code: u8,
        /// The end of what it wrote to stderr.
        last_words: String,
    },
    /// Its processes are gone; containers may not be yet.
    Emptied,
    /// It is over.
    Ended(Box<Receipt>),
}

/// What `lariat run` ends with where it cannot do its own work.
fn no_code() -> u8 {
    125
}
