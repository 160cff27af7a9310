//! Who lives, as the books and the kernel have it now, and how to ask one of them to leave.

use super::onlooker::read_page;
use super::{Books, Onlooker, Place};
use crate::id::SessionId;
use crate::snapshot::Living;
use contain::Member;
use rustix::process::Signal;
use std::io;

impl Books {
    /// Every session that lives here, oldest first, and those that have ended and left somebody.
    /// Looking changes nothing. Who looks often is an [`Onlooker`].
    pub fn living(&self) -> Vec<Living> {
        Onlooker::new(self).look()
    }

    /// Asks the process that holds a session to end it, as a person would with `kill`: its receipt
    /// then says `signal:TERM`. False if nobody holds it any more. A host that embeds the library
    /// may start the server again.
    pub fn ask_to_end(&self, session: &SessionId) -> io::Result<bool> {
        let path = self.sessions().join(format!("{session}.json"));
        let Some((page, _)) = read_page(&path) else { return Ok(false) };
        if !page.place.shares_pids(&Place::here()?) {
            return Err(io::Error::other("it lives on another machine or in another container"));
        }
        let (pid, start) = page.wrapper;
        let wrapper = Member { pid, start };
        let asked = wrapper.signal(Signal::TERM)?;
        // Who was stopped hears it now.
        let _as_well = wrapper.signal(Signal::CONT)?;
        Ok(asked)
    }
}
