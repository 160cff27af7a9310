//! A seat at all servers: one at each, and somebody between them and the client.

use super::blend::{Blend, Out};
use crate::daemon::rest::Rest;
use crate::pool::{Ear, Mouth, Seat};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Lines on their way from servers, and to the client.
const IN_FLIGHT: usize = 16;

/// Bytes on their way to servers; then the client has to wait.
const MOST_QUEUED: usize = 1 << 20;

/// How often somebody looks for servers that do not answer.
const TICK: Duration = Duration::from_secs(1);

/// Which of those who stand between it is.
pub(super) type Number = u64;

/// Bytes on their way to servers.
#[derive(Debug, Default)]
struct Load {
    bytes: AtomicUsize,
    eased: Notify,
}

/// Whoever stands between a client and all servers, with everything that is on its way.
#[derive(Debug)]
pub(in crate::daemon) struct Between {
    pub(super) number: Number,
    pub(super) blend: Blend,
    /// Of those that are still there.
    pub(super) places: Vec<Option<Place>>,
    /// What the client says.
    said: mpsc::Receiver<Vec<u8>>,
    /// What the client is told, and what it is to be told next.
    told: mpsc::Sender<Vec<u8>>,
    pub(super) untold: VecDeque<Vec<u8>>,
}

/// A seat at one of the servers.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) mouth: Mouth,
    pub(super) ear: Ear,
    /// What is to be said next.
    pub(super) unsaid: VecDeque<Vec<u8>>,
}

/// What a client of all servers has.
pub(super) struct Ends {
    pub(super) number: Number,
    pub(super) mouth: mpsc::Sender<Vec<u8>>,
    pub(super) ear: mpsc::Receiver<Vec<u8>>,
}

/// Half of a place, from whoever has used it.
enum Half {
    Mouth(usize, Box<Mouth>, VecDeque<Vec<u8>>),
    Ear(usize, Option<Ear>),
}

impl Place {
    pub(super) fn new(seat: Seat) -> Place {
        let (mouth, ear) = seat.split();
        Place { mouth, ear, unsaid: VecDeque::new() }
    }
}

