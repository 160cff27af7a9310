//! A command that is itself `docker` or `podman`.
//!
//! `docker` finds our socket through its environment, unless its own flags name another engine: then
//! that engine is put behind the socket and the flags are left out. `podman` needs no engine at all:
//! it makes its containers itself. There the labels go into the command line, and podman is asked
//! again in the end.

use super::client::Kind;
use super::endpoint::{Endpoint, Surroundings};
use super::label::{self, Labels};
use super::sweep::{Left, Swept};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Global flags of docker that take a value, by their long and short names.
const DOCKER_VALUES: &[(&str, char)] = &[
    ("config", ' '),
    ("context", 'c'),
    ("host", 'H'),
    ("log-level", 'l'),
    ("tlscacert", ' '),
    ("tlscert", ' '),
    ("tlskey", ' '),
];

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

/// What docker's own flags say of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// By `-H`.
    pub host: Option<String>,
    /// By `-c`.
    pub context: Option<String>,
    /// By `--tls`.
    pub tls: bool,
    /// By `--tlsverify`.
    pub tls_verify: bool,
    /// By `--tlscacert`, `--tlscert` and `--tlskey`.
    pub files: [Option<PathBuf>; 3],
    /// The arguments without these flags.
    pub args: Vec<OsString>,
}

/// Which engine the flags of `docker` name, if they do.
pub fn named_engine(program: &OsStr, args: &[OsString]) -> Option<Named> {
    if Path::new(program).file_name()? != "docker" {
        return None;
    }
    let mut named = Named::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = word.to_str()?;
        let Some(flags) = text.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
            // The first word that is no flag is the subcommand; what follows is its own.
            named.args.push(word.clone());
            named.args.extend(words.cloned());
            break;
        };
        let Some(long) = flags.strip_prefix('-') else {
            named.short_flags(flags, &mut words)?;
            continue;
        };
        let (name, glued) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (long, None),
        };
        if DOCKER_VALUES.iter().any(|(long, _)| *long == name) {
            let value = match glued {
                Some(value) => value,
                None => words.next()?.to_str()?.to_string(),
            };
            named.value(name, value)?;
        } else {
            let on = glued.is_none_or(|value| value.parse() != Ok(false) && value != "0");
            match name {
                "tls" => named.tls = on,
                "tlsverify" => named.tls_verify = on,
                _ => named.args.push(word.clone()),
            }
        }
    }
    let plain = Named { args: named.args.clone(), ..Named::default() };
    (named != plain).then_some(named)
}

impl Named {
    /// A word of short flags: those without a value may stand before one that takes the rest.
    fn short_flags<'a>(
        &mut self,
        flags: &str,
        words: &mut impl Iterator<Item = &'a OsString>,
    ) -> Option<()> {
        for (at, flag) in flags.char_indices() {
            let Some((name, _)) = DOCKER_VALUES.iter().find(|(_, short)| *short == flag) else {
                self.args.push(format!("-{flag}").into());
                continue;
            };
            let rest = &flags[at + flag.len_utf8()..];
            let value = match rest.strip_prefix('=').unwrap_or(rest) {
                "" => words.next()?.to_str()?.to_string(),
                glued => glued.to_string(),
            };
            return self.value(name, value);
        }
        Some(())
    }

    /// Takes in a flag's value. Several engines are for docker to complain about.
    fn value(&mut self, name: &str, value: String) -> Option<()> {
        let slot = match name {
            "host" => &mut self.host,
            "context" => &mut self.context,
            "tlscacert" | "tlscert" | "tlskey" => {
                let at = ["tlscacert", "tlscert", "tlskey"].iter().position(|n| *n == name)?;
                self.files[at] = Some(value.into());
                return Some(());
            }
            _ => {
                self.args.extend([format!("--{name}").into(), value.into()]);
                return Some(());
            }
        };
        slot.replace(value).is_none().then_some(())
    }

    /// Where docker would look, so told.
    pub fn surroundings(&self, around: Surroundings) -> Surroundings {
        let told = self.host.is_some() || self.context.is_some();
        Surroundings {
            host: if told { self.host.clone() } else { around.host },
            context: if told { self.context.clone() } else { around.context },
            tls: self.tls || around.tls,
            tls_verify: self.tls_verify || around.tls_verify,
            ..around
        }
    }

    /// The engine that was found, with the certificates that were named.
    pub fn with_files(&self, mut endpoint: Endpoint) -> Endpoint {
        if let Endpoint::Tls { ca, cert, key, .. } = &mut endpoint {
            for (slot, file) in [ca, cert, key].into_iter().zip(&self.files) {
                *slot = file.clone().or_else(|| slot.take());
            }
        }
        endpoint
    }
}

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

