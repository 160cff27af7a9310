//! A client that speaks MCP with a server of a session by its connection, until either has enough or
//! everything rests.

pub(super) mod carried;

use super::handle::Desk;
use super::lease::Line;
use crate::id::SessionId;
use crate::mcp::Frames;
use crate::mcp::connection::{Ear, LAST_ANSWERS, Mouth};
use crate::mcp::reply::{INVALID_REQUEST, error};
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// An attached client, and what is on its way to and from it. A conversation that was dropped has left it
/// as it is, and can go on.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) stream: UnixStream,
    /// The connection is one until here.
    pub(super) line: Arc<Line>,
    pub(super) session: SessionId,
    pub(super) server: String,
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
    pub(super) frames: Frames,
    /// It says nothing more.
    pub(super) said_all: bool,
    /// What it is told and has not taken.
    pub(super) lines: Vec<u8>,
    pub(super) written: usize,
}

/// Why a conversation is over.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Over,
    /// The client said a line that nobody can hold.
    TooLong,
}

impl Attached {
    pub(super) fn new(
        (stream, heard): (UnixStream, Vec<u8>),
        line: Arc<Line>,
        (session, server): (SessionId, String),
        (mouth, ear): (Mouth, Ear),
    ) -> Attached {
        let (frames, lines) = (Frames::of(heard), Vec::new());
        Attached {
            stream,
            line,
            session,
            server,
            mouth,
            ear,
            frames,
            said_all: false,
            lines,
            written: 0,
        }
    }

    /// Keeps the conversation going until it is over, or rests when everything does.
    pub(super) async fn stay(mut self, desk: &Desk) {
        let end = loop {
            tokio::select! {
                biased;
                end = self.converse() => break end,
                () = desk.attached.called() => {}
            }
            self = desk.attached.lie_down(self).await;
        };
        let Attached { mut stream, mouth, ear, .. } = self;
        // What it still waited for is cancelled.
        drop((mouth, ear));
        if end == End::TooLong {
            let mut answer = error("null", INVALID_REQUEST, "this line is too long");
            answer.push(b'\n');
            // It may have left.
            let _untold = stream.write_all(&answer).await;
        }
        let _gone_already = stream.shutdown().await;
    }

    async fn converse(&mut self) -> End {
        let Attached { stream, mouth, ear, frames, said_all, lines, written, .. } = self;
        let (mut reader, mut writer) = stream.split();
        let (answered, cut) = (Notify::new(), ear.cut());
        let listening = async {
            while !*said_all {
                if mouth.go_on().await.is_err() {
                    // What the server said before it left is still the client's.
                    return std::future::pending().await;
                }
                if let Some(line) = frames.next() {
                    mouth.say(line);
                    continue;
                }
                let Ok(room) = frames.room() else { return End::TooLong };
                if reader.read_buf(room).await.unwrap_or(0) == 0 {
                    if let Some(line) = std::mem::take(frames).rest() {
                        mouth.say(line);
                    }
                    *said_all = true;
                }
            }
            // One that has said all it will is not one that has left.
            if mouth.go_on().await.is_ok() {
                mouth.last_answers(LAST_ANSWERS).await;
                answered.notify_one();
            }
            std::future::pending().await
        };
        let telling = async {
            loop {
                while *written < lines.len() {
                    match writer.write(&lines[*written..]).await {
                        Ok(count) if count > 0 => *written += count,
                        _ => return,
                    }
                }
                (*lines, *written) = (Vec::new(), 0);
                tokio::select! {
                    biased;
                    more = ear.fill(lines) => if !more {
                        return;
                    },
                    () = answered.notified() => return,
                }
            }
        };
        let (listening, telling) = (pin!(listening), pin!(telling));
        tokio::select! {
            biased;
            () = telling => End::Over,
            end = listening => end,
            () = cut => End::Over,
        }
    }
}
