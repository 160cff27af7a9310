//! `lariat install`: in front of every server that the hosts start. `uninstall` shares the way there.

use crate::hosts::edit::Wish;
use crate::hosts::plan::{Act, Outcome, Want};
use crate::hosts::survey::{self, Problem, Work};
use crate::hosts::table::{HOSTS, Host};
use crate::hosts::{Surroundings, shown};
use crate::shelf::no_home;
use crate::{env, show};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Wraps every server in the hosts' own configs, so that they start through `lariat run`.
///
/// Finds the configs of Codex, Claude Code, Cursor, VS Code and others (`lariat hosts` lists them),
/// shows what would change, and asks. Only a server's command and arguments change; every other byte
/// of the file stays. Servers that are remote, a part of the host, or wrapped already are left alone.
/// `lariat uninstall` gives back the same bytes. Files that a project shares through its repository are
/// touched only with --project. A host that is running sees the change when it next reads its config.
///
/// Exit code 0 if nothing is left to do, 1 if a file could not be read or written, 2 if nobody said yes or a
/// server that was named is in no config.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat install --dry-run
  lariat install
  lariat install codex cursor --idle 10m --yes
  lariat install --share time,search
  lariat install --project")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// When a silent server is ended until it is needed again: auto, off, or after a time [default: auto;
    /// for those that are wrapped already, as it is]
    #[arg(long, value_name = "WHEN", value_parser = idle)]
    idle: Option<String>,
    /// Let all hosts and sessions that start this server use one process of it (`lariat run --share`),
    /// by the name that the configs have for it; for servers that keep nothing between calls
    #[arg(long, value_name = "SERVER", value_delimiter = ',')]
    share: Vec<String>,
    /// Give each its own process of this server again
    #[arg(long, value_name = "SERVER", value_delimiter = ',')]
    unshare: Vec<String>,
}

/// What both directions are told.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// Only these hosts [default: all that are here]
    #[arg(value_name = "HOST", value_parser = host)]
    hosts: Vec<&'static Host>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
    /// Also the files that a project shares with everybody who works on it
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    project: Option<PathBuf>,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    /// Where the backups go [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.common.state_dir()
    }
}

impl Common {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.state_dir.as_ref()
    }
}

fn idle(text: &str) -> Result<String, String> {
    super::run::idle(text).map(|_| text.to_owned())
}

/// A host by the word for it.
pub(crate) fn host(id: &str) -> Result<&'static Host, String> {
    HOSTS.iter().find(|host| host.id == id).ok_or_else(|| {
        let ids: Vec<&str> = HOSTS.iter().map(|host| host.id).collect();
        format!("known are {}", ids.join(", "))
    })
}

/// Looks, shows, asks, writes.
pub(crate) fn run(args: &Args) -> ExitCode {
    let lariat = match env::lariat() {
        Ok(path) => path,
        Err(error) => {
            let advice = "start it from where it is installed; nothing was changed";
            show::failure("cannot find this program's own file", Some(&error), advice);
            return ExitCode::FAILURE;
        }
    };
    let Some(lariat) = lariat.to_str().map(str::to_owned) else {
        let what = format!("the path {} is not UTF-8", lariat.display());
        show::failure(&show::plain(&what), None, "install lariat elsewhere; nothing was changed");
        return ExitCode::FAILURE;
    };
    if let Some(why) = passing(&lariat) {
        let advice = "put it where it stays, and run install again from there";
        show::note(&format!("{} {why}", show::plain(&lariat)), advice);
    }
    let (share, unshare) = (args.share.clone(), args.unshare.clone());
    if let Some(both) = share.iter().find(|name| unshare.contains(name)) {
        let what = format!("{} is to be shared, and not to be shared", show::plain(both));
        show::failure(&what, None, "name it once; nothing was changed");
        return ExitCode::from(2);
    }
    change(&args.common, &Want::Installed(Wish { lariat, idle: args.idle.clone(), share, unshare }))
}

/// Why a program may soon not be there any more.
fn passing(path: &str) -> Option<&'static str> {
    if path.contains("/target/debug/") || path.contains("/target/release/") {
        Some("is in a build directory")
    } else if path.contains("/_npx/") {
        Some("is in a cache of npx")
    } else {
        path.starts_with("/tmp/").then_some("is in a temporary directory")
    }
}

