//! `lariat open`: a link to the page.

use crate::summon::{self, Whereabouts};
use crate::{env, show};
use lariat::daemon::api::Link;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Prints a link to the page: every session live, with its processes and what they cost.
///
/// The link works once and for a minute. It lets one browser in, until that is closed. A daemon is
/// started if none runs; it ends a minute after the last page is closed, unless it holds sessions. The
/// page is at 127.0.0.1:7457, or at a free port if somebody else is there, and on no other machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat open
  lariat open --browser
  curl -H \"Authorization: Bearer $(cat \"$(lariat open --token)\")\" \"$(lariat open --metrics)\"")]
pub(crate) struct Args {
    /// Open it in the browser as well
    #[arg(long)]
    browser: bool,
    /// Print where the token is instead, for programs that send it as a bearer token
    #[arg(long, conflicts_with = "browser")]
    token: bool,
    /// Print where the metrics are instead: whoever else may listen at the usual port is not to be
    /// sent the token
    #[arg(long, conflicts_with_all = ["browser", "token"])]
    metrics: bool,
    /// Print it as JSON
    #[arg(long, conflicts_with_all = ["token", "metrics"])]
    json: bool,
    #[command(flatten)]
    place: Whereabouts,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.place.state_dir.as_ref()
    }
}

/// Asks a daemon for a link and prints it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let stream = match args.place.summon() {
        Ok(stream) => stream,
        Err(code) => return code,
    };
    let link = match summon::speak(stream, async |mut client| client.link().await) {
        Ok(link) => link,
        Err(error) => return summon::explain("cannot open the page", &error),
    };
    if args.token {
        return token(&link);
    }
    if args.metrics {
        return metrics(&link);
    }
    let code = printed(&if args.json { json(&link) } else { text(&link) });
    if args.browser { browse(&link) } else { code }
}

/// Where the token is; a path that leads nowhere would make a program send nothing in its place.
fn token(link: &Link) -> ExitCode {
    let Some(path) = &link.token_file else {
        let what = "this daemon lets everybody in, and has no token";
        show::failure(what, None, "start it without --no-token to have one");
        return ExitCode::FAILURE;
    };
    if let Err(error) = std::fs::metadata(path) {
        let what = format!("the daemon's token is not in {path} any more");
        let advice = "write it there again, or end the daemon: the next one makes a new token";
        show::failure(&show::plain(&what), Some(&error), advice);
        return ExitCode::FAILURE;
    }
    printed(&format!("{path}\n"))
}

fn metrics(link: &Link) -> ExitCode {
    if link.metrics.is_empty() {
        let what = "this daemon is older, and does not say where its metrics are";
        show::failure(what, None, "end it, and ask again");
        return ExitCode::FAILURE;
    }
    printed(&format!("{}\n", link.metrics))
}

fn printed(text: &str) -> ExitCode {
    ExitCode::from(u8::from(!show::out(text)))
}

fn json(link: &Link) -> String {
    let mut text = serde_json::to_string_pretty(link).unwrap_or_default();
    text.push('\n');
    text
}

/// For a person with what they should know; for a program the link alone.
fn text(link: &Link) -> String {
    let Link { url, expires_s, .. } = link;
    if std::io::stdout().is_terminal() {
        format!("{url}\n  works once, in the next {expires_s} seconds\n")
    } else {
        format!("{url}\n")
    }
}

/// The desktop knows which browser.
fn browse(link: &Link) -> ExitCode {
    let (program, words) = env::OPENER;
    let mut command = Command::new(program);
    command
        .args(words)
        .arg(&link.url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => {
            let what = format!("{program} found no browser");
            show::failure(&what, None, "follow the link above by hand");
            ExitCode::FAILURE
        }
        Err(error) => {
            let what = format!("cannot run {program}");
            show::failure(&what, Some(&error), "follow the link above by hand");
            ExitCode::FAILURE
        }
    }
}
