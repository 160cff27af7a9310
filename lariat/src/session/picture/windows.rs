//! A session's servers and what they consist of, as their jobs have it now.

use super::House;
use super::server::View;
use super::state::State;
use crate::snapshot::{Process, Server};
use contain::{Member, process};
use std::sync::Arc;

/// Looks at each server.
pub(super) async fn of(views: Vec<Arc<View>>, house: &House) -> Vec<Server> {
    let server = |view: Arc<View>| {
        let (guardian, _, since) = view.place();
        let state = view.state();
        let connection = view.connection();
        let busy = connection.as_ref().is_some_and(|c| c.in_flight() > 0);
        Server {
            name: view.name.clone(),
            state: if busy && matches!(state, State::Ready(_)) { "busy" } else { state.word() }
                .into(),
            backend: match &state {
                State::Ready(ready) => Some(ready.backend.clone()),
                _ => None,
            },
            processes: guardian.map(processes).unwrap_or_default(),
            // There is no engine that could have any.
            containers: house.household.docker.iter().map(|engine| match *engine {}).collect(),
            age_s: since.elapsed().as_secs_f64(),
            idle_s: connection.map_or(since.elapsed(), |c| c.idle()).as_secs_f64(),
        }
    };
    views.into_iter().map(server).collect()
}

/// How many processes there are, without asking anybody but the kernel.
pub(super) fn count(views: &[Arc<View>]) -> usize {
    let leaders = views.iter().filter_map(|view| view.place().0);
    leaders.map(|leader| process::below(leader.pid).len()).sum()
}

fn processes(leader: Member) -> Vec<Process> {
    let one = |member: Member| {
        let seen = process::look(member)?;
        Some(Process {
            pid: member.pid,
            ppid: seen.parent,
            start: member.start,
            command: seen.name,
            rss_bytes: seen.resident,
            cpu_ms: seen.time.as_millis() as u64,
        })
    };
    process::below(leader.pid).into_iter().filter_map(one).collect()
}