/// Either direction.
pub(crate) fn change(common: &Common, want: &Want) -> ExitCode {
    let project = common.project.clone().map(env::absolute);
    if let Some(project) = project.as_ref().filter(|project| !project.is_dir()) {
        let what = format!("{} is not a directory", project.display());
        show::failure(&show::plain(&what), None, "name the project with --project=DIR");
        return ExitCode::from(2);
    }
    let (Some(around), Some(state)) =
        (env::hosts(project), env::state_dir(common.state_dir.clone()))
    else {
        return no_home();
    };
    let hosts: Vec<_> = match common.hosts.as_slice() {
        [] => HOSTS.iter().collect(),
        some => some.to_vec(),
    };
    for name in env::passed_over() {
        let advice = "hosts may see it otherwise; set it to an absolute path to have that one done";
        show::failure(&format!("note: {name} is relative, and is ignored"), None, advice);
    }
    outlive_full_files();
    let works = survey::survey(&around, &hosts, want);
    let changes: usize = works.iter().map(Work::changes).sum();
    if let Some(code) = unknown(want, &works) {
        return code;
    }
    if !common.json {
        let colour = show::colours();
        for work in &works {
            show::out(&shown::diff(work, &around.home, colour));
        }
    }
    complain(&works, &around);
    let go = match (changes, common.dry_run, common.yes) {
        (0, ..) | (_, true, _) => Ok(false),
        (_, false, true) => Ok(true),
        (_, false, false) => ask(&works, changes, want),
    };
    let go = match go {
        Ok(go) => go,
        Err(code) => return code,
    };
    let mut done = Vec::new();
    for work in &works {
        let backups = state.join("backups");
        done.push(match go {
            true => work.write(&backups),
            // What is promised is what would be done.
            false => work.check(&backups).map(|()| None),
        });
    }
    let mut failed = works.iter().any(|work| work.plan.is_err());
    for (work, outcome) in works.iter().zip(&done) {
        if let Err(trouble) = outcome {
            failed = true;
            let verb = if common.dry_run { "would not be" } else { "was not" };
            let file = shown::path(&work.found.path, &around.home);
            let what = format!("{file} {verb} changed");
            show::failure(&what, Some(trouble), "look at it, and run this again");
        }
    }
    let told = match common.json {
        true => show::out(&report(&works, &done, common.dry_run)),
        false => show::out(&summary(common, want, &works, &done, &around, &state)),
    };
    if !told {
        failed = true;
        let written = done.iter().filter(|done| matches!(done, Ok(Some(_)))).count();
        let advice = format!("{} changed all the same", show::count(written, "file"));
        show::failure("cannot write to stdout", None, &advice);
    }
    ExitCode::from(u8::from(failed))
}

/// Says which of the servers that were named are in no config.
fn unknown(want: &Want, works: &[Work]) -> Option<ExitCode> {
    let Want::Installed(wish) = want else { return None };
    let plans = works.iter().filter_map(|work| work.plan.as_ref().ok());
    let known: Vec<&str> =
        plans.flat_map(|(_, plan)| &plan.servers).map(|fate| fate.server.as_str()).collect();
    let is_unknown = |name: &&String| !known.contains(&name.as_str());
    let name = wish.share.iter().chain(&wish.unshare).find(is_unknown)?;
    let what = format!("no server is called {}", show::plain(name));
    show::failure(&what, None, "`lariat hosts` shows the names; nothing was changed");
    Some(ExitCode::from(2))
}

/// Has a write beyond the limit for files fail, instead of ending us in the middle.
fn outlive_full_files() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
        // As before then: the file is whole, and a draft may stay until the next time.
        return;
    };
    let _within = runtime.enter();
    // Once heard, it is never again deadly in this process.
    let _heard = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()));
}

/// Says which files cannot be read, and where.
fn complain(works: &[Work], around: &Surroundings) {
    for work in works {
        let Err(problem) = &work.plan else { continue };
        let file = shown::path(&work.found.path, &around.home);
        let advice = match problem {
            Problem::Broken(_) => "it is left alone; correct that line, and run this again",
            Problem::Unreadable(_) => "it is left alone",
        };
        show::failure(&format!("{file}{}", shown::problem(problem)), None, advice);
    }
}

