//! A small agent host: servers from a file, calls, a refresh, a probe, and an end that leaves nothing.
//!
//! ```console
//! $ cargo run --example host -- servers.json
//! ```
//!
//! The file is `{"NAME": {"command": "npx", "args": ["-y", "…"]}}`. Commands come on stdin, one a line:
//! `tools`, `ps`, `call SERVER TOOL [JSON]`, `refresh FILE`, `probe FILE`, `quit`. End of input and
//! Ctrl-C quit too. Kill it and look at `ps`: the servers go all the same.
#![expect(clippy::print_stdout, reason = "this is a program, and what it says is for a person")]

use lariat::session::{Config, Manager, State};
use lariat::spec::Servers;
use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::pin::pin;
use tokio::sync::mpsc;

fn main() -> Result<(), Box<dyn Error>> {
    // First thing in main: this program is also what holds its servers' processes.
    lariat::main_if_asked();
    let file = std::env::args_os().nth(1).map(PathBuf::from);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime
        .block_on(host(file.as_deref().ok_or("which servers? cargo run --example host -- FILE")?))
}

async fn host(file: &Path) -> Result<(), Box<dyn Error>> {
    let manager = Manager::start(config(file)?).await?;
    print_states(manager.session().states());
    let mut lines = typed();
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            _now = &mut interrupted => None,
        };
        let Some(line) = line.filter(|line| line.trim() != "quit") else { break };
        tokio::select! {
            // One command that fails is no reason to end.
            done = obey(&manager, line.trim()) => done.unwrap_or_else(|e| println!("{e}")),
            // A call that is dropped is cancelled.
            _now = &mut interrupted => break,
        }
    }
    // Calls that are still in flight fail; nothing waits for them.
    match manager.close().await {
        Ok(ended) => println!("{} servers ended, survivors=[]", ended.receipts.len()),
        Err(survivors) => println!("{survivors}"),
    }
    Ok(())
}

async fn obey(manager: &Manager, line: &str) -> Result<(), Box<dyn Error>> {
    let session = manager.session();
    let mut words = line.splitn(4, ' ');
    match (words.next().unwrap_or_default(), words.next(), words.next(), words.next()) {
        ("", ..) => {}
        ("tools", ..) => {
            for (server, tools) in session.tools() {
                match tools {
                    Ok(tools) => {
                        for tool in tools {
                            let tool: Value = serde_json::from_str(tool.get())?;
                            println!("{server} {}", tool["name"].as_str().unwrap_or("?"));
                        }
                    }
                    Err(e) => println!("{e}"),
                }
            }
        }
        ("ps", ..) => {
            for server in session.snapshot().await {
                let pids: Vec<i32> = server.processes.iter().map(|process| process.pid).collect();
                println!("{} {} {pids:?}", server.name, server.state);
            }
        }
        ("call", Some(server), Some(tool), arguments) => {
            let arguments = serde_json::from_str(arguments.unwrap_or("{}"))?;
            println!("{}", session.call(server, tool, arguments).await?);
        }
        ("refresh", Some(file), ..) => {
            // Unchanged servers keep their process; when this returns, replaced ones are gone.
            let change = manager.refresh(config(Path::new(file))?.servers).await?;
            println!("started {:?}, replaced {:?}", change.started, change.replaced);
            println!("removed {:?}, kept {:?}", change.removed, change.kept);
            print_states(session.states());
        }
        ("probe", Some(file), ..) => {
            let probed = Manager::probe(config(Path::new(file))?).await?;
            print_states(probed.states);
            println!("{} servers ended", probed.ended.receipts.len());
        }
        _ => println!("tools | ps | call SERVER TOOL [JSON] | refresh FILE | probe FILE | quit"),
    }
    Ok(())
}

fn config(file: &Path) -> Result<Config, Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let servers: Servers = serde_json::from_str(&text)?;
    let home = std::env::home_dir().ok_or("no home directory")?;
    Ok(Config::new(home.join(".local/state/lariat"), servers))
}

/// What a person types, line by line. By a thread that nobody waits for: a read from a terminal
/// cannot be called off.
fn typed() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn print_states(states: impl IntoIterator<Item = (String, State)>) {
    for (name, state) in states {
        match state {
            State::Ready(ready) => {
                let (tools, backend) = (ready.tools.len(), &ready.backend);
                println!("{name} ready, {tools} tools, pid {}, held by {backend}", ready.pid);
            }
            State::Failed { why } => println!("{name} failed: {why}"),
            other => println!("{name} {}", other.word()),
        }
    }
}