impl Podman {
    /// Removes what carries the session's label. Its processes are of the tree and gone already;
    /// what is left is podman's own record of them.
    pub fn sweep(&self, session: &str) -> Swept {
        let mut swept = Swept::default();
        let filter = format!("label={}={session}", label::SESSION);
        for _ in 0..TRIES {
            let listed = match self.ask(&["ps", "-aq", "--no-trunc", "--filter", &filter]) {
                Ok(listed) => listed,
                Err(why) => {
                    swept.left = vec![left("", &why)];
                    return swept;
                }
            };
            let ids: Vec<&str> = listed.lines().collect();
            let seen = ids.len() as u32;
            (swept.seen, swept.removed) = (swept.seen.max(seen), swept.seen.max(seen) - seen);
            if ids.is_empty() {
                swept.left.clear();
                return swept;
            }
            let removed = self.ask(&[&["rm", "-f", "-v", "-t", "1"][..], &ids].concat());
            let why = removed.err().unwrap_or_else(|| "it did not go in time".into());
            swept.left = ids.iter().map(|id| left(id, &why)).collect();
        }
        swept
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let mut own = self.words.iter().map(|word| OsString::from_vec(word.clone()));
        let program = own.next().unwrap_or_default();
        let mut command = Command::new(program);
        command.args(own).args(words).stdin(Stdio::null());
        let told = |e: std::io::Error| format!("podman cannot be asked ({e})");
        let Output { status, stdout, stderr } = command.output().map_err(told)?;
        if !status.success() {
            let said = String::from_utf8_lossy(&stderr);
            return Err(said.lines().last().unwrap_or("podman failed").into());
        }
        Ok(String::from_utf8_lossy(&stdout).into_owned())
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
    fn flags_of_docker_may_name_an_engine() {
        let named = |text: &str| named_engine(OsStr::new("/usr/bin/docker"), &words(text));
        let found = named("-H tcp://a:1 --log-level info run -H x bb").unwrap();
        assert_eq!(found.host.as_deref(), Some("tcp://a:1"));
        assert_eq!(found.args, words("--log-level info run -H x bb"));
        let found = named("--context=far run -c 512 bb").unwrap();
        assert_eq!((found.context.as_deref(), found.args), (Some("far"), words("run -c 512 bb")));
        for spelling in ["-Hx run", "-H=x run", "-H x run", "--host x run", "--host=x run"] {
            let found = named(spelling).unwrap();
            assert_eq!((found.host.as_deref(), found.args), (Some("x"), words("run")));
        }
        let found = named("-DHx -cy --tls=false ps").unwrap();
        assert_eq!((found.host.as_deref(), found.context.as_deref()), (Some("x"), Some("y")));
        assert_eq!((found.tls, found.args), (false, words("-D ps")));
        let found = named("--tlsverify --tlskey=/k -H tcp://a:1 run bb").unwrap();
        assert_eq!((found.tls_verify, &found.files[2]), (true, &Some("/k".into())));
        assert_eq!(named("run -i bb"), None);
        assert_eq!(named("-D --config /c run -i bb"), None);
        assert_eq!(named("-H a -H b run"), None);
        assert_eq!(named_engine(OsStr::new("dockerd"), &words("-H x run")), None);
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