fn ask(works: &[Work], changes: usize, want: &Want) -> Result<bool, ExitCode> {
    let files = works.iter().filter(|work| work.changes() > 0).count();
    let verb = match want {
        Want::Installed(_) => "Wrap",
        Want::Uninstalled => "Unwrap",
    };
    match show::ask(&format!(
        "{verb} {} in {}?",
        show::count(changes, "server"),
        show::count(files, "file")
    )) {
        Some(true) => Ok(true),
        Some(false) => {
            show::failure("nothing was changed", None, "");
            Err(ExitCode::from(2))
        }
        None => {
            let advice = "say --yes to do it, or --dry-run to only look; nothing was changed";
            show::failure("there is no terminal to ask on", None, advice);
            Err(ExitCode::from(2))
        }
    }
}

type Done = Result<Option<PathBuf>, crate::hosts::file::Trouble>;

fn summary(
    common: &Common,
    want: &Want,
    works: &[Work],
    done: &[Done],
    around: &Surroundings,
    state: &Path,
) -> String {
    let [word, other] = match want {
        Want::Installed(_) => ["wrapped", "to wrap"],
        Want::Uninstalled => ["unwrapped", "to unwrap"],
    };
    let changes: usize = works.iter().map(Work::changes).sum();
    if works.is_empty() {
        let home = show::plain(&around.home.display().to_string());
        return format!(
            "no configs of known hosts are here, in {home}; `lariat hosts` lists those that are known\n"
        );
    }
    if changes == 0 {
        let servers = works.iter().filter_map(|work| work.plan.as_ref().ok());
        let wrapped = servers.flat_map(|(_, plan)| &plan.servers);
        let wrapped = wrapped.filter(|fate| matches!(fate.outcome, Outcome::Same(true))).count();
        let already =
            if wrapped > 0 { format!("; wrapped already: {wrapped}") } else { String::new() };
        return format!("nothing {other}{already}\n");
    }
    if common.dry_run {
        let able = works.iter().zip(done).filter(|(_, done)| done.is_ok());
        let changes: usize = able.map(|(work, _)| work.changes()).sum();
        return format!("{} {other}; nothing was changed\n", show::count(changes, "server"));
    }
    let written = works.iter().zip(done).filter(|(_, done)| matches!(done, Ok(Some(_))));
    let (files, servers) =
        written.fold((0, 0), |(files, servers), (work, _)| (files + 1, servers + work.changes()));
    if files == 0 {
        return "nothing was changed\n".into();
    }
    let backups = shown::path(&state.join("backups"), &around.home);
    format!(
        "{word} {} in {}; backups are in {backups}\nhosts that are running see it when they start their servers again\n",
        show::count(servers, "server"),
        show::count(files, "file"),
    )
}

/// What was done, for scripts. No arguments: they may be secrets.
fn report(works: &[Work], done: &[Done], dry_run: bool) -> String {
    let file = |(work, done): (&Work, &Done)| {
        let error = match (&work.plan, done) {
            (Err(problem), _) => {
                Some(shown::problem(problem).trim_start_matches([':', ' ']).to_owned())
            }
            (Ok(_), Err(trouble)) => Some(trouble.to_string()),
            (Ok(_), Ok(_)) => None,
        };
        let plan = work.plan.as_ref().ok().map(|(_, plan)| plan);
        let servers = plan.into_iter().flat_map(|plan| &plan.servers);
        json!({
            "host": work.found.host.id,
            "scope": shown::scope(work.found.scope()),
            "file": work.found.path,
            "error": error,
            "written": matches!(done, Ok(Some(_))),
            "backup": done.as_ref().ok().cloned().flatten(),
            "servers": servers.map(server).collect::<Vec<_>>(),
        })
    };
    let files: Vec<Value> = works.iter().zip(done).map(file).collect();
    let report = json!({ "dry_run": dry_run, "files": files });
    format!("{}\n", serde_json::to_string_pretty(&report).unwrap_or_default())
}

/// One server for scripts.
pub(crate) fn server(fate: &crate::hosts::plan::Fate) -> Value {
    let (action, wrapped, reason) = match &fate.outcome {
        Outcome::Changed { act, .. } => (act.word(), *act != Act::Wrap, None),
        Outcome::Same(wrapped) => ("none", *wrapped, None),
        Outcome::Skipped(why) => ("skip", false, Some(why)),
    };
    json!({
        "server": fate.server,
        "project": fate.within,
        "line": fate.line,
        "action": action,
        "wrapped_before": wrapped,
        "reason": reason,
    })
}
