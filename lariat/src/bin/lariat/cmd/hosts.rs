//! `lariat hosts`: which hosts are here, and which of their servers are wrapped.

use super::install;
use crate::hosts::edit::Wish;
use crate::hosts::plan::{Act, BY_HAND, Fate, Outcome, Want};
use crate::hosts::survey::{self, Work};
use crate::hosts::table::{HOSTS, Host, Scope};
use crate::hosts::{Surroundings, shown};
use crate::shelf::no_home;
use crate::{env, show};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lists the hosts that are here, their configs, and how many of their servers are wrapped.
///
/// Looks where each known host keeps its config, and in the current directory for those that a
/// project shares. Says for every server that `install` would leave alone why that is so. Changes
/// nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat hosts
  lariat hosts codex
  lariat hosts --json | jq '.[] | select(.error)'")]
pub(crate) struct Args {
    /// Only these hosts
    #[arg(value_name = "HOST", value_parser = install::host)]
    hosts: Vec<&'static Host>,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    /// The project to look into [default: the current directory]
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

/// Looks and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let project = env::absolute(args.project.clone().unwrap_or_else(|| PathBuf::from(".")));
    let Some(around) = env::hosts(Some(project)) else { return no_home() };
    let hosts: Vec<_> = match args.hosts.as_slice() {
        [] => HOSTS.iter().collect(),
        some => some.to_vec(),
    };
    // Any path will do: whether one is wrapped does not depend on by which.
    let want = Want::Installed(Wish { lariat: "lariat".into(), ..Wish::default() });
    let works = survey::survey(&around, &hosts, &want);
    let text = if args.json { json(&works) } else { table(&works, &hosts, &around) };
    ExitCode::from(u8::from(!show::out(&text)))
}

/// What a server is, whatever could be done about it.
fn state(fate: &Fate) -> (&'static str, Option<&str>) {
    match &fate.outcome {
        Outcome::Changed { act: Act::Wrap, .. } | Outcome::Same(false) => ("bare", None),
        Outcome::Changed { act: Act::Renew | Act::Unwrap, .. } | Outcome::Same(true) => {
            ("wrapped", None)
        }
        Outcome::Skipped(why) if why == BY_HAND => ("by-hand", Some(why)),
        Outcome::Skipped(why) => ("skipped", Some(why)),
    }
}

fn json(works: &[Work]) -> String {
    let server = |fate: &Fate| {
        let (state, reason) = state(fate);
        json!({ "server": fate.server, "project": fate.within, "line": fate.line, "state": state, "reason": reason })
    };
    let file = |work: &Work| {
        let error = work.plan.as_ref().err().map(shown::problem);
        let plan = work.plan.as_ref().ok().map(|(_, plan)| plan);
        json!({
            "host": work.found.host.id,
            "name": work.found.host.name,
            "programs": work.found.host.programs,
            "scope": shown::scope(work.found.scope()),
            "file": work.found.path,
            "error": error.map(|why| why.trim_start_matches([':', ' ']).to_owned()),
            "servers": plan.into_iter().flat_map(|plan| &plan.servers).map(server).collect::<Vec<_>>(),
        })
    };
    let files: Vec<Value> = works.iter().map(file).collect();
    format!("{}\n", serde_json::to_string_pretty(&files).unwrap_or_default())
}

const HEADER: [&str; 5] = ["HOST", "SCOPE", "SERVERS", "WRAPPED", "FILE"];

fn table(works: &[Work], hosts: &[&'static Host], around: &Surroundings) -> String {
    let mut rows = vec![HEADER.map(String::from)];
    rows.extend(works.iter().map(|work| row(work, &around.home)));
    let widths: [usize; 4] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    if works.is_empty() {
        text += "no configs of known hosts are here\n";
    } else {
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
            text += &format!("{}{}\n", cells.collect::<String>(), row[4]);
        }
    }
    text += &notes(works, &around.home);
    let absent =
        hosts.iter().filter(|host| !works.iter().any(|work| work.found.host.id == host.id));
    let absent: Vec<&str> = absent.map(|host| host.id).collect();
    if !absent.is_empty() {
        text += &format!("\nnot found: {}\n", absent.join(", "));
    }
    text
}

fn row(work: &Work, home: &Path) -> [String; 5] {
    let [servers, wrapped] = match &work.plan {
        Err(_) => ["?".into(), "?".into()],
        Ok((_, plan)) => {
            let wrapped = plan.servers.iter().filter(|fate| fate.is_wrapped()).count();
            [plan.servers.len().to_string(), wrapped.to_string()]
        }
    };
    let scope = shown::scope(work.found.scope()).into();
    [work.found.host.id.into(), scope, servers, wrapped, shown::path(&work.found.path, home)]
}

/// What is left alone, and why.
fn notes(works: &[Work], home: &Path) -> String {
    let mut text = String::new();
    for work in works {
        let file = shown::path(&work.found.path, home);
        match &work.plan {
            Err(problem) => text += &format!("{file}{}\n", shown::problem(problem)),
            Ok((_, plan)) => {
                for fate in &plan.servers {
                    if let Outcome::Skipped(why) = &fate.outcome {
                        let name = shown::name(fate);
                        text += &format!("{file}: {name} is left alone: {}\n", show::plain(why));
                    }
                }
                if work.found.scope() == Scope::Project && work.changes() > 0 {
                    text += &format!(
                        "{file}: is shared by a project; `lariat install --project` wraps it\n"
                    );
                }
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}
