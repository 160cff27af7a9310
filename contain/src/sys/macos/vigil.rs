//! What a wrapper hears besides its tree: signals, the end of its host, and that the host has hung up.
//!
//! One queue of the kernel's, which can itself be waited for with `poll`. A signal is recorded here
//! and does nothing else. A stream is watched without being read: whoever has another copy of it
//! reads every byte.

use crate::member::Member;
use rustix::event::kqueue::{
    Event, EventFilter, EventFlags, ProcessEvents, kevent_timespec, kqueue,
};
use rustix::process::{Pid, Signal, getppid};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How much is taken at once; the rest comes with the next call.
const AT_ONCE: usize = 16;

/// Whoever asks does not wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How often to ask who our parent is where the kernel does not tell.
const PARENT_CHECK: Duration = Duration::from_secs(1);

/// The numbers of the signals that a wrapper deals with, for crates without libc.
pub mod number {
    pub use libc::{
        SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2,
        SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
    };
}

/// Something that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// This signal has come.
    Signal(i32),
    /// The process that started us is gone. Said once.
    HostGone,
    /// Nobody writes to the watched input any more. Said once.
    InputClosed,
    /// Nobody reads the watched output any more. Said once.
    OutputClosed,
}

/// Who listens.
#[derive(Debug)]
pub struct Vigil {
    queue: OwnedFd,
    /// Who was our parent at the beginning; none once that has been told to be gone.
    parent: Option<Pid>,
    member: Option<Member>,
    /// The kernel tells of the parent's end.
    is_told: bool,
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
}

impl Vigil {
    /// Listens for these signals, and for the end of whoever is our parent now. A signal that is
    /// ignored stays ignored: a process that was started with `nohup` does not hear SIGHUP.
    pub fn new(signals: &[i32]) -> io::Result<Vigil> {
        let parent = getppid();
        let queue = kqueue()?;
        rustix::io::fcntl_setfd(&queue, rustix::io::FdFlags::CLOEXEC)?;
        let member = parent.and_then(|parent| Member::of(parent.as_raw_pid()));
        let (is_told, input, output) = (false, None, None);
        let mut vigil = Vigil { queue, parent, member, is_told, input, output };
        for number in signals {
            if let Some(signal) = Signal::from_named_raw(*number)
                && catch(*number)?
            {
                vigil.add(EventFilter::Signal { signal, times: 0 })?;
            }
        }
        if let Some(pid) = parent {
            let exit = EventFilter::Proc { pid, flags: ProcessEvents::EXIT };
            vigil.is_told = vigil.add(exit).is_ok();
        }
        Ok(vigil)
    }

    /// The process that started us, while it is there.
    pub fn host(&self) -> Option<Member> {
        self.member
    }

    /// Watches the host's ends of these streams. Of what cannot be watched, a file or a terminal
    /// perhaps, nothing is told. Whoever reads the input itself needs no word of its end.
    pub fn watch(&mut self, input: Option<OwnedFd>, output: OwnedFd) {
        let reading = input.as_ref().map(|input| EventFilter::Read(input.as_raw_fd()));
        for filter in reading.into_iter().chain([EventFilter::Write(output.as_raw_fd())]) {
            let _untold = self.add(filter);
        }
        (self.input, self.output) = (input, Some(output));
    }

    fn add(&self, filter: EventFilter) -> io::Result<()> {
        // Told once for each thing that happens: what has closed stays so for ever, and bytes that
        // wait for somebody else to read them must not keep us awake.
        let flags = EventFlags::ADD | EventFlags::CLEAR;
        let change = [Event::new(filter, flags, std::ptr::null_mut())];
        let none: &mut [Event] = &mut [];
        // SAFETY: every descriptor that is added is owned by this value; one that is closed before
        // the queue leaves it by that.
        unsafe { kevent_timespec(self.queue.as_fd(), &change, none, Some(&NOW)) }?;
        Ok(())
    }