impl Between {
    /// Somebody who stands between a client and these. What is said is sent by the one end, what is heard
    /// comes by the other; when that is dropped, all seats are left.
    pub(super) fn new(blend: Blend, places: Vec<Option<Place>>) -> (Between, Ends) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (mouth, said) = mpsc::channel(1);
        let (told, ear) = mpsc::channel(IN_FLIGHT);
        let between = Between { number, blend, places, said, told, untold: VecDeque::new() };
        (between, Ends { number, mouth, ear })
    }

    /// Stands there until nobody is left on one side. Rests when everything does.
    pub(super) async fn stand(mut self, rest: &Rest<Between>) {
        let _counted = rest.come();
        while self.pass_on(rest.calls()).await {
            self = rest.lie_down(self).await;
        }
    }

    /// Passes on what is said, until there is nothing more (false), or until it is to rest (true): then
    /// everything is where it was.
    async fn pass_on(&mut self, mut called: watch::Receiver<bool>) -> bool {
        let (ears, mut heard) = mpsc::channel(IN_FLIGHT);
        let load = Arc::new(Load::default());
        let mut mouths = Vec::new();
        // Ends with this one.
        let mut tasks = JoinSet::new();
        for (server, place) in std::mem::take(&mut self.places).into_iter().enumerate() {
            let (lines, queued) = unbounded_channel();
            let Some(place) = place else {
                mouths.push(lines);
                continue;
            };
            for line in place.unsaid {
                queue(&lines, line, &load);
            }
            mouths.push(lines);
            tasks.spawn(speak(server, place.mouth, queued, load.clone(), called.clone()));
            tasks.spawn(listen(server, place.ear, ears.clone(), called.clone()));
        }
        drop(ears);
        let mut is_silent = false;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Perhaps while it rested.
            if self.blend.is_over() {
                // What was said last is still told.
                for line in std::mem::take(&mut self.untold) {
                    let _left = self.told.send(line).await;
                }
                return false;
            }
            let is_full = load.bytes.load(Ordering::Relaxed) >= MOST_QUEUED;
            // The client takes what it is told before anybody else is heard.
            let is_told = self.untold.is_empty();
            let Out { to_servers, to_client } = tokio::select! {
                line = self.said.recv(), if is_told && !is_full && !is_silent => match line {
                    Some(line) => self.blend.client_says(&line),
                    None => {
                        is_silent = true;
                        continue;
                    }
                },
                Some((server, line)) = heard.recv(), if is_told => heard_of(&mut self.blend, server, line),
                _tick = ticks.tick(), if is_told && self.blend.waits_for_several() => self.blend.tick(),
                room = self.told.reserve(), if !is_told => match (room, self.untold.pop_front()) {
                    (Ok(room), Some(line)) => {
                        room.send(line);
                        continue;
                    }
                    _ => return false,
                },
                () = load.eased.notified(), if is_full => continue,
                () = self.told.closed() => return false,
                Ok(_) = called.wait_for(|called| *called) => break,
            };
            for (server, line) in to_servers {
                // One that is gone is not waited for.
                let _gone = mouths.get(server).map(|mouth| queue(mouth, line, &load));
            }
            self.untold.extend(to_client);
        }
        self.gather(mouths.len(), heard, tasks).await;
        true
    }

    /// Takes everything back from whoever was passing it on.
    async fn gather(
        &mut self,
        count: usize,
        mut heard: mpsc::Receiver<(usize, Option<Vec<u8>>)>,
        mut tasks: JoinSet<Half>,
    ) {
        let mut late = Vec::new();
        // Until the last who could have heard something has left.
        while let Some((server, line)) = heard.recv().await {
            let Out { to_servers, to_client } = heard_of(&mut self.blend, server, line);
            late.extend(to_servers);
            self.untold.extend(to_client);
        }
        while let Ok(line) = self.said.try_recv() {
            let Out { to_servers, to_client } = self.blend.client_says(&line);
            late.extend(to_servers);
            self.untold.extend(to_client);
        }
        let (mut mouths, mut ears) = (BTreeMap::new(), BTreeMap::new());
        while let Some(half) = tasks.join_next().await {
            match half {
                Ok(Half::Mouth(server, mouth, unsaid)) => {
                    mouths.insert(server, (mouth, unsaid));
                }
                Ok(Half::Ear(server, ear)) => {
                    ears.insert(server, ear);
                }
                // It does not panic, and nobody ends it.
                Err(_) => {}
            }
        }
        for (server, line) in late {
            if let Some((_, unsaid)) = mouths.get_mut(&server) {
                unsaid.push_back(line);
            }
        }
        self.places.resize_with(count, || None);
        for (server, (mouth, unsaid)) in mouths {
            let ear = ears.remove(&server).flatten();
            self.places[server] = ear.map(|ear| Place { mouth: *mouth, ear, unsaid });
        }
    }
}

/// A line of a server, or its end.
fn heard_of(blend: &mut Blend, server: usize, line: Option<Vec<u8>>) -> Out {
    match line {
        Some(line) => blend.server_says(server, &line),
        None => blend.server_gone(server),
    }
}

fn queue(mouth: &UnboundedSender<Vec<u8>>, line: Vec<u8>, load: &Load) {
    load.bytes.fetch_add(line.len(), Ordering::Relaxed);
    // One that is gone is not waited for.
    let _gone = mouth.send(line);
}

async fn speak(
    server: usize,
    mut mouth: Mouth,
    mut lines: UnboundedReceiver<Vec<u8>>,
    load: Arc<Load>,
    mut called: watch::Receiver<bool>,
) -> Half {
    let mut length = 0;
    let speaking = async {
        loop {
            // First of all what was about to be said before it rested. The ear hears why not, and then
            // nothing more.
            let _over = mouth.go_on().await;
            load.bytes.fetch_sub(std::mem::take(&mut length), Ordering::Relaxed);
            load.eased.notify_one();
            let Some(line) = lines.recv().await else { return };
            length = line.len();
            mouth.put(line);
        }
    };
    tokio::select! {
        () = speaking => {}
        Ok(_) = called.wait_for(|called| *called) => {}
    }
    let unsaid = std::iter::from_fn(|| lines.try_recv().ok()).collect();
    Half::Mouth(server, Box::new(mouth), unsaid)
}

async fn listen(
    server: usize,
    ear: Ear,
    heard: mpsc::Sender<(usize, Option<Vec<u8>>)>,
    mut called: watch::Receiver<bool>,
) -> Half {
    let mut ear = Some(ear);
    while let Some(there) = &mut ear {
        let line = tokio::select! {
            biased;
            Ok(_) = called.wait_for(|called| *called) => break,
            line = there.hear() => line,
        };
        if line.is_none() {
            ear = None;
        }
        // Whoever is told waits for this one.
        let _left = heard.send((server, line)).await;
    }
    Half::Ear(server, ear)
}
