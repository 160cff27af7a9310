//! Real hosts with configs that `lariat install` changed: they still list their servers, and connect
//! to them; afterwards `uninstall` gives back what was there, and nobody is left.
//!
//! Each host writes its config itself where it has a command for that. None is logged in anywhere.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;

use super::witness::{gone, sweep, token, wait_until};
use super::{LARIAT, PATIENCE, PROMISE, Room, fact, search_path};

#[derive(Clone, Copy, Debug)]
enum Host {
    Codex,
    Opencode,
    Gemini,
    Claude,
}

pub(crate) fn trials(home: &Result<PathBuf, String>) -> Vec<Trial> {
    let trial = |host: Host| {
        let name = format!("installed::{}", host.program());
        let missing = match home {
            Err(reason) => Some(reason.clone()),
            Ok(home) => {
                let needed = [host.path(home), server(home)];
                let missing = needed.into_iter().find(|file| !file.exists());
                missing.map(|file| format!("no {}", file.display()))
            }
        };
        if let Some(reason) = &missing {
            eprintln!("skipped clients::{name}: {reason}");
        }
        let home = home.clone().unwrap_or_default();
        Trial::test(name, move || fact(host.there_and_back(&home)))
            .with_ignored_flag(missing.is_some())
    };
    [Host::Codex, Host::Opencode, Host::Gemini, Host::Claude].into_iter().map(trial).collect()
}

fn server(home: &Path) -> PathBuf {
    home.join("node/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

impl Host {
    fn program(self) -> &'static str {
        match self {
            Host::Codex => "codex",
            Host::Opencode => "opencode",
            Host::Gemini => "gemini",
            Host::Claude => "claude",
        }
    }

    fn path(self, home: &Path) -> PathBuf {
        home.join("hosts/node_modules/.bin").join(self.program())
    }

    /// Its config, from the home directory.
    fn config(self) -> &'static str {
        match self {
            Host::Codex => ".codex/config.toml",
            Host::Opencode => ".config/opencode/opencode.json",
            Host::Gemini => ".gemini/settings.json",
            Host::Claude => ".claude.json",
        }
    }

    fn there_and_back(self, home: &Path) -> Result<(), Box<dyn Error>> {
        let token = token();
        let room = Room::new(&token)?;
        let stage = Stage { host: self, home, room: &room.0 };
        let outcome = stage.play();
        let left = gone(&token, PROMISE);
        sweep(&token);
        outcome?;
        if left.is_empty() { Ok(()) } else { Err(format!("left: {left:#?}").into()) }
    }
}

struct Stage<'a> {
    host: Host,
    home: &'a Path,
    /// The user's home directory; its name is the token, and everybody inherits `HOME`.
    room: &'a Path,
}

