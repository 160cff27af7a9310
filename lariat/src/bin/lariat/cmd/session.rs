//! `lariat session`: what the daemon does, for scripts.

#[cfg(target_os = "linux")]
#[path = "session/owner.rs"]
mod owner;
#[cfg(windows)]
#[path = "../windows/owner.rs"]
mod owner;

use crate::summon::{Whereabouts, explain, speak};
use crate::{env, show};
use lariat::daemon::api::{self, Call, Closed, Open, Phase};
use lariat::daemon::client::Error;
use lariat::spec::{ServerSpec, Servers};
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sessions of servers for scripts.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    // Each says itself what it does: a line here would hide what it says beyond the first.
    Open(OpenArgs),
    Close(CloseArgs),
    List(ListArgs),
    Call(CallArgs),
}

impl Verb {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        let daemon = match self {
            Verb::Open(args) => &args.daemon,
            Verb::Close(args) => &args.daemon,
            Verb::List(args) => &args.daemon,
            Verb::Call(args) => &args.daemon,
        };
        daemon.state_dir.as_ref()
    }
}

/// Opens a session and prints its id.
///
/// Returns when every server is ready or has failed. The session ends with its owner: the process
/// given by --owner-pid, or else the script or program that runs this command. That is the nearest
/// ancestor that is not a subshell, so `S=$(lariat session open …)` lasts as long as the script. Who
/// is started by something short-lived (xargs, timeout, a line of a makefile) names the owner:
/// --owner-pid $$.
///
/// Servers get the PATH and the directory of this command unless told otherwise. Beside HOME and its
/// like, which the daemon has, they get the variables that --env or the file names and no others.
/// Starts the daemon if none runs. Exit code 1 if a server failed; the session is there all the same.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
#[command(after_help = "Examples:
  S=$(lariat session open --server time -- uvx mcp-server-time)
  S=$(lariat session open --config servers.json --name nightly)
  lariat session open --server gh --env GITHUB_TOKEN -- github-mcp-server stdio
  echo '{\"servers\": {\"time\": {\"command\": \"uvx\", \"args\": [\"mcp-server-time\"]}}}' |
    lariat session open --config -")]
pub(crate) struct OpenArgs {
    /// What to call the session in lists
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The process that the session ends with [default: who runs this command]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    owner_pid: Option<i32>,
    /// Print the session as JSON instead of its id
    #[arg(long)]
    json: bool,
    /// Servers from a JSON file with `servers` or `mcpServers`; - for standard input
    #[arg(long, value_name = "FILE", group = "what")]
    config: Option<PathBuf>,
    /// One server of this name, whose command follows
    #[arg(long, value_name = "NAME", group = "what", requires = "command")]
    server: Option<String>,
    /// A variable for the server, with its value here or as it is given (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]", requires = "server")]
    env: Vec<String>,
    #[command(flatten)]
    daemon: Whereabouts,
    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND", requires = "server")]
    command: Vec<OsString>,
}

/// Ends a session and everything in it.
///
/// Returns when everything is gone. Exit code 1 if something survived, or if there is no such
/// session.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat session close \"$S\"
  lariat session close --json \"$S\" | jq .survivors")]
pub(crate) struct CloseArgs {
    /// Print receipts and survivors as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Whereabouts,
    /// Which session
    #[arg(value_name = "ID")]
    id: String,
}

/// Lists sessions and their servers.
///
/// Those of the daemon. `lariat ps` lists every session, also those of `lariat run`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat session list
  lariat session list --json | jq -r '.sessions[].id'")]
pub(crate) struct ListArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Whereabouts,
}

/// Calls a tool and prints the result.
///
/// The result is printed as the server gave it, one JSON object. Exit code 1 if there is none, or if
/// the server says in it that it is an error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat session call \"$S\" time get_current_time '{\"timezone\": \"UTC\"}'")]
pub(crate) struct CallArgs {
    #[command(flatten)]
    daemon: Whereabouts,
    /// Which session
    #[arg(value_name = "ID")]
    id: String,
    /// Which of its servers
    #[arg(value_name = "SERVER")]
    server: String,
    /// Which of its tools
    #[arg(value_name = "TOOL")]
    tool: String,
    /// What to give it, a JSON object
    #[arg(value_name = "ARGUMENTS", default_value = "{}")]
    arguments: String,
}

/// Does what is asked.
pub(crate) fn run(verb: Verb) -> ExitCode {
    let done = match verb {
        Verb::Open(args) => open(args),
        Verb::Close(args) => close(args),
        Verb::List(args) => list(&args),
        Verb::Call(args) => call(args),
    };
    done.unwrap_or_else(|code| code)
}

