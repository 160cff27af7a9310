//! `lariat ps` on Windows and macOS: the sessions that live.

use super::told::{no_home, state_dir};
use super::{BACKEND, BOOKS};
use crate::show;
use lariat::books::{Books, Page, member};
use lariat::contain::process::name;
use serde_json::json;
use std::path::PathBuf;
use std::time::SystemTime;

/// Shows the sessions that live: server, its process, its host, and since when.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object for each session
    #[arg(long)]
    json: bool,
    #[arg(long, value_name = "DIR", help = BOOKS)]
    state_dir: Option<PathBuf>,
}

/// Prints them. Sessions whose wrapper was ended are finished first.
pub(super) fn run(args: &Args) -> i32 {
    let Some(dir) = state_dir(args.state_dir.as_ref()) else { return no_home(1) };
    if !dir.exists() {
        return i32::from(!show::out(if args.json { "" } else { "no sessions\n" }));
    }
    let pages = Books::open(&dir).and_then(|books| books.sweep().and_then(|_| books.living()));
    let pages = match pages {
        Ok(pages) => pages,
        Err(e) => {
            show::failure(&format!("cannot read {}", dir.display()), Some(&e), "");
            return 1;
        }
    };
    let text = if args.json {
        pages.iter().map(|page| format!("{}\n", object(page))).collect()
    } else {
        table(&pages)
    };
    i32::from(!show::out(&text))
}

fn object(page: &Page) -> serde_json::Value {
    let process = |identity: Option<(i32, u64)>| {
        identity.map(|(pid, start)| json!({"pid": pid, "start": start}))
    };
    json!({
        "session": page.session,
        "server": page.server,
        "began": lariat::moment::rfc3339(page.began()),
        "backend": BACKEND,
        "wrapper": process(page.wrapper),
        "host": process(page.host),
        "leader": process(page.leader),
    })
}

fn table(pages: &[Page]) -> String {
    if pages.is_empty() {
        return "no sessions\n".into();
    }
    let mut text = format!("{:<16} {:<24} {:>8} {:>8}  HOST\n", "SESSION", "SERVER", "PID", "AGE");
    for page in pages {
        let pid = page.leader.map_or(0, |(pid, _)| pid);
        let age = SystemTime::now().duration_since(page.began()).unwrap_or_default().as_secs();
        let host = page.host.and_then(|host| {
            let (pid, host) = (host.0, member(host));
            name(host).map(|name| format!("{name} {pid}"))
        });
        let host = host.unwrap_or_else(|| "gone".into());
        let (session, server) = (page.session.as_str(), page.server.as_str());
        text.push_str(&format!("{session:<16} {server:<24} {pid:>8} {age:>7}s  {host}\n"));
    }
    text
}
