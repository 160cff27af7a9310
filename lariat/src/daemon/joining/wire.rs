//! What a wrapper and the daemon say to each other.
//!
//! The wrapper knocks: one byte that no HTTP request begins with, which carries the host's stdin and
//! stdout, and a line that says what to run. The daemon says whether it will. Only when the wrapper has
//! let go of the streams, and said so, does the daemon read them: nothing is read by both. From there on
//! the connection is the lease: the wrapper's end closing is its leaving, the daemon's last word is how
//! it ended.

use crate::id::ServerName;
use crate::spec::{Idle, Share};
use contain::Member;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// The byte that carries the streams.
pub(crate) const KNOCK: u8 = b'!';

/// What the wrapper says when the streams are the daemon's alone.
pub(crate) const TAKEN: u8 = b'+';

/// A longer line is none of ours: the kernel takes no larger environment.
pub(crate) const LONGEST: usize = 16 << 20;

/// What the two understand. Another number, and each server runs alone.
pub(crate) const VERSION: u32 = 1;

/// What a wrapper wants.
#[derive(Debug, Serialize, Deserialize)]
pub struct Brief {
    /// Which words these are.
    pub version: u32,
    /// Its name in receipts and logs.
    pub server: ServerName,
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Exactly its environment.
    pub env: Vec<(Text, Text)>,
    /// Its working directory.
    pub cwd: Text,
    /// Its umask.
    pub umask: u32,
    /// Whether it may be together with others.
    pub share: Share,
    /// When it sleeps.
    pub idle: Idle,
    /// How long it may take from nothing to the end of its handshake, if not the usual time.
    pub startup_timeout: Option<Duration>,
    /// Who started the wrapper, by pid and start time.
    pub host: Option<(i32, u64)>,
}

impl Brief {
    /// Nothing yet, under this name, for whoever started this process.
    pub fn new(server: ServerName) -> Brief {
        let host = rustix::process::getppid().and_then(|pid| Member::of(pid.as_raw_pid()));
        Brief {
            version: VERSION,
            server,
            command: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: Text::Plain("/".into()),
            umask: 0o022,
            share: Share::Strict,
            idle: Idle::Usual,
            startup_timeout: None,
            host: host.map(|host| (host.pid, host.start)),
        }
    }
}

/// Bytes that are mostly text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// As they are.
    Plain(String),
    /// One by one, if they are no text.
    Bytes(Vec<u8>),
}

impl std::fmt::Debug for Text {
    /// Without what it says: it can be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Text")
    }
}

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Text {
        match text.to_str() {
            Some(plain) => Text::Plain(plain.into()),
            None => Text::Bytes(text.as_bytes().into()),
        }
    }
}

impl From<Text> for OsString {
    fn from(text: Text) -> OsString {
        match text {
            Text::Plain(plain) => plain.into(),
            Text::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

/// What the daemon has to say.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// It will take the streams.
    Welcome,
    /// It will not.
    Refused {
        /// A sentence.
        why: String,
    },
    /// It is over, and the streams are closed.
    Left {
        /// What the wrapper is to end with.
        code: u8,
        /// A sentence for the host's log, if it was not the host's wish.
        why: Option<String>,
    },
}

impl Word {
    /// As it is sent.
    pub(crate) fn line(&self) -> Vec<u8> {
        // Text and numbers can always be written.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_arrives_as_it_is() {
        for bytes in [&b"plain"[..], b"", b"\xff\xfe/x", "naïve".as_bytes()] {
            let text = Text::from(OsStr::from_bytes(bytes));
            let sent = serde_json::to_string(&text).unwrap();
            let back: Text = serde_json::from_str(&sent).unwrap();
            assert_eq!(OsString::from(back).as_bytes(), bytes, "{sent}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let text = (Text::Plain("s3cret".into()), Text::Bytes(b"s3cret".to_vec()));
        assert!(!format!("{text:?}").contains("s3cret"));
    }
}
