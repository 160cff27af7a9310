//! Whoever had something in the program before has it again.

use super::super::attached::Attached;
use super::super::handle::Desk;
use super::super::lease::Line;
use super::super::lease::carried::{Held, Lines};
use super::super::line::{self, Resting};
use super::super::{Room, connection, joining};
use super::Heirs;
use crate::pool::carried::Hubs;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Has everybody go on who was there in the program before.
pub(in crate::daemon) fn settle(
    desk: &Arc<Desk>,
    room: &Room,
    connections: &mut JoinSet<()>,
    mut hubs: Hubs,
    heirs: Heirs,
) {
    let Heirs { seats, sessions, lines, attached, clients, visits } = heirs;
    let mut known = Lines::new();
    let held = lines.iter().filter_map(|line| line.kept.line());
    for held in held.chain(attached.iter().map(|one| one.line)) {
        know(desk, room, &mut known, held);
    }
    desk.registry.take_over(&desk.defaults.session, sessions, &known, &mut hubs);
    for one in attached {
        let Ok(entry) = desk.registry.find(one.session.as_str()) else { continue };
        let Some(line) = known.get(&one.line.number).cloned() else { continue };
        // One whose stream is not there any more has left.
        let Some(one) = Attached::carried(one, line, &entry.session) else { continue };
        go_on(desk, one);
    }
    for entry in desk.registry.all() {
        entry.session.only_seated();
    }
    for carried in lines {
        let held = carried.kept.line().and_then(|held| known.get(&held.number).cloned());
        let Ok(resting) = carried.again(held, desk.registry.events()) else { continue };
        let (desk, room) = (desk.clone(), room.clone());
        match resting {
            Resting::Fresh(stream) => connections.spawn(connection(desk, stream, room)),
            Resting::Speaking(speaking) => {
                connections.spawn(async move { line::serve(&desk, speaking).await })
            }
            Resting::Telling(telling) => {
                let counted = desk.lines.come();
                connections.spawn(async move { telling.stay(&desk, counted).await })
            }
        };
    }
    for seat in seats {
        // One whose streams are not there any more has left.
        let Ok(seated) = joining::Seated::carried(&desk.pool, &mut hubs, seat) else { continue };
        let (desk, place) = (desk.clone(), room.seats.free.clone().try_acquire_owned());
        connections.spawn(async move {
            joining::stay(&desk, seated).await;
            drop(place);
        });
    }
    desk.web.take_over(clients, visits, &mut hubs);
    desk.pool.go_on(hubs);
}

fn know(desk: &Desk, room: &Room, known: &mut Lines, held: Held) {
    // There were no more before than there may be.
    if let Ok(permit) = room.connections.free.clone().try_acquire_owned() {
        let line = Line::carried(held, permit, desk.registry.changed.clone());
        known.insert(held.number, Arc::new(line));
    }
}

fn go_on(desk: &Arc<Desk>, one: Attached) {
    let (desk, counted) = (desk.clone(), desk.attached.come());
    tokio::spawn(async move {
        one.stay(&desk).await;
        drop(counted);
    });
}
