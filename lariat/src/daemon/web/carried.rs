//! Whoever is served by TCP on this machine, handed from one program to the next that this process becomes.

use super::Web;
use crate::daemon::gateway::carried::Carried as Client;
use crate::daemon::visit::carried::Carried as Visit;
use crate::pool::carried::Hubs;
use std::os::fd::RawFd;

impl Web {
    /// Has sessions rest, or go on. Connections are called by themselves, before.
    pub(in crate::daemon) fn call(&self, rest: bool) {
        if let Some(opened) = &*self.opened() {
            opened.page.gateway.call_to_rest(rest);
        }
    }

    /// True if everybody rests.
    pub(in crate::daemon) fn rests(&self) -> bool {
        let rests = self.opened().as_ref().is_none_or(|opened| opened.page.gateway.rests());
        rests && self.visits.is_complete()
    }

    /// Where it listens, if it does.
    pub(in crate::daemon) fn listener(&self) -> Option<RawFd> {
        self.opened().as_ref().map(|opened| opened.listener)
    }

    /// Sessions and connections for the next program, while everything rests. `None` if one of them cannot
    /// be handed over.
    pub(in crate::daemon) fn carry(
        &self,
        keep: &mut Vec<RawFd>,
    ) -> Option<(Vec<Client>, Vec<Visit>)> {
        let opened = self.opened();
        let Some(opened) = &*opened else { return Some(Default::default()) };
        let gateway = &opened.page.gateway;
        let clients = gateway.carry()?;
        let visits = self.visits.look(|visit| visit.carry(gateway, keep));
        Some((clients, visits.into_iter().collect::<Option<Vec<_>>>()?))
    }

    /// Has them go on. Where nobody is served any more, they end.
    pub(in crate::daemon) fn take_over(
        &self,
        clients: Vec<Client>,
        visits: Vec<Visit>,
        hubs: &mut Hubs,
    ) {
        let opened = self.opened();
        let Some(opened) = &*opened else {
            visits.into_iter().for_each(Visit::close);
            return;
        };
        let gateway = &opened.page.gateway;
        for client in clients {
            gateway.take_over(client, hubs);
        }
        for visit in visits {
            // One whose stream is not there any more has left.
            if let Ok(visit) = visit.again(gateway, hubs) {
                // Whoever serves them is there as long as this is open.
                let _served = opened.inherited.send(visit);
            }
        }
    }
}