impl Stage<'_> {
    fn play(&self) -> Result<(), Box<dyn Error>> {
        self.configure()?;
        let config = self.room.join(self.host.config());
        let before = fs::read_to_string(&config)?;
        self.said(Command::new(LARIAT).args(["install", "--yes"]))?;
        let installed = fs::read_to_string(&config)?;
        if !installed.contains("--installed") {
            return Err(format!("nothing was wrapped in {before}").into());
        }
        self.said(Command::new(LARIAT).args(["install", "--yes"]))?;
        if fs::read_to_string(&config)? != installed {
            return Err("installed twice is not installed once".into());
        }
        self.lists_it_as_connected()?;
        let listed = fs::read_to_string(&config)?;
        self.said(Command::new(LARIAT).args(["uninstall", "--yes"]))?;
        let after = fs::read_to_string(&config)?;
        let same = if listed == installed {
            after == before
        } else {
            // It wrote its file anew meanwhile.
            let servers = |text: &str| -> Result<Value, serde_json::Error> {
                Ok(serde_json::from_str::<Value>(text)?["mcpServers"].take())
            };
            servers(&after)? == servers(&before)?
        };
        if same { Ok(()) } else { Err(format!("before:\n{before}\nafter:\n{after}").into()) }
    }

    /// Adds the server as a user of this host would.
    fn configure(&self) -> Result<(), Box<dyn Error>> {
        let server = server(self.home);
        let mut add = self.command();
        if matches!(self.host, Host::Gemini) {
            // In a folder that nobody trusts it starts nothing.
            fs::create_dir(self.room.join(".gemini"))?;
            let trusting = r#"{ "security": { "folderTrust": { "enabled": false } } }"#;
            fs::write(self.room.join(self.host.config()), trusting)?;
        }
        match self.host {
            Host::Codex => {
                add.args(["mcp", "add", "everything", "--env", "MODE=x", "--", "node"]).arg(&server)
            }
            Host::Gemini => {
                add.args(["mcp", "add", "-s", "user", "everything", "node"]).arg(&server)
            }
            Host::Claude => {
                add.args(["mcp", "add", "-s", "user", "everything", "--", "node"]).arg(&server)
            }
            // It would ask. Without a schema it would write its file anew.
            Host::Opencode => {
                let config = self.room.join(self.host.config());
                fs::create_dir_all(config.parent().ok_or("a directory")?)?;
                let text = format!(
                    "{{\n  // one\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"mcp\": {{\n    \"everything\": {{ \"type\": \"local\", \"command\": [\"node\", {:?}] }},\n  }},\n}}\n",
                    server.display().to_string()
                );
                return Ok(fs::write(config, text)?);
            }
        };
        self.said(&mut add).map(drop)
    }

    fn command(&self) -> Command {
        Command::new(self.host.path(self.home))
    }

    /// Its own words for a server that it could start and speak with.
    fn lists_it_as_connected(&self) -> Result<(), Box<dyn Error>> {
        let said = self.said(self.command().args(["mcp", "list"]))?;
        let words: &[&str] = match self.host {
            // Its list does not connect; another of its interfaces does.
            Host::Codex => &["everything", "--installed", "enabled"],
            Host::Opencode => &["everything", "connected", "--installed"],
            Host::Gemini | Host::Claude => &["everything", "Connected", "--installed"],
        };
        if words.iter().any(|word| !said.contains(word)) || said.contains("Failed") {
            return Err(format!("it lists {said}").into());
        }
        match self.host {
            Host::Codex => self.codex_connects(),
            Host::Opencode | Host::Gemini | Host::Claude => Ok(()),
        }
    }

    fn codex_connects(&self) -> Result<(), Box<dyn Error>> {
        let answers = self.room.join("answers");
        let mut codex = self.command();
        self.at_home(codex.arg("app-server")).stdin(Stdio::piped()).stdout(File::create(&answers)?);
        let mut child = codex.spawn()?;
        let mut stdin = child.stdin.take().ok_or("a pipe")?;
        let asked = [
            r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"trial","version":"1"}}}"#,
            r#"{"method":"initialized"}"#,
            r#"{"id":2,"method":"mcpServerStatus/list","params":{}}"#,
        ];
        let asked = asked.iter().try_for_each(|line| writeln!(stdin, "{line}"));
        let answer = || fs::read_to_string(&answers).unwrap_or_default();
        let connected = wait_until(PATIENCE, || Ok(answer().contains("mcp-servers/everything")));
        drop(stdin);
        let ended = wait_until(PATIENCE, || Ok(child.try_wait()?.is_some()))?;
        if !ended {
            child.kill()?;
        }
        child.wait()?;
        asked?;
        if connected? && ended { Ok(()) } else { Err(format!("codex says {}", answer()).into()) }
    }

    /// A user who has nothing but a home, and wants nobody to call home.
    fn at_home<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env_clear()
            .env("HOME", self.room)
            .env("PATH", search_path())
            .current_dir(self.room);
        for quiet in [
            "DISABLE_AUTOUPDATER",
            "DISABLE_TELEMETRY",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "OPENCODE_DISABLE_AUTOUPDATE",
            "OPENCODE_DISABLE_MODELS_FETCH",
            "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "NO_COLOR",
        ] {
            command.env(quiet, "1");
        }
        command.env("GEMINI_TELEMETRY_ENABLED", "false").stdin(Stdio::null()).stderr(Stdio::null())
    }

    /// What a command says, on both streams.
    fn said(&self, command: &mut Command) -> Result<String, Box<dyn Error>> {
        const LONGEST: Duration = Duration::from_secs(90);
        let file = self.room.join("said");
        let said = File::create(&file)?;
        self.at_home(command).stderr(said.try_clone()?).stdout(said);
        let mut child = command.spawn()?;
        let ended = wait_until(LONGEST, || Ok(child.try_wait()?.is_some()))?;
        if !ended {
            child.kill()?;
        }
        let status = child.wait()?;
        let said = fs::read_to_string(&file)?;
        if ended && status.success() {
            Ok(said)
        } else {
            Err(format!("{command:?}: {status}, it said {said}").into())
        }
    }
}
