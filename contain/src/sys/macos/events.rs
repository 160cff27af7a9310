//! Word from the kernel: of the socket, of exits and of forks. All of it is only a reason to look.

use crate::member::Member;
use rustix::event::kqueue::{
    Event, EventFilter, EventFlags, ProcessEvents, kevent_timespec, kqueue,
};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::Timespec;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// How much is taken at once; the rest comes with the next call.
const AT_ONCE: usize = 64;

/// What has happened.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    /// Who has left, or is about to: the word comes a moment before the process can be waited for.
    pub(crate) left: Vec<i32>,
    /// Somebody has forked.
    pub(crate) forked: bool,
}

/// A queue of such events.
#[derive(Debug)]
pub(crate) struct Events {
    queue: OwnedFd,
    watched: HashSet<Member>,
}

impl Events {
    /// Begins to watch `control`, which must stay open as long as this exists.
    pub(crate) fn new(control: BorrowedFd<'_>) -> io::Result<Events> {
        let events = Events { queue: kqueue()?, watched: HashSet::new() };
        rustix::io::fcntl_setfd(&events.queue, rustix::io::FdFlags::CLOEXEC)?;
        events.add(EventFilter::Read(control.as_raw_fd()))?;
        Ok(events)
    }

    /// Watches exactly these processes from now on, as far as the kernel allows it. Says who has left, or is
    /// about to.
    pub(crate) fn watch(&mut self, members: &HashSet<Member>) -> Woken {
        let mut woken = Woken::default();
        // Who has left is no longer in the queue; the kernel has seen to that.
        self.watched.retain(|member| members.contains(member));
        for member in members {
            let Some(pid) = Pid::from_raw(member.pid) else { continue };
            if self.watched.insert(*member) {
                let flags = ProcessEvents::EXIT | ProcessEvents::FORK;
                if self.add(EventFilter::Proc { pid, flags }).is_err() {
                    woken.left.push(member.pid);
                }
            }
        }
        woken
    }

    fn add(&self, filter: EventFilter) -> io::Result<()> {
        // Told once for each thing that happens: a socket that has closed stays readable for ever.
        let flags = EventFlags::ADD | EventFlags::CLEAR;
        let change = [Event::new(filter, flags, std::ptr::null_mut())];
        let none: &mut [Event] = &mut [];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the one descriptor that is ever added is the socket, which the guardian keeps
        // open until it leaves; the queue is its own and dies with it.
        unsafe { kevent_timespec(self.queue.as_fd(), &change, none, Some(&at_once)) }?;
        Ok(())
    }

    /// Waits until something has happened or the deadline has come.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Woken {
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut happened: Vec<Event> = Vec::with_capacity(AT_ONCE);
        let room = rustix::buffer::spare_capacity(&mut happened);
        // SAFETY: nothing is added by this call.
        let told = unsafe { kevent_timespec(self.queue.as_fd(), &[], room, timeout.as_ref()) };
        let mut woken = Woken::default();
        if told.is_err_and(|errno| errno != Errno::INTR) {
            // Never at full speed: without the queue there is still a deadline.
            let moment = Instant::now() + std::time::Duration::from_millis(20);
            crate::sys::wait::wait(&mut [], deadline.into_iter().chain([moment]).min());
            woken.forked = true;
            return woken;
        }
        for event in &happened {
            if let EventFilter::Proc { pid, flags } = event.filter() {
                woken.forked |= flags.contains(ProcessEvents::FORK);
                if flags.contains(ProcessEvents::EXIT) {
                    woken.left.push(pid.as_raw_pid());
                }
            }
        }
        woken
    }
}
