//! A session's servers and what they consist of, as `/proc` and the engine have it now.

use super::House;
use super::server::View;
use super::state::State;
use crate::books::Books;
use crate::docker::client::{Client, Kind, Thing};
use crate::docker::endpoint;
use crate::docker::tally::{self, Expect};
use crate::snapshot::{Container, Process, Server};
use contain::{Member, process};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long an engine may take to say what there is.
const ENGINE: Duration = Duration::from_secs(2);

/// Looks at each server.
pub(super) async fn of(views: Vec<Arc<View>>, house: &House) -> Vec<Server> {
    let mut servers = Vec::new();
    for view in views {
        let (guardian, books, since) = view.place();
        let state = view.state();
        let connection = view.connection();
        let busy = connection.as_ref().is_some_and(|c| c.in_flight() > 0);
        let containers = match books {
            Some(session) => containers(house, session.as_str()).await,
            None => Vec::new(),
        };
        servers.push(Server {
            name: view.name.clone(),
            state: if busy && matches!(state, State::Ready(_)) { "busy" } else { state.word() }
                .into(),
            backend: match &state {
                State::Ready(ready) => Some(ready.backend.clone()),
                _ => None,
            },
            processes: guardian.map(processes).unwrap_or_default(),
            containers,
            age_s: since.elapsed().as_secs_f64(),
            idle_s: connection.map_or(since.elapsed(), |c| c.idle()).as_secs_f64(),
        });
    }
    servers
}

/// How many processes there are, without asking anybody but the kernel.
pub(super) fn count(views: &[Arc<View>]) -> usize {
    views.iter().filter_map(|view| view.place().0).map(|guardian| below(guardian).len()).sum()
}

/// Everyone below a guardian; nobody if the number has come to mean somebody else.
fn below(guardian: Member) -> Vec<Member> {
    let below = process::below(guardian.pid);
    if guardian.is_alive() { below } else { Vec::new() }
}

fn processes(guardian: Member) -> Vec<Process> {
    let one = |member: Member| {
        let stat = process::stat(member.pid).filter(|stat| stat.start == member.start)?;
        Some(Process {
            pid: member.pid,
            ppid: stat.ppid,
            start: member.start,
            command: process::name(member.pid),
            rss_bytes: process::resident(member.pid).unwrap_or(0),
            cpu_ms: process::time(stat.cpu_ticks).as_millis() as u64,
        })
    };
    below(guardian).into_iter().filter_map(one).collect()
}

/// Asks the engine, if the server has ever used it.
async fn containers(house: &House, session: &str) -> Vec<Container> {
    let Some(around) = &house.household.docker else { return Vec::new() };
    let tally = Books::tally_of(&house.household.state_dir, session);
    if tally::expect(&tally) == Expect::Nothing {
        return Vec::new();
    }
    let Ok(Some(endpoint)) = endpoint::resolve(around) else { return Vec::new() };
    let client = Client::new(&endpoint);
    let listed = timeout(ENGINE, client.of_session(Kind::Container, session)).await;
    let listed = listed.ok().and_then(Result::ok).unwrap_or_default();
    let container = |thing: Thing| Container { id: thing.key().into(), image: thing.image };
    listed.into_iter().map(container).collect()
}
