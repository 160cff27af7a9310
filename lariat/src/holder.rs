//! The holder: the process between a host that embeds the library and a server of its.
//!
//! It is what `lariat run` is to a host with a config file: it writes the session down, starts the
//! guardian and the server, keeps stderr flowing, answers for Docker, and accounts for the end. It
//! lives as long as the server does, and the server as long as the host holds its end of the socket.

use crate::books::Rate;
use crate::docker::podman;
use crate::relay::{self, Held};
use crate::start::Plan;
use crate::start::local::{self, VERB};
use crate::start::wire::{Brief, Control, Given, Word};
use contain::Member;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Becomes a holder if the command line says so, and then never returns. Call it first thing in
/// `main` of a program that has a [`Manager`](crate::session::Manager), before there is any thread:
///
/// ```no_run
/// // The first line of main, and then:
/// lariat::main_if_asked();
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// runtime.block_on(async { /* the host */ });
/// ```
///
/// Under `#[tokio::main]` threads are there before the first line of `main`; build the runtime by hand,
/// as above. A test has no `main` of its own: name an installed `lariat` in
/// [`Config::holder`](crate::session::Config::holder).
pub fn main_if_asked() {
    contain::main_if_asked();
    if std::env::args_os().nth(1).is_none_or(|verb| verb != VERB) {
        local::allow_this_program();
        return;
    }
    contain::close_leaked();
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { contain::leave(125) };
    if let Some((control, given, brief)) = Control::receive(UnixStream::from(socket)) {
        hold(control, given, brief);
    }
    contain::leave(0)
}

/// Holds one server for the owner at the other end.
fn hold(mut control: Control, given: Given, brief: Brief) {
    if let Some(umask) = brief.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
    }
    if let Some(cwd) = &brief.cwd
        && let Err(e) = std::env::set_current_dir(cwd)
    {
        let why = format!("its working directory {} cannot be entered: {e}", cwd.display());
        return control.say(&Word::Failed { why, code: 125 });
    }
    let (ladder, backend) = (brief.ladder(), brief.choice());
    let on_behalf = brief.on_behalf.map(|(pid, start)| Member { pid, start });
    let Brief { owner, within, server, program, args, docker, state_dir, sweep, .. } = brief;
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let podman = podman::podman_run(program.as_ref(), &args).filter(|_| docker.is_some());
    let held = Held {
        program: program.clone().into(),
        args,
        plan: Plan {
            server,
            within: Some(within),
            on_behalf,
            ladder,
            backend,
            docker,
            podman,
            receipt: None,
            state_dir,
            sweep,
            limits: contain::Limits::default(),
            // Whoever embeds the library counts for itself.
            max_starts: Rate::OFF,
        },
        given,
        owner,
    };
    if let Err(failure) = relay::hold(held, &mut control) {
        let (why, code) = (failure.in_words(&program), failure.exit_code());
        control.say(&Word::Failed { why, code });
    }
}
