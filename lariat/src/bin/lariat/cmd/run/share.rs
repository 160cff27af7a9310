//! `lariat run --share`: the host's streams go to the daemon, and this process stays for the host to
//! see.

use crate::summon::Whereabouts;
use crate::{env, show};
use lariat::books::Books;
use lariat::contain;
use lariat::daemon::joining::{Brief, Declined, Guest, Text};
use lariat::id::ServerName;
use lariat::spec::{Idle, Share};
use rustix::fs::Mode;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How often to knock. A daemon that nobody used may be leaving when it is found.
const KNOCKS: u32 = 3;

/// What `--share` can be told.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum How {
    /// A client that can do more than a shared server may use has one of its own.
    Strict,
    /// Such a client goes without.
    Reduced,
}

/// What is to be shared.
pub(super) struct Wish<'a> {
    pub(super) how: How,
    pub(super) server: &'a ServerName,
    pub(super) program: &'a OsStr,
    pub(super) args: &'a [OsString],
    pub(super) idle: Idle,
    pub(super) startup_timeout: Option<Duration>,
    pub(super) daemon: Whereabouts,
}

impl Wish<'_> {
    /// Joins, and stays until it is over. A sentence if the server has to run alone; nothing of the
    /// streams was read then.
    pub(super) fn join(self) -> Result<ExitCode, String> {
        contain::close_leaked();
        let brief = self.brief()?;
        let guest = self.knock(&brief)?;
        // Hours may pass, in which this process is to be small.
        drop((brief, self));
        let parted = guest.stay();
        if let Some(why) = parted.why {
            show::failure(&show::plain(&why), None, "");
        }
        Ok(ExitCode::from(parted.code))
    }

    fn knock(&self, brief: &Brief) -> Result<Guest, String> {
        let mut knocks = 0;
        loop {
            knocks += 1;
            let line = self.daemon.have().map_err(|absent| absent.to_string())?;
            match Guest::knock(line, brief) {
                Ok(guest) => return Ok(guest),
                Err(Declined::Gone(_)) if knocks < KNOCKS => {}
                Err(declined) => return Err(declined.to_string()),
            }
        }
    }

    fn brief(&self) -> Result<Brief, String> {
        let text = |word: &OsStr| {
            let text = word.to_str().map(str::to_owned);
            text.ok_or_else(|| "its command line is no text".to_owned())
        };
        let args = self.args.iter().map(|arg| text(arg)).collect::<Result<_, _>>()?;
        let here = std::env::current_dir().map_err(|e| format!("there is no directory: {e}"))?;
        // It can only be read by being set.
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        Ok(Brief {
            command: text(self.program)?,
            args,
            env: env::all()
                .iter()
                .map(|(name, value)| (Text::from(&**name), (&**value).into()))
                .collect(),
            cwd: here.as_os_str().into(),
            umask: umask.bits(),
            share: match self.how {
                How::Strict => Share::Strict,
                How::Reduced => Share::Reduced,
            },
            idle: self.idle,
            startup_timeout: self.startup_timeout,
            ..Brief::new(self.server.clone())
        })
    }
}

/// Says that the server runs alone, where a person and where a program looks.
pub(super) fn alone(server: &ServerName, state_dir: &Path, why: &str) {
    #[derive(Serialize)]
    struct Alone<'a> {
        server: &'a ServerName,
        why: &'a str,
    }
    show::note(&format!("{server} is not shared: {}", show::plain(why)), "it runs alone");
    // An unwritable event log is no reason not to serve.
    let _unlogged =
        Books::open(state_dir).and_then(|books| books.log("unshared", &Alone { server, why }));
}
