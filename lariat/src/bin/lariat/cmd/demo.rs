//! `lariat demo`: the leak and the cure, on this machine, in half a minute.
//!
//! Two scenes, each played twice: a host that forgets its servers and a host that is SIGKILLed,
//! first bare, then with `lariat run` in front of each server. The numbers are counted live in
//! `/proc` by code that shares nothing with Lariat's own. No network, no set-up, and nothing stays:
//! what the bare half leaks is ended by identity.

mod actors;
mod chart;
mod half;
mod identity;
mod lease;
mod look;
mod screen;

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use serde_json::{Value, json};

use half::{Half, Scene, Seen, name, seconds};
use identity::Identity;
use look::{Cleanup, Eyes, Tally};
use screen::{Mood, Screen, mib};

use crate::show;

/// Shows the leak and the cure on this machine in half a minute.
///
/// A host that forgets its servers and a host that is SIGKILLed, each without Lariat and with it. The
/// processes are real and counted live. It needs no network and no set-up, and nothing stays: what
/// the half without Lariat leaks is ended at the end. Exit code 0 if nothing is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  lariat demo
  lariat demo --json 2>/dev/null | jq .")]
pub(crate) struct Args {
    /// Print the results as JSON on stdout; what is shown meanwhile goes to stderr
    #[arg(long)]
    json: bool,
    /// A short version, for tests.
    #[arg(long, hide = true)]
    fast: bool,
}

/// Plays a role of the demo and never returns, if this process was started for that.
///
/// To be called before anything else in `main`.
pub(crate) fn act_if_asked() {
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|verb| verb == actors::VERB) {
        let over = actors::play(args.map(|word| word.to_string_lossy().into_owned()));
        #[expect(
            clippy::exit,
            clippy::disallowed_methods,
            reason = "an actor is a process of its own; its role is all it does"
        )]
        std::process::exit(i32::from(over.is_err()));
    }
}

/// Shows the demo. Succeeds if Lariat left nothing and the clean-up left nothing.
pub(crate) fn run(args: &Args) -> ExitCode {
    let token = actors::new_token();
    let played = Eyes::open().and_then(|eyes| {
        let demo = Identity::mine()?;
        let state_dir = actors::state_dir(&token);
        DirBuilder::new().mode(0o700).create(&state_dir)?;
        let mut janitor = actors::start_janitor(&token, demo)?;
        let played = play(args, &eyes, &token, demo);
        // However it ended, also when nobody reads any more: nothing stays, nor does the janitor.
        let cleaned = eyes.clean(&token)?;
        janitor.kill()?;
        janitor.wait()?;
        fs::remove_dir_all(&state_dir)?;
        match cleaned.survivors.as_slice() {
            [] => played,
            left => Err(io::Error::other(format!("could not end {}", left.join(", ")))),
        }
    });
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            show::failure(
                "the demo cannot go on",
                Some(&error),
                "`lariat doctor` says what is wrong here",
            );
            ExitCode::FAILURE
        }
    }
}

/// Plays the scenes, sums up, and says whether all went as promised.
fn play(args: &Args, eyes: &Eyes, token: &str, demo: Identity) -> io::Result<bool> {
    let mut screen = Screen::open(args.json);
    screen.title("lariat demo: what hosts leave behind, counted live in /proc")?;
    screen.note("Half a minute, no network. Nothing stays, not even after Ctrl-C.")?;
    let mut halves = Vec::new();
    let mut cleanup = Cleanup::default();
    let scenes = scenes(args.fast);
    for scene in &scenes {
        screen.text("")?;
        screen.title(&format!("{}. {}", scene.number, scene.title))?;
        for paragraph in scene.story {
            screen.note(&format!("   {paragraph}"))?;
        }
        screen.text("")?;
        if screen.is_live() && !args.fast {
            // Time to read, before the chart draws the eye.
            pause(Duration::from_millis(1500));
        }
        let mut above = None;
        for wrapped in [false, true] {
            let half = Half {
                eyes,
                scene,
                wrapped,
                token: scope(token, scene, wrapped),
                demo,
                above: above.take(),
                screen: &mut screen,
            };
            let (seen, row) = half.play()?;
            above = Some(row);
            halves.push((scene, seen));
        }
        let cleaned = eyes.clean(&scope(token, scene, false))?;
        cleanup.ended += cleaned.ended;
        cleanup.survivors.extend(cleaned.survivors);
    }
    let troubles = troubles(&halves, &cleanup);
    sum_up(&mut screen, eyes, &halves, &cleanup, &troubles)?;
    if args.json {
        let report = report(eyes, &halves, &cleanup, &troubles);
        writeln!(io::stdout().lock(), "{report:#}")?;
    }
    Ok(troubles.is_empty())
}

/// The scenes, or a short version of them.
fn scenes(fast: bool) -> [Scene; 2] {
    let time = |full: u64, short: u64| Duration::from_millis(if fast { short } else { full });
    [
        Scene {
            number: 1,
            title: "A host that forgets",
            short: "forgets",
            story: &[
                "On each config refresh it starts its two servers anew, closes the pipes of the \
                 old ones and forgets them. One of the two does not notice. The other leaves, \
                 but its browser (setsid) and its daemon (double fork) stay.",
                "Not shown: a host that lives, forgets and keeps the pipes open. From outside, \
                 that looks like a host that still uses them.",
            ],
            sets: if fast { 3 } else { 8 },
            servers: 2,
            interval: time(550, 200),
            killed: false,
            aftermath: time(2500, 1600),
        },
        Scene {
            number: 2,
            title: "A host that is SIGKILLed",
            short: "SIGKILLed",
            story: &["It has three such servers when it dies, and no chance to say goodbye."],
            sets: 1,
            servers: 3,
            interval: time(1500, 300),
            killed: true,
            aftermath: time(2500, 1600),
        },
    ]
}

