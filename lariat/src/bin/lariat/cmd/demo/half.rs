//! One half of a scene: start the host, look on until some time after its end, note what was seen.
//!
//! Both halves are watched by the same code for the same time; the only difference is one word in
//! the host's orders. All numbers are of server processes; what Lariat itself runs is kept apart.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::actors::{self, Orders};
use super::chart::Row;
use super::identity::Identity;
use super::look::{Eyes, Kind, Look, Tally};
use super::screen::{Screen, mib};
use super::{pause, poll_for};
use crate::show;

/// The time between two looks; longer where a look itself takes long.
const PACE: Duration = Duration::from_millis(50);

/// The time between two drawings.
const FRAME: Duration = Duration::from_millis(100);

/// A host that has said nothing for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// A scene: what the host does, and how it ends.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) number: u8,
    pub(super) title: &'static str,
    /// The title in a word or two, for the table.
    pub(super) short: &'static str,
    pub(super) story: &'static [&'static str],
    /// How many times the host starts its servers anew.
    pub(super) sets: u32,
    /// How many servers it starts each time.
    pub(super) servers: u32,
    pub(super) interval: Duration,
    /// Whether the demo ends the host with SIGKILL, or the host ends by itself.
    pub(super) killed: bool,
    /// How long to look on after the host's end.
    pub(super) aftermath: Duration,
}

impl Scene {
    /// The number of processes if nothing ever ended, which is the full height of both charts.
    fn most(&self) -> usize {
        self.sets as usize * self.servers as usize * actors::TREE
    }

    fn duration(&self) -> Duration {
        self.interval * self.sets + self.aftermath
    }
}

/// What was seen in one half.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) wrapped: bool,
    /// How many servers were started and answered.
    pub(super) servers: u32,
    pub(super) peak: Tally,
    /// The peak of `lariat run` and its guardians, which are not in the other numbers.
    pub(super) own: Tally,
    /// What was there at the end of the aftermath.
    pub(super) left: Tally,
    /// From the host's end to the first look without a server process, if none came back.
    pub(super) gone_after: Option<Duration>,
    /// All that was there at the end of the aftermath, Lariat's own processes too.
    pub(super) survivors: Vec<String>,
    /// Why the half could not be played, if it could not.
    pub(super) failure: Option<String>,
}

/// One half while it is played.
pub(super) struct Half<'a> {
    pub(super) eyes: &'a Eyes,
    pub(super) scene: &'a Scene,
    pub(super) wrapped: bool,
    pub(super) token: String,
    pub(super) demo: Identity,
    /// The row of the half before, which is drawn above this one.
    pub(super) above: Option<Row>,
    pub(super) screen: &'a mut Screen,
}

impl Half<'_> {
    /// Plays the half and leaves whatever is left, for the caller to clean up.
    pub(super) fn play(mut self) -> io::Result<(Seen, Row)> {
        let scene = self.scene;
        let row = Row::new(name(self.wrapped), scene.most(), scene.duration());
        let seen = Seen { wrapped: self.wrapped, ..Seen::default() };
        let orders = Orders {
            wrapped: self.wrapped,
            sets: scene.sets,
            servers: scene.servers,
            interval: scene.interval,
            stays: scene.killed,
        };
        let host = actors::start_host(&self.token, self.demo, orders)?;
        let mut watch = Watch { row, seen, begun: Instant::now(), drawn: None, pace: PACE };
        watch.row.status = "the host starts".to_owned();
        let ended = self.until_the_host_ends(host, &mut watch)?;
        if watch.seen.failure.is_some() {
            watch.row.status = "could not be played".to_owned();
            self.draw(&mut watch)?;
        } else {
            self.aftermath(ended, &mut watch)?;
        }
        Ok((watch.seen, watch.row))
    }

    /// Looks on while the host lives; ends it if that is the scene. Gives the moment of its end.
    fn until_the_host_ends(&mut self, mut host: Child, watch: &mut Watch) -> io::Result<Instant> {
        let mut ears = Ears::new(host.stdout.take());
        let mut kill_at = None;
        let mut heard_at = Instant::now();
        let ended = loop {
            let look = self.look(watch, &mut ears)?;
            for line in ears.lines() {
                heard_at = Instant::now();
                if let Some(why) = line.strip_prefix("failed ") {
                    watch.seen.failure = Some(why.to_owned());
                } else if let Some(set) = line.strip_prefix("ready ") {
                    watch.seen.servers += self.scene.servers;
                    watch.row.status = self.progress(set);
                    kill_at = self.scene.killed.then(|| heard_at + self.scene.interval);
                    self.tell(watch, &look)?;
                }
            }
            let stuck = heard_at.elapsed() > PATIENCE;
            if stuck {
                watch.seen.failure = Some("the host got stuck".to_owned());
            }
            if stuck || kill_at.is_some_and(|due| Instant::now() >= due) {
                // Before the signal, so that no time is taken off what comes after it.
                let ended = Instant::now();
                host.kill()?;
                break ended;
            }
            if let Some(ended) = ears.closed {
                if self.scene.killed && watch.seen.failure.is_none() {
                    watch.seen.failure = Some("the host ended before its time".to_owned());
                }
                break ended;
            }
        };
        host.wait()?;
        if watch.seen.failure.is_some() {
            return Ok(ended);
        }
        watch.row.host_ended = Some(ended - watch.begun);
        let how = if self.scene.killed { "SIGKILL for the host" } else { "the host ends" };
        watch.row.status = how.to_owned();
        let look = self.eyes.look(&self.token)?;
        watch.note(&look);
        self.tell(watch, &look)?;
        Ok(ended)
    }

    /// Looks on for a while after the host's end, for the same time in both halves.
    fn aftermath(&mut self, ended: Instant, watch: &mut Watch) -> io::Result<()> {
        let mut deaf = Ears::new(None);
        loop {
            let look = self.look(watch, &mut deaf)?;
            let now = look.tally(Kind::Server);
            let since = ended.elapsed();
            match (now.processes, watch.seen.gone_after) {
                (0, None) => {
                    watch.seen.gone_after = Some(since);
                    watch.row.status = format!("all gone {} after the host", seconds(since));
                    self.tell(watch, &look)?;
                }
                (0, Some(_)) => {}
                (left, _) => {
                    watch.seen.gone_after = None;
                    watch.row.status = format!("{left} left, {} after the host", seconds(since));
                }
            }
            if since >= self.scene.aftermath {
                watch.seen.left = now;
                watch.seen.survivors = look.names();
                if now.processes > 0 {
                    self.tell(watch, &look)?;
                }
                return self.draw(watch);
            }
        }
    }

    /// Waits for a word of the host or the next look, looks, writes it down and draws it.
    fn look(&mut self, watch: &mut Watch, ears: &mut Ears) -> io::Result<Look> {
        ears.listen(watch.pace)?;
        let begun = Instant::now();
        let look = self.eyes.look(&self.token)?;
        watch.note(&look);
        if watch.drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME) {
            self.draw(watch)?;
        }
        // A machine with very many processes is looked at less often, not slowed down.
        watch.pace = PACE.max(begun.elapsed() * 3);
        Ok(look)
    }

    fn draw(&mut self, watch: &mut Watch) -> io::Result<()> {
        watch.drawn = Some(Instant::now());
        let rows: Vec<&Row> = self.above.iter().chain([&watch.row]).collect();
        self.screen.draw(&rows)
    }

    /// One line for a screen that cannot be redrawn.
    fn tell(&mut self, watch: &Watch, look: &Look) -> io::Result<()> {
        let at = watch.begun.elapsed().as_secs_f64();
        let (label, status) = (name(self.wrapped), &watch.row.status);
        let count = headline(look.tally(Kind::Server), look.tally(Kind::Wrapper));
        self.screen.event(&format!("{at:5.1} s  {label:<7} {status:<30} {count}"))
    }

    fn progress(&self, set: &str) -> String {
        if self.scene.sets > 1 {
            format!("config refresh {set} of {}", self.scene.sets)
        } else {
            format!("{} up", show::count(self.scene.servers, "server"))
        }
    }
}

