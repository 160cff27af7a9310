//! A connection by the socket, until it ends. It rests when everything does.

pub(super) mod carried;

use super::flow::{self, Around, End, Idle};
use super::handle::Desk;
use super::lease::Line;
use super::telling::Telling;
use super::terms::FIRST_REQUEST;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A connection that rests.
#[derive(Debug)]
pub(super) enum Resting {
    /// Whoever has come has said nothing yet.
    Fresh(UnixStream),
    /// It is between two requests.
    Speaking(Speaking),
    /// It is told what happens.
    Telling(Telling),
}

/// A connection between two requests.
#[derive(Debug)]
pub(super) struct Speaking {
    pub(super) stream: UnixStream,
    pub(super) line: Arc<Line>,
    /// What was read and not answered.
    pub(super) unread: Bytes,
    /// Something has been asked already.
    pub(super) heard: bool,
}

/// Serves a connection until it ends.
pub(super) async fn serve(desk: &Arc<Desk>, mut speaking: Speaking) {
    let counted = desk.lines.come();
    loop {
        let line = speaking.line.clone();
        match converse(desk, speaking).await {
            End::Over => return,
            End::Quiet(Idle { stream, unread, heard }) => {
                let quiet = Resting::Speaking(Speaking { stream, line, unread, heard });
                match desk.lines.lie_down(quiet).await {
                    Resting::Speaking(up) => speaking = up,
                    // Nobody else takes it.
                    Resting::Fresh(_) | Resting::Telling(_) => return,
                }
            }
            End::Midway(idle, midway) => {
                let events = desk.registry.events();
                let telling = Telling::new(idle.stream, line, events, midway.chunked);
                return telling.stay(desk, counted).await;
            }
        }
    }
}

async fn converse(desk: &Arc<Desk>, speaking: Speaking) -> End<UnixStream> {
    let Speaking { stream, line, unread, heard } = speaking;
    let first = Notify::new();
    let answer = |request: Request<Incoming>| {
        first.notify_one();
        let (desk, line) = (desk.clone(), line.clone());
        async move { desk.answer(&line, request).await }
    };
    let given_up = async {
        if heard || timeout(FIRST_REQUEST, first.notified()).await.is_ok() {
            std::future::pending().await
        }
    };
    let is_told = || desk.registry.is_told();
    let (called, stopped) = (desk.lines.called(), desk.stopped.subscribe());
    let around = Around { called, given_up, is_told, stopped };
    flow::converse(Idle { stream, unread, heard }, answer, around).await
}
