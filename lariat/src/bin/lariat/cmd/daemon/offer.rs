//! What a daemon offers, by HTTP and at all, and how much of it.

use crate::show;
use lariat::daemon::{Limits, config};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

/// How much there may be of everything.
#[derive(clap::Args)]
pub(crate) struct Admits {
    /// How many sessions there may be
    #[arg(long, value_name = "N", default_value_t = Limits::default().sessions)]
    max_sessions: usize,
    /// How many servers all sessions may have
    #[arg(long, value_name = "N", default_value_t = Limits::default().servers)]
    max_servers: usize,
    /// How many servers one session may have
    #[arg(long, value_name = "N", default_value_t = Limits::default().servers_per_session)]
    max_servers_per_session: usize,
    /// How many processes one session may have when more servers are to be started in it
    #[arg(long, value_name = "N", default_value_t = Limits::default().processes_per_session)]
    max_processes_per_session: usize,
    /// How many processes all sessions may have
    #[arg(long, value_name = "N", default_value_t = Limits::default().processes)]
    max_processes: usize,
}

impl Admits {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            sessions: self.max_sessions,
            servers: self.max_servers,
            servers_per_session: self.max_servers_per_session,
            processes_per_session: self.max_processes_per_session,
            processes: self.max_processes,
        }
    }
}

/// Reads which servers can be reached by HTTP.
pub(crate) fn offer(path: &Path, warm: &[String]) -> Result<config::Config, ExitCode> {
    let shown = show::plain(&path.display().to_string());
    let text = fs::read_to_string(path).map_err(|error| {
        let advice = "name a file with [servers.NAME] and a command in it";
        show::failure(&format!("cannot read {shown}"), Some(&error), advice);
        ExitCode::FAILURE
    })?;
    let mut offer = config::Config::parse(&text).map_err(|wrong| {
        let what = format!("{shown}:{}: {}", wrong.line, show::plain(&wrong.what));
        show::failure(&what, None, "nothing was started");
        ExitCode::FAILURE
    })?;
    for name in warm {
        let Some(spec) = offer.servers.get_mut(name) else {
            let what = format!("{shown} has no server `{}` to keep warm", show::plain(name));
            let names: Vec<&str> = offer.servers.keys().map(String::as_str).collect();
            show::failure(&what, None, &format!("it has: {}", names.join(", ")));
            return Err(ExitCode::FAILURE);
        };
        spec.warm = true;
    }
    Ok(offer)
}

/// An address that only this machine can reach.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        "not an address and a port, as in 127.0.0.1:7457; [::1]:7457 is one too".to_owned()
    })?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    let ip = address.ip();
    Err(format!(
        "{ip} can be reached from other machines, and what is said there can be read on the way; \
         use 127.0.0.1 or [::1], and ssh -L to look from elsewhere; --https is for MCP clients there"
    ))
}