/// What is known so far of the half that is played.
struct Watch {
    row: Row,
    seen: Seen,
    begun: Instant,
    drawn: Option<Instant>,
    pace: Duration,
}

impl Watch {
    fn note(&mut self, look: &Look) {
        let (servers, own) = (look.tally(Kind::Server), look.tally(Kind::Wrapper));
        self.seen.peak = self.seen.peak.max(servers);
        self.seen.own = self.seen.own.max(own);
        self.row.headline = headline(servers, own);
        self.row.samples.push((self.begun.elapsed(), servers.processes));
    }
}

/// The host's stdout, heard without waiting for it.
struct Ears {
    stdout: Option<ChildStdout>,
    heard: String,
    /// When the host's end was heard.
    closed: Option<Instant>,
}

impl Ears {
    fn new(stdout: Option<ChildStdout>) -> Self {
        Self { closed: None, stdout, heard: String::new() }
    }

    /// Waits until the host says something or the time is over.
    fn listen(&mut self, at_most: Duration) -> io::Result<()> {
        let Some(stdout) = self.stdout.as_mut() else {
            pause(at_most);
            return Ok(());
        };
        let mut fds = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        poll_for(&mut fds, at_most);
        if !fds[0].revents().is_empty() {
            let mut bytes = [0; 1024];
            let count = stdout.read(&mut bytes)?;
            self.heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
            if count == 0 {
                self.closed = Some(Instant::now());
                self.stdout = None;
            }
        }
        Ok(())
    }

    /// The whole lines heard since the last call.
    fn lines(&mut self) -> Vec<String> {
        let whole = self.heard.rfind('\n').map_or(0, |end| end + 1);
        let rest = self.heard.split_off(whole);
        std::mem::replace(&mut self.heard, rest).lines().map(str::to_owned).collect()
    }
}

/// What a half is called.
pub(super) fn name(wrapped: bool) -> &'static str {
    if wrapped { "lariat" } else { "bare" }
}

/// Number and memory of the server processes, and beside them Lariat's own if there are any.
fn headline(servers: Tally, own: Tally) -> String {
    let text =
        format!("{:>12} {:>8}", show::count(servers.processes, "process"), mib(servers.memory));
    match own.processes {
        0 => text,
        own => format!("{text}  (+{own} lariat)"),
    }
}

/// A duration as people say it.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_line_waits_for_its_end() {
        let mut ears = Ears::new(None);
        ears.heard.push_str("ready 1\nrea");
        assert_eq!(ears.lines(), ["ready 1"]);
        ears.heard.push_str("dy 2\n");
        assert_eq!(ears.lines(), ["ready 2"]);
        assert!(ears.lines().is_empty());
    }

    #[test]
    fn lariats_own_processes_are_named_apart() {
        let servers = Tally { processes: 8, memory: 24 << 10 };
        let own = Tally { processes: 4, memory: 900 };
        assert_eq!(headline(servers, Tally::default()), " 8 processes   24 MiB");
        assert_eq!(headline(servers, own), " 8 processes   24 MiB  (+4 lariat)");
    }
}