fn open(args: OpenArgs) -> Result<ExitCode, ExitCode> {
    let mut open = match &args.config {
        Some(file) => from_file(file)?,
        None => Open { servers: from_line(&args)?, ..Open::default() },
    };
    open.name = args.name.or(open.name);
    open.owner_pid = match args.owner_pid.or(open.owner_pid) {
        Some(pid) => Some(pid),
        None => Some(owner::find().ok_or_else(|| {
            let what = "nobody is there whose end could end the session";
            show::failure(what, None, "name a process with --owner-pid PID");
            ExitCode::FAILURE
        })?),
    };
    at_home(&mut open.servers);
    let ask = || -> Result<Result<api::Session, Error>, ExitCode> {
        let stream = args.daemon.summon()?;
        show::progress("starting …");
        let opened = speak(stream, async |mut client| client.open(&open, false).await);
        show::progress("");
        Ok(opened)
    };
    let mut opened = ask()?;
    if matches!(opened, Err(Error::Broken(_))) {
        // It was just leaving, and has taken with it whatever was begun: another one is asked.
        opened = ask()?;
    }
    let session = opened.map_err(|error| explain("cannot open a session", &error))?;
    let mut code = ExitCode::SUCCESS;
    for (name, server) in session.servers.iter().filter(|(_, server)| server.state != "ready") {
        let why = server.error.as_deref().unwrap_or("it gave no reason");
        let what = format!("server {name} is {}: {why}", server.state);
        let advice = format!("`lariat session close {}` ends the session", session.id);
        show::failure(&show::plain(&what), None, &advice);
        code = ExitCode::FAILURE;
    }
    let text = if args.json { json(&session) } else { format!("{}\n", session.id) };
    Ok(if show::out(&text) { code } else { ExitCode::FAILURE })
}

/// Servers that a command starts are where the command is, and find what it would find.
fn at_home(servers: &mut Servers) {
    let path = env::path();
    for spec in servers.values_mut().filter(|spec| spec.image.is_none()) {
        let here = std::env::current_dir().ok();
        spec.cwd = spec.cwd.take().map(env::absolute).or(here);
        let Some(path) = path.as_ref().and_then(|path| path.to_str()) else { continue };
        if !spec.env.contains_key("PATH") {
            spec.env.insert("PATH".into(), path.into());
            let found = spec.command.as_deref().and_then(|command| env::find(command, path));
            spec.command = found.or(spec.command.take());
        }
    }
}

fn from_line(args: &OpenArgs) -> Result<Servers, ExitCode> {
    let text = |word: &OsStr| {
        word.to_str().map(str::to_owned).ok_or_else(|| {
            let what = format!("`{}` is not text", word.to_string_lossy());
            show::failure(&show::plain(&what), None, "commands go through JSON, which is UTF-8");
            ExitCode::FAILURE
        })
    };
    let words: Vec<String> = args.command.iter().map(|w| text(w)).collect::<Result<_, _>>()?;
    let (command, rest) = words.split_first().unwrap_or((const { &String::new() }, &[]));
    let mut spec = ServerSpec::new(command).args(rest.iter().cloned());
    for given in &args.env {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match env::named(given) {
                Some(value) => (given.as_str(), text(&value)?),
                None => {
                    let what = format!("there is no variable {given} to pass on");
                    show::failure(&show::plain(&what), None, "give a value: --env NAME=VALUE");
                    return Err(ExitCode::FAILURE);
                }
            },
        };
        spec = spec.env(name, value);
    }
    let name = args.server.clone().unwrap_or_default();
    Ok(Servers::from([(name, spec)]))
}

/// Reads a request from a file; hosts' files call the servers `mcpServers`.
fn from_file(file: &Path) -> Result<Open, ExitCode> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text))
    };
    let refuse = |error: &dyn std::error::Error, advice| {
        let what = format!("cannot use {}", file.display());
        show::failure(&show::plain(&what), Some(error), advice);
        ExitCode::FAILURE
    };
    read.map_err(|error| refuse(&error, "name a JSON file, or - for standard input"))?;
    parsed(&text)
        .map_err(|error| refuse(&error, "it takes {\"servers\": {NAME: {\"command\": …}}}"))
}

fn parsed(text: &str) -> Result<Open, serde_json::Error> {
    let mut value: Value = serde_json::from_str(text)?;
    if value.get("servers").is_none()
        && let Some(servers) = value.get_mut("mcpServers")
    {
        // A host's file has more in it, which is for the host.
        for server in servers.as_object_mut().into_iter().flat_map(|servers| servers.values_mut()) {
            let local = |kind: &Value| kind == "stdio" || kind == "local";
            if let Some(server) = server.as_object_mut()
                && server.get("type").is_some_and(local)
            {
                server.remove("type");
            }
        }
        return serde_json::from_value(serde_json::json!({ "servers": servers }));
    }
    // From the text again: then an error says the line, and a name that is there twice is seen.
    serde_json::from_str(text)
}

