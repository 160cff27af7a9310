//! Whoever dies while a server is asleep, falls asleep or is woken: nothing is left, and there is a
//! receipt.

use crate::eyes;
use crate::host::{Host, request};
use crate::kept::IDLE;
use crate::kit::{PATIENCE, PROMISE, Place, trial};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::json;
use std::process::Command;
use trials::{Process, until};

/// What the server is just doing.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Asleep,
    FallingAsleep,
    Waking,
}

/// Who dies, and how.
#[derive(Clone, Copy, Debug)]
enum Death {
    ClosedPipes,
    HostKilled,
    WrapperTerminated,
    WrapperKilled,
    GuardianKilled,
    BothKilled,
}

pub(crate) fn tests() -> Vec<Trial> {
    let moments = [
        ("asleep", Moment::Asleep),
        ("falling-asleep", Moment::FallingAsleep),
        ("waking", Moment::Waking),
    ];
    let deaths = [
        ("closed-pipes", Death::ClosedPipes),
        ("host-sigkill", Death::HostKilled),
        ("sigterm", Death::WrapperTerminated),
        ("sigkill", Death::WrapperKilled),
        ("guardian-sigkill", Death::GuardianKilled),
        ("both-sigkill", Death::BothKilled),
    ];
    let mut tests = Vec::new();
    for (when, moment) in moments {
        for (how, death) in deaths {
            tests.push(trial(format!("deaths::{when}::{how}"), move || play(moment, death)));
        }
    }
    tests
}

fn play(moment: Moment, death: Death) {
    let place = Place::new();
    let manner = match moment {
        Moment::Asleep => "plain",
        Moment::FallingAsleep => "deaf",
        Moment::Waking => "slow",
    };
    let words = place.wrapped(&["--idle", IDLE], &place.server(manner));
    let mut host = Host::start_below(&place, &words);
    host.shake_hands(&json!({}));
    let wrapper = host.wrapper();
    match moment {
        Moment::Asleep => host.await_sleep(),
        Moment::FallingAsleep => {
            let falls = || place.notes().iter().any(|note| note == "eof");
            assert!(until(PATIENCE, falls), "never put to sleep");
        }
        Moment::Waking => {
            host.await_sleep();
            host.say(&request(1, "tools/call", &json!({"name": "life"})));
            assert!(until(PATIENCE, || place.lives() == 2), "not woken");
        }
    }
    strike(host, wrapper, death, &place, moment);
}

/// Lets the death come, and looks.
fn strike(mut host: Host, wrapper: Process, death: Death, place: &Place, moment: Moment) {
    let others: Vec<Process> = host.crew().into_iter().filter(|one| *one != wrapper).collect();
    match death {
        Death::ClosedPipes => {
            // Those of the process between are the wrapper's; it goes with ours.
            let mut child = host.hang_up();
            assert!(until(PATIENCE, || child.try_wait().unwrap().is_some()), "it stays");
        }
        Death::HostKilled => {
            host.child.kill().unwrap();
            host.child.wait().unwrap();
        }
        Death::WrapperTerminated => eyes::signal(wrapper, Signal::TERM),
        Death::WrapperKilled => eyes::signal(wrapper, Signal::KILL),
        Death::GuardianKilled => {
            others.iter().for_each(|one| eyes::signal(*one, Signal::KILL));
            // Asleep there need not be one. With or without, the session is as good as before or over.
            if matches!(moment, Moment::Asleep) {
                crate::kit::let_pass(crate::kit::RUNG);
                if wrapper.is_alive() {
                    assert_eq!(host.call(1, "life", &json!({})), "2");
                }
            }
            host.child.kill().unwrap();
            host.child.wait().unwrap();
        }
        Death::BothKilled => {
            // Stopped first, so that to them it is one instant.
            for signal in [Signal::STOP, Signal::KILL] {
                others.iter().chain([&wrapper]).for_each(|one| eyes::signal(*one, signal));
            }
            let dead = || !others.iter().chain([&wrapper]).any(|one| one.is_alive());
            assert!(until(PATIENCE, dead), "they survive a kill");
            host.child.kill().unwrap();
            host.child.wait().unwrap();
            sweep(place);
        }
    }
    place.assert_gone(PROMISE);
    // What no guardian has struck, the next command does.
    sweep(place);
    place.assert_accounted();
}

/// The next command, whichever it is.
fn sweep(place: &Place) {
    let words = place.wrapped(&[], &["true".into()]);
    let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
