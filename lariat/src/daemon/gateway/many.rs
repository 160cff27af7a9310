//! A seat at all servers: one at each, and somebody between them and the client.

use super::blend::{Blend, Out};
use crate::pool::{Ear, Mouth, Seat};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Lines on their way from servers, and to the client.
const IN_FLIGHT: usize = 16;

/// Bytes on their way to servers; then the client has to wait.
const MOST_QUEUED: usize = 1 << 20;

/// How often somebody looks for servers that do not answer.
const TICK: Duration = Duration::from_secs(1);

/// Bytes on their way to servers.
#[derive(Debug, Default)]
struct Load {
    bytes: AtomicUsize,
    eased: Notify,
}

/// Sits down everywhere. What is said is sent by the one, what is heard comes by the other; when that
/// is dropped, all seats are left.
pub(super) fn join(
    seats: Vec<(String, Seat)>,
    tools: Vec<String>,
) -> (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Vec<u8>>) {
    let (mouth, said) = mpsc::channel(1);
    let (told, ear) = mpsc::channel(IN_FLIGHT);
    let (names, seats) = seats.into_iter().unzip();
    tokio::spawn(stand_between(Blend::new(names, tools), seats, said, told));
    (mouth, ear)
}

async fn stand_between(
    mut blend: Blend,
    seats: Vec<Seat>,
    mut said: mpsc::Receiver<Vec<u8>>,
    told: mpsc::Sender<Vec<u8>>,
) {
    let (ears, mut heard) = mpsc::channel(IN_FLIGHT);
    let load = Arc::new(Load::default());
    let mut mouths = Vec::new();
    // Ends with this one.
    let mut tasks = JoinSet::new();
    for (server, seat) in seats.into_iter().enumerate() {
        let (mouth, ear) = seat.split();
        let (lines, queued) = unbounded_channel();
        mouths.push(lines);
        tasks.spawn(speak(mouth, queued, load.clone()));
        tasks.spawn(listen(server, ear, ears.clone()));
    }
    let mut is_silent = false;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_full = load.bytes.load(Ordering::Relaxed) >= MOST_QUEUED;
        let Out { to_servers, to_client } = tokio::select! {
            line = said.recv(), if !is_full && !is_silent => match line {
                Some(line) => blend.client_says(&line),
                None => {
                    is_silent = true;
                    continue;
                }
            },
            Some((server, line)) = heard.recv() => match line {
                Some(line) => blend.server_says(server, &line),
                None => blend.server_gone(server),
            },
            _tick = ticks.tick(), if blend.waits_for_several() => blend.tick(),
            () = load.eased.notified(), if is_full => continue,
            () = told.closed() => return,
        };
        for (server, line) in to_servers {
            load.bytes.fetch_add(line.len(), Ordering::Relaxed);
            // One that is gone is not waited for.
            let _gone = mouths.get(server).map(|mouth| mouth.send(line));
        }
        for line in to_client {
            if told.send(line).await.is_err() {
                return;
            }
        }
        if blend.is_over() {
            return;
        }
    }
}

async fn speak(mut mouth: Mouth, mut lines: UnboundedReceiver<Vec<u8>>, load: Arc<Load>) {
    while let Some(line) = lines.recv().await {
        let length = line.len();
        // The ear hears why, and then nothing more.
        let _over = mouth.say(line).await;
        load.bytes.fetch_sub(length, Ordering::Relaxed);
        load.eased.notify_one();
    }
}

async fn listen(server: usize, mut ear: Ear, heard: mpsc::Sender<(usize, Option<Vec<u8>>)>) {
    loop {
        let line = ear.hear().await;
        let is_over = line.is_none();
        if heard.send((server, line)).await.is_err() || is_over {
            return;
        }
    }
}
