//! The wrapper's side of the proxy: a socket that costs nothing until somebody knocks.
//!
//! The wrapper listens and does not accept: the first connection waits in the socket's queue while a
//! proxy is forked, and finds it there. Wrapper and guardian both hold one end of a lifeline whose
//! other end is the proxy's: a word on it means that the tree is gone, its breaking that both are.

use super::admission::Service;
use super::endpoint::Endpoint;
use super::proxy;
use super::tally::Tally;
use contain::{Aside, Hold};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a proxy that was told to leave may take; its own patience is shorter.
const PARTING: Duration = Duration::from_millis(1500);

/// How long to wait after a proxy that came to nothing; longer after each more.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A proxy that lived this long did come to something.
const LIVED: Duration = Duration::from_secs(1);

/// What a unix socket's address can hold, with the null that ends it.
const LONGEST_ADDRESS: usize = 108;

/// A session's own Docker socket.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    listener: UnixListener,
    /// Held by wrapper and guardian.
    ours: OwnedFd,
    /// Given to each proxy.
    theirs: OwnedFd,
    service: Service,
    proxy: Option<Aside>,
    /// When the last proxy was started, and how many before it came to nothing.
    last: Option<Instant>,
    failures: u32,
    closing: bool,
}

impl Door {
    /// Where a session's socket would be: with its books, if that is not too long a name for one.
    pub fn place(sessions: &Path, session: &str) -> PathBuf {
        let beside = sessions.join(format!("{session}.sock"));
        if beside.as_os_str().len() < LONGEST_ADDRESS {
            beside
        } else {
            // The same for whoever comes later, whatever that one's environment says.
            Path::new("/tmp").join(format!("lariat-{session}.sock"))
        }
    }

    /// Listens. Nobody but this user can connect.
    pub fn open(path: PathBuf, service: Service) -> io::Result<Door> {
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        rustix::process::umask(before);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Door {
            path,
            listener: bound?,
            ours,
            theirs,
            service,
            proxy: None,
            last: None,
            failures: 0,
            closing: false,
        })
    }

    /// What the session's processes are to see instead of what we were given.
    pub fn environment(&self) -> Vec<(OsString, Option<OsString>)> {
        let mut host = OsString::from("unix://");
        host.push(&self.path);
        // The others say how to reach the engine that we reach for them.
        let gone = ["DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"];
        let gone = gone.into_iter().map(|name| (name.into(), None));
        gone.chain([("DOCKER_HOST".into(), Some(host))]).collect()
    }

    /// The engine behind it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.service.endpoint
    }

    /// For the guardian to hold.
    pub fn lifeline(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// Readable when somebody knocks and nobody is there to answer.
    pub fn interest(&self) -> Option<BorrowedFd<'_>> {
        let due = self.not_before().is_none_or(|then| Instant::now() >= then);
        (self.is_unattended() && due).then(|| self.listener.as_fd())
    }

    /// When to look again, if proxies came to nothing: without a pause a machine that cannot fork
    /// would be asked to all the time.
    pub fn deadline(&self) -> Option<Instant> {
        let then = self.not_before().filter(|_| self.is_unattended());
        then.filter(|then| *then > Instant::now())
    }

    fn is_unattended(&self) -> bool {
        self.proxy.is_none() && !self.closing
    }

    fn not_before(&self) -> Option<Instant> {
        let pause = FIRST_PAUSE * (1 << self.failures.checked_sub(1)?.min(6));
        Some(self.last? + pause)
    }

    /// True if there is somebody to answer, for a loop that cannot wait for it.
    pub fn somebody_knocks(&self) -> bool {
        self.interest().is_some_and(|fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            contain::wait(&mut fds, Some(Instant::now()));
            !fds[0].revents().is_empty()
        })
    }

    /// Somebody knocks: starts a proxy. Without one the connection waits, and so does its client;
    /// that is better than a container that nobody would remove.
    pub fn answer(&mut self, hold: &mut Hold) {
        let (listener, lifeline) = (&self.listener, &self.theirs);
        let serve = || {
            let service = self.service.clone();
            let served = listener.try_clone().and_then(|listener| {
                lifeline.try_clone().and_then(|lifeline| proxy::serve(listener, lifeline, service))
            });
            i32::from(served.is_err())
        };
        let keep = [listener.as_fd(), lifeline.as_fd()];
        self.last = Some(Instant::now());
        match Aside::fork(c"lariat-docker", &keep, serve) {
            Ok(proxy) => {
                hold.set_aside(&proxy);
                self.proxy = Some(proxy);
            }
            Err(_) => self.failures += 1,
        }
    }

    /// A child of the wrapper has ended, perhaps the proxy. The next connection starts another.
    pub fn notice(&mut self) {
        if self.proxy.take_if(|proxy| proxy.has_ended()).is_some() {
            let lived = self.last.is_some_and(|start| start.elapsed() >= LIVED);
            self.failures = if lived { 0 } else { self.failures + 1 };
        }
    }

    /// Tells the proxy to finish what it has begun and to leave. Nothing is answered any more.
    pub fn dismiss(&mut self) {
        if !self.closing {
            self.closing = true;
            say_goodbye(self.ours.as_fd());
        }
    }

    /// Ends the proxy, once the tree is gone. Returns when nothing more can be created.
    pub fn close(mut self) {
        self.dismiss();
        let Door { listener, ours, theirs, proxy, service, .. } = self;
        drop((listener, theirs));
        if !has_left(ours.as_fd()) {
            in_doubt(&service);
            if let Some(proxy) = proxy {
                proxy.kill();
                has_left(ours.as_fd());
            }
        }
    }

    /// The same from the guardian, whose wrapper is dead and which has only the lifeline.
    pub fn close_from_guardian(&self) {
        say_goodbye(self.ours.as_fd());
        if !has_left(self.ours.as_fd()) {
            in_doubt(&self.service);
        }
    }
}

/// A proxy that does not leave may still create something: the sweep is to look longer.
fn in_doubt(service: &Service) {
    // A create that is never answered.
    let _unnoted = Tally::sent(&service.tally);
}

fn say_goodbye(lifeline: BorrowedFd<'_>) {
    // If nobody is there to hear it, nobody has to.
    let _nobody = send(lifeline, b".", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Waits for the other end of the lifeline to close.
fn has_left(lifeline: BorrowedFd<'_>) -> bool {
    let deadline = Instant::now() + PARTING;
    loop {
        let mut fds = [PollFd::from_borrowed_fd(lifeline, PollFlags::empty())];
        contain::wait(&mut fds, Some(deadline));
        if fds[0].revents().contains(PollFlags::HUP) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}
