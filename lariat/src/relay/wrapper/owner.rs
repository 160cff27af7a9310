//! What a holder hears from its owner while the server lives, and tells it.

use super::Wrapper;
use crate::receipt::Reason;
use crate::relay::ends::Ends;
use crate::start::wire::{Order, Word};
use contain::{Ask, Exit};
use rustix::process::Signal;

impl Wrapper<'_> {
    /// Does what the owner has ordered; one that has gone wants an end.
    pub(super) fn hear_owner(&mut self) {
        let Ends::Held(control) = &mut self.ends else { return };
        let listens = control.hear();
        let orders: Vec<Order> = std::iter::from_fn(|| control.order()).collect();
        for order in orders {
            match order {
                Order::Close => self.end(Reason::Closed, Ask::Closed),
                Order::Hasten => self.end(Reason::Closed, Ask::Signal(Signal::TERM.as_raw())),
            }
        }
        if !listens {
            self.end(Reason::OwnerGone, Ask::OwnerDied);
        }
    }

    /// Tells an owner that the command runs.
    pub(super) fn tell_started(&self) {
        if let (Ends::Held(control), Some(leader)) = (&self.ends, self.hold.leader()) {
            control.say(&Word::Started {
                pid: leader.pid,
                guardian: (self.hold.guardian().pid, self.hold.guardian().start),
                backend: self.hold.backend().name().into(),
            });
        }
    }

    /// Tells an owner how the command ended, and what it said of that.
    pub(super) fn tell_exited(&mut self, exit: Exit) {
        if let Ends::Held(control) = &self.ends {
            self.drain.take();
            let (how, code) = match exit {
                Exit::Code(code) => (format!("exit code {code}"), code),
                Exit::Signal(signal) => (contain::signal_name(signal), 128 + signal),
            };
            let code = u8::try_from(code).unwrap_or(u8::MAX);
            control.say(&Word::Exited { how, code, last_words: self.drain.last_words() });
        }
    }
}