    /// When [`Vigil::signs`] wants to be called even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        // The first process never ends, and cannot be watched by everybody.
        let asks = !self.is_told && self.parent.is_some_and(|parent| !parent.is_init());
        asks.then(|| Instant::now() + PARENT_CHECK)
    }

    /// What was heard since the last call. Never blocks; [`AsFd`] says when to call.
    pub fn signs(&mut self) -> Vec<Sign> {
        let mut happened: Vec<Event> = Vec::with_capacity(AT_ONCE);
        let room = rustix::buffer::spare_capacity(&mut happened);
        // SAFETY: nothing is added by this call.
        let told = unsafe { kevent_timespec(self.queue.as_fd(), &[], room, Some(&NOW)) };
        let mut signs = Vec::new();
        if told.is_err() {
            happened.clear();
        }
        for event in &happened {
            let closed = event.flags().contains(EventFlags::EOF);
            match event.filter() {
                // Twice before we looked is twice.
                EventFilter::Signal { signal, times } => {
                    signs.extend((0..times.clamp(1, 2)).map(|_| Sign::Signal(signal.as_raw())));
                }
                EventFilter::Read(_) if closed && self.input.take().is_some() => {
                    signs.push(Sign::InputClosed);
                }
                EventFilter::Write(_) if closed && self.output.take().is_some() => {
                    signs.push(Sign::OutputClosed);
                }
                _ => {}
            }
        }
        // A debugger of ours would be our parent, so that is only asked where the queue tells nothing.
        let exits = happened.iter().any(|e| matches!(e.filter(), EventFilter::Proc { .. }));
        if self.parent.is_some() && (exits || !self.is_told && getppid() != self.parent) {
            (self.parent, self.member) = (None, None);
            signs.push(Sign::HostGone);
        }
        signs
    }
}

impl AsFd for Vigil {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// Keeps a signal from ending this process. False if it is ignored, and so stays. A handler and not
/// a mask: what this process executes starts with neither.
fn catch(signal: i32) -> io::Result<bool> {
    extern "C" fn heard(_signal: libc::c_int) {}
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set, and what is in force is written to a valid place; zeros are a value.
    let (asked, before) = unsafe {
        let asked = libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr());
        (asked, before.assume_init())
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if before.sa_sigaction == libc::SIG_IGN {
        return Ok(false);
    }
    let mut action = before;
    action.sa_sigaction = heard as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing at all, which is safe at any moment.
    let set = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    if set == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait::wait;
    use rustix::event::{PollFd, PollFlags};
    use std::io::Write;

    /// The next that is heard.
    fn heard(vigil: &mut Vigil) -> Vec<Sign> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let signs = vigil.signs();
            if !signs.is_empty() || Instant::now() >= deadline {
                return signs;
            }
            wait(&mut [PollFd::new(vigil, PollFlags::IN)], Some(deadline));
        }
    }

    #[test]
    fn a_signal_is_heard_and_ends_nothing() {
        let mut vigil = Vigil::new(&[libc::SIGUSR2]).unwrap();
        assert!(vigil.host().is_some() && vigil.signs().is_empty());
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        assert_eq!(heard(&mut vigil), [Sign::Signal(libc::SIGUSR2)]);
    }

    #[test]
    fn a_hang_up_is_heard_without_reading() {
        let mut vigil = Vigil::new(&[]).unwrap();
        let (input, mut host_writes) = io::pipe().unwrap();
        let (host_reads, output) = io::pipe().unwrap();
        vigil.watch(Some(input.try_clone().unwrap().into()), output.into());
        host_writes.write_all(b"bytes").unwrap();
        assert_eq!(vigil.signs(), [], "bytes are no hang-up");
        drop(host_writes);
        assert_eq!(heard(&mut vigil), [Sign::InputClosed]);
        drop(host_reads);
        assert_eq!(heard(&mut vigil), [Sign::OutputClosed]);
    }
}
