//! A command that is itself `podman`, which needs no engine: it makes its containers itself.
//!
//! The labels go into its command line, and podman is asked again in the end.

use super::client::Kind;
use super::label::{self, Labels};
use super::sweep::{Left, Swept};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Global flags of podman that take a value of their own.
const PODMAN_VALUES: &[&str] = &[
    "--cgroup-manager",
    "--config",
    "--conmon",
    "--cpu-profile",
    "--db-backend",
    "--default-mounts-file",
    "--events-backend",
    "--hooks-dir",
    "--imagestore",
    "--log-level",
    "--memory-profile",
    "--module",
    "--namespace",
    "--network-cmd-path",
    "--network-config-dir",
    "--out",
    "--registries-conf",
    "--root",
    "--runroot",
    "--runtime",
    "--runtime-flag",
    "--ssh",
    "--storage-driver",
    "--storage-opt",
    "--tmpdir",
    "--volumepath",
];

/// Flags that make podman ask a service: it finds that one by itself, and we do not.
const PODMAN_REMOTE: &[&str] = &["-r", "--remote", "-c", "--connection", "--url", "--identity"];

/// Tries of one removal before what is left is called a survivor.
const TRIES: u32 = 5;

/// How long podman may take for one answer: it waits for locks that others hold.
const PATIENCE: Duration = Duration::from_secs(15);

/// A podman whose containers are its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Podman {
    /// The command, and the flags that say where its containers are. Bytes: words need not be text.
    words: Vec<Vec<u8>>,
}

/// A `podman run` or `podman create`, seen through.
#[derive(Debug, Clone)]
pub struct PodmanRun {
    /// Whom to ask in the end.
    pub podman: Podman,
    /// Where in the arguments its own flags begin.
    at: usize,
}

/// Sees through a command that is podman's.
pub fn podman_run(program: &OsStr, args: &[OsString]) -> Option<PodmanRun> {
    if Path::new(program).file_name()? != "podman" {
        return None;
    }
    let mut at = 0;
    loop {
        let word = args.get(at)?;
        let text = word.to_string_lossy();
        let flag = text.split('=').next().unwrap_or_default();
        if PODMAN_REMOTE.contains(&flag) {
            return None;
        }
        if !flag.starts_with('-') {
            break;
        }
        let apart = PODMAN_VALUES.contains(&flag) && !text.contains('=');
        at += if apart { 2 } else { 1 };
    }
    let globals = &args[..at];
    if args.get(at)? == "container" {
        at += 1;
    }
    let verb = args.get(at)?;
    (verb == "run" || verb == "create").then(|| {
        let words = std::iter::once(program).chain(globals.iter().map(OsString::as_os_str));
        let words = words.map(|word| word.as_bytes().to_vec()).collect();
        PodmanRun { podman: Podman { words }, at: at + 1 }
    })
}

impl PodmanRun {
    /// The arguments with the session's labels in them.
    pub fn labelled(&self, args: &[OsString], labels: &Labels) -> Vec<OsString> {
        let ours = labels.all().into_iter();
        let ours = ours.map(|(key, value)| format!("--label={key}={value}").into());
        let (before, after) = args.split_at(self.at);
        before.iter().cloned().chain(ours).chain(after.iter().cloned()).collect()
    }
}

/// What podman lists.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(rename = "ImageID", default)]
    image: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
}

impl Podman {
    /// Removes what carries the session's label. Its processes are of the tree and gone already;
    /// what is left is podman's own record of them. Blocks.
    pub fn sweep(&self, session: &str) -> Swept {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.remove(session)),
            Err(e) => Swept { left: vec![left("", &e.to_string())], ..Swept::default() },
        }
    }

    async fn remove(&self, session: &str) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..TRIES {
            let ids = match self.born_here(session).await {
                Ok(ids) => ids,
                Err(why) => {
                    swept.left = vec![left("", &why)];
                    return swept;
                }
            };
            let listed = ids.len() as u32;
            swept.seen = swept.seen.max(listed);
            swept.removed = swept.seen - listed;
            swept.left.clear();
            if ids.is_empty() {
                return swept;
            }
            let mut words = vec!["rm", "-f", "-v", "-t", "1"];
            words.extend(ids.iter().map(String::as_str));
            let removed = self.ask(&words).await;
            let why = removed.err().unwrap_or_else(|| "it did not go in time".into());
            swept.left = ids.iter().map(|id| left(id, &why)).collect();
        }
        swept
    }

    /// The session's containers, without those that have its labels from their image alone.
    async fn born_here(&self, session: &str) -> Result<Vec<String>, String> {
        let unreadable = |e: serde_json::Error| format!("podman says what cannot be read ({e})");
        let filter = format!("label={}={session}", label::SESSION);
        let listed = self.ask(&["ps", "-a", "--format", "json", "--filter", &filter]).await?;
        let listed: Vec<Listed> = match listed.trim() {
            "" => Vec::new(),
            text => serde_json::from_str(text).map_err(unreadable)?,
        };
        let mut ours = Vec::new();
        for one in listed {
            let words = ["image", "inspect", "--format", "{{json .Labels}}", &one.image];
            // An image that is gone proves nothing.
            let image = self.ask(&words).await.unwrap_or_default();
            let image: Option<HashMap<String, String>> =
                serde_json::from_str(image.trim()).unwrap_or_default();
            let birth = |labels: Option<HashMap<String, String>>| labels?.remove(label::BIRTH);
            let (own, inherited) = (birth(one.labels), birth(image));
            if inherited.is_none() || own != inherited {
                ours.push(one.id);
            }
        }
        Ok(ours)
    }

    async fn ask(&self, words: &[&str]) -> Result<String, String> {
        let mut own = self.words.iter().map(|word| OsString::from_vec(word.clone()));
        let mut command = Command::new(own.next().unwrap_or_default());
        command.args(own).args(words).stdin(Stdio::null()).kill_on_drop(true);
        let output = match timeout(PATIENCE, command.output()).await {
            Ok(output) => output.map_err(|e| format!("podman cannot be asked ({e})"))?,
            Err(_) => return Err("podman does not answer".into()),
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().last().unwrap_or("podman failed").into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn left(id: &str, why: &str) -> Left {
    let kind = Kind::Container.word();
    Left { kind, id: id.into(), name: String::new(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn labels_go_right_after_the_verb() {
        let args = words("--root /r --log-level=info container run -i bb run");
        let run = podman_run(OsStr::new("podman"), &args).unwrap();
        let text = |s: &str| s.to_string();
        let labels =
            Labels { session: text("s"), server: text("n"), owner: text("o"), birth: text("b") };
        let expected = "--root /r --log-level=info container run --label=dev.lariat.session=s \
                        --label=dev.lariat.server=n --label=dev.lariat.owner=o --label=dev.lariat.birth=b -i bb run";
        assert_eq!(run.labelled(&args, &labels), words(expected));
        let asked = ["podman", "--root", "/r", "--log-level=info"];
        assert_eq!(run.podman.words, asked.map(|w| w.as_bytes().to_vec()));
    }

    #[test]
    fn other_verbs_and_remote_services_are_left_alone() {
        let seen = |text: &str| podman_run(OsStr::new("podman"), &words(text)).is_some();
        assert!(seen("run bb") && seen("create bb"));
        assert!(!seen("exec -it c run") && !seen("--remote run bb") && !seen("--url=x run bb"));
        assert!(!seen("--root") && !seen(""));
    }
}