fn close(args: CloseArgs) -> Result<ExitCode, ExitCode> {
    let stream = args.daemon.find()?;
    show::progress("ending …");
    let closed = speak(stream, async |mut client| client.close(&args.id).await);
    show::progress("");
    let closed = closed.map_err(|error| no_session(&args.id, &error))?;
    let text = if args.json { json(&closed) } else { receipts(&closed) };
    for survivor in &closed.survivors {
        show::survivor(survivor);
    }
    let written = show::out(&text);
    Ok(ExitCode::from(u8::from(!written || !closed.survivors.is_empty())))
}

fn no_session(id: &str, error: &Error) -> ExitCode {
    let known = !matches!(error, Error::Refused(problem) if problem.kind.ends_with(":no-session"));
    let what = if known { format!("session {id}") } else { format!("no session {id}") };
    explain(&show::plain(&what), error)
}

/// What of the receipts a person wants to know.
fn receipts(closed: &Closed) -> String {
    let mut text = String::new();
    for receipt in &closed.receipts {
        let p = receipt.processes;
        text += &format!(
            "{}: {}, {} left by themselves, {} when asked, {} killed",
            receipt.server,
            show::count(p.seen, "process"),
            p.left,
            p.asked,
            p.killed
        );
        if receipt.containers.seen > 0 {
            let c = receipt.containers;
            text += &format!("; {} of {} removed", c.removed, show::count(c.seen, "container"));
        }
        text += match receipt.survivors.len() {
            0 => "; nothing is left\n",
            _ => "; SOMETHING SURVIVED\n",
        };
    }
    if closed.receipts.is_empty() {
        text += "closed; no server had run\n";
    }
    text
}

fn list(args: &ListArgs) -> Result<ExitCode, ExitCode> {
    let stream = args.daemon.find()?;
    let listed = speak(stream, async |mut client| client.list().await);
    let listed = listed.map_err(|error| explain("cannot list sessions", &error))?;
    let text = if args.json { json(&listed) } else { table(&listed.sessions) };
    Ok(ExitCode::from(u8::from(!show::out(&text))))
}

fn table(sessions: &[api::Session]) -> String {
    if sessions.is_empty() {
        return "no sessions\n".into();
    }
    let mut text = String::new();
    for session in sessions {
        let api::Owner { pid, command, lease } = &session.owner;
        let name = session.name.as_deref().map(|name| format!("  {name}")).unwrap_or_default();
        let by = match lease {
            api::Lease::Process => "",
            api::Lease::Connection => ", by its connection",
        };
        let ending = if session.state == Phase::Ending { "  ending" } else { "" };
        text += &format!("{}{name}  owner {pid} ({command}{by}){ending}\n", session.id);
        for (name, server) in &session.servers {
            let mut line = format!("  {name}  {}", server.state);
            line += &server.pid.map(|pid| format!("  pid {pid}")).unwrap_or_default();
            let tools = server
                .tools
                .as_ref()
                .map(|tools| format!("  {}", show::count(tools.len(), "tool")));
            line += &tools.unwrap_or_default();
            line += &server.error.as_ref().map(|why| format!("  {why}")).unwrap_or_default();
            text += &format!("{}\n", show::plain(&line));
        }
    }
    text
}

fn call(args: CallArgs) -> Result<ExitCode, ExitCode> {
    let arguments: Map<String, Value> = serde_json::from_str(&args.arguments).map_err(|error| {
        let what = "the arguments are no JSON object";
        show::failure(what, Some(&error), "for example: '{\"timezone\": \"UTC\"}'");
        ExitCode::FAILURE
    })?;
    let stream = args.daemon.find()?;
    let call = Call { tool: args.tool, arguments: Some(arguments) };
    let result = speak(stream, async |mut client| client.call(&args.id, &args.server, &call).await);
    let result = result.map_err(|error| match &error {
        Error::Refused(problem) if problem.kind.ends_with(":no-session") => {
            no_session(&args.id, &error)
        }
        _ => {
            explain(&show::plain(&format!("cannot call {} of {}", call.tool, args.server)), &error)
        }
    })?;
    let failed = serde_json::from_str::<Value>(result.get())
        .is_ok_and(|result| result["isError"].as_bool() == Some(true));
    let written = show::out(&format!("{}\n", result.get()));
    Ok(ExitCode::from(u8::from(failed || !written)))
}

fn json(value: &impl serde::Serialize) -> String {
    // Plain data of ours can always be written.
    format!("{}\n", serde_json::to_string(value).unwrap_or_default())
}