/// Everything that did not go as promised, in words.
fn troubles(halves: &[(&Scene, Seen)], cleanup: &Cleanup) -> Vec<String> {
    let mut troubles = Vec::new();
    for (scene, seen) in halves {
        let half = name(seen.wrapped);
        if let Some(why) = &seen.failure {
            troubles.push(format!("scene {}, {half}: could not be played: {why}", scene.number));
        } else if seen.servers != scene.sets * scene.servers {
            let (servers, all) = (seen.servers, scene.sets * scene.servers);
            troubles.push(format!(
                "scene {}, {half}: only {servers} of {all} servers came up",
                scene.number
            ));
        }
        if seen.wrapped && !seen.survivors.is_empty() {
            let who = seen.survivors.join(", ");
            troubles.push(format!("scene {}, {half}: survived the host: {who}", scene.number));
        }
    }
    if !cleanup.survivors.is_empty() {
        troubles.push(format!("the clean-up could not end {}", cleanup.survivors.join(", ")));
    }
    troubles
}

/// The table and the last words.
fn sum_up(
    screen: &mut Screen,
    eyes: &Eyes,
    halves: &[(&Scene, Seen)],
    cleanup: &Cleanup,
    troubles: &[String],
) -> io::Result<()> {
    let head = ["host", "half", "started", "peak", "left behind", "gone"];
    let mut rows = vec![(Mood::Head, head.map(str::to_owned).to_vec())];
    let both = |tally: Tally| format!("{:>2} proc {:>7}", tally.processes, mib(tally.memory));
    for (scene, seen) in halves {
        let (mood, gone) = match (&seen.failure, seen.gone_after) {
            (Some(_), _) => (Mood::Bad, "not played".to_owned()),
            (None, Some(time)) => (Mood::Good, format!("after {}", seconds(time))),
            (None, None) => (Mood::Bad, format!("not in {}", seconds(scene.aftermath))),
        };
        let host = if seen.wrapped { "" } else { scene.short };
        let started = show::count(seen.servers, "server");
        let half = name(seen.wrapped).to_owned();
        let row = vec![host.to_owned(), half, started, both(seen.peak), both(seen.left), gone];
        rows.push((mood, row));
    }
    let own = halves.iter().fold(Tally::default(), |most, (_, seen)| most.max(seen.own));
    screen.text("")?;
    screen.table(&rows, &[2, 3, 5])?;
    screen.text("")?;
    screen.note(&format!("Counted: server processes, memory as {}.", eyes.measure()))?;
    screen.note(&format!(
        "Beside them: lariat run and its guardians, at most {}, {}.",
        show::count(own.processes, "process"),
        mib(own.memory),
    ))?;
    screen.text(&format!(
        "Cleaned up: the bare half's leak, {} ended by pid and start time.",
        show::count(cleanup.ended, "process")
    ))?;
    for trouble in troubles {
        screen.alarm(&format!("Not as promised: {trouble}."))?;
    }
    let me = called_as();
    screen.text("")?;
    for line in next_steps(&me) {
        screen.text(&line)?;
    }
    Ok(())
}

/// What to do about it, the least first.
fn next_steps(me: &str) -> [String; 3] {
    [
        format!("Next:  {me} install --dry-run      what would change for the hosts here"),
        format!("       {me} run -- your-server     ties one server to its host"),
        format!("       {me} probe -- your-server   what it starts and costs"),
    ]
}

/// The same as the table, for programs.
fn report(eyes: &Eyes, halves: &[(&Scene, Seen)], cleanup: &Cleanup, troubles: &[String]) -> Value {
    let tally = |tally: Tally| json!({ "processes": tally.processes, "memory_kib": tally.memory });
    let halves: Vec<Value> = halves
        .iter()
        .map(|(scene, seen)| {
            json!({
                "scene": scene.short,
                "half": name(seen.wrapped),
                "servers": seen.servers,
                "peak": tally(seen.peak),
                "left": tally(seen.left),
                "gone_after_ms": seen.gone_after.map(|time| time.as_millis() as u64),
                "watched_ms": scene.aftermath.as_millis() as u64,
                "lariat_peak": tally(seen.own),
            })
        })
        .collect();
    json!({
        "memory": eyes.measure(),
        "halves": halves,
        "cleaned": cleanup.ended,
        "troubles": troubles,
    })
}

/// The part of the token that only one half's processes carry.
fn scope(token: &str, scene: &Scene, wrapped: bool) -> String {
    format!("{token}/{}-{}", scene.number, name(wrapped))
}

/// What to type to get this program again: as it was called, unless that is too long to show.
fn called_as() -> String {
    env::args().next().filter(|name| name.len() <= 24).unwrap_or_else(|| "lariat".to_owned())
}

/// Waits for a while.
fn pause(time: Duration) {
    poll_for(&mut [], time);
}

/// Waits until a descriptor has something or the time is over.
fn poll_for(fds: &mut [PollFd<'_>], time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else {
            return;
        };
        // Interrupted, it goes on with the rest of the time; no other error can end by waiting.
        if poll(fds, Some(&left)) != Err(rustix::io::Errno::INTR) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_seen_the_leak_is_told_how_to_look_at_their_own_hosts() {
        let [first, second, third] = next_steps("lariat");
        assert!(first.starts_with("Next:  lariat install --dry-run "), "{first}");
        let column = |line: &str, word: &str| line.find(word);
        assert_eq!(column(&first, "what"), column(&second, "ties"));
        assert_eq!(column(&first, "what"), column(&third, "what"));
    }
}
