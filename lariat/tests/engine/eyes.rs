//! What an engine has, asked at its own socket in plain HTTP: the oracle of these tests, which
//! shares nothing with what it judges.

use crate::engine::Engine;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What every container of a trial runs unless it says otherwise: deaf to SIGTERM, never done.
pub(crate) const DEAF: &str = "trap \"\" TERM; echo up; while :; do sleep 1; done";

/// One question and the whole answer: its code and its body.
pub(crate) fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    // The old version has neither chunks nor a connection that goes on.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: engine\r\n");
    let kind = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &kind + &body).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    split(&answer).ok_or_else(|| io::Error::other("no HTTP"))
}

/// The code and the body of an answer.
pub(crate) fn split(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, answer[end + 4..].to_vec()))
}

/// A container as the engine lists it.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Engine {
    /// Asks the engine something that it must answer.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (code, said) = ask(&self.socket(), method, path, body).unwrap();
        assert!(code < 400, "{method} {path}: {code} {}", String::from_utf8_lossy(&said));
        serde_json::from_slice(&said).unwrap_or(Value::Null)
    }

    /// All containers, whatever their state.
    pub(crate) fn containers(&self) -> Vec<Container> {
        let listed = self.ask("GET", "/containers/json?all=1", None);
        let listed = listed.as_array().into_iter().flatten();
        let container = |one: &Value| Container {
            name: text(&one["Names"][0]).trim_start_matches('/').to_owned(),
            state: text(&one["State"]),
            labels: labels(one),
        };
        listed.map(container).collect()
    }

    /// Whether the engine still finds something of a trial, by its own index: a quicker look than
    /// at everything, for those who look often.
    pub(crate) fn has_any(&self, trial: &str) -> bool {
        let filters = format!("filters=%7B%22label%22%3A%5B%22trial%3D{trial}%22%5D%7D");
        let some = |path: &str, list: &str| {
            let found = self.ask("GET", &format!("{path}{filters}"), None);
            let found = if list.is_empty() { &found } else { &found[list] };
            found.as_array().is_some_and(|found| !found.is_empty())
        };
        some("/containers/json?all=1&", "")
            || some("/networks?", "")
            || some("/volumes?", "Volumes")
    }

    /// The containers with this label; with this value of it, if one is given.
    pub(crate) fn containers_with(&self, label: &str, value: Option<&str>) -> Vec<Container> {
        let has = |one: &Container| is(&one.labels, label, value);
        self.containers().into_iter().filter(has).collect()
    }

    /// A container by name.
    pub(crate) fn container(&self, name: &str) -> Option<Container> {
        self.containers().into_iter().find(|one| one.name == name)
    }

    /// A label of one container, by its id.
    pub(crate) fn label(&self, id: &str, label: &str) -> Option<String> {
        let one = self.ask("GET", &format!("/containers/{id}/json"), None);
        one["Config"]["Labels"][label].as_str().map(str::to_owned)
    }

    /// Names and labels of all networks.
    pub(crate) fn networks(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let listed = self.ask("GET", "/networks", None);
        let listed = listed.as_array().into_iter().flatten();
        listed.map(|one| (text(&one["Name"]), labels(one))).collect()
    }

    /// Names and labels of all volumes.
    pub(crate) fn volumes(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let listed = self.ask("GET", "/volumes", None);
        let listed = listed["Volumes"].as_array().into_iter().flatten();
        listed.map(|one| (text(&one["Name"]), labels(one))).collect()
    }

    /// Everything that there is now.
    pub(crate) fn stock(&self) -> Stock {
        let boxes = self.containers().into_iter();
        let boxes =
            boxes.map(|one| (format!("container {} ({})", one.name, one.state), one.labels));
        let of = |kind: &'static str, all: BTreeMap<String, BTreeMap<String, String>>| {
            all.into_iter().map(move |(name, labels)| (format!("{kind} {name}"), labels))
        };
        let rest = of("network", self.networks()).chain(of("volume", self.volumes()));
        Stock(boxes.chain(rest).collect())
    }

    /// Everything with this label, for people; with this value of it, if one is given.
    pub(crate) fn marked(&self, label: &str, value: Option<&str>) -> Vec<String> {
        self.stock().marked(label, value)
    }

    /// Creates and starts a deaf container, straight at the engine.
    pub(crate) fn run_deaf(&self, name: &str, labels: &Value) -> String {
        let limits = json!({"NetworkMode": "none"});
        let command = ["sh", "-c", DEAF];
        let made =
            json!({"Image": "bb:latest", "Cmd": command, "Labels": labels, "HostConfig": limits});
        let id = self.ask("POST", &format!("/containers/create?name={name}"), Some(&made));
        let id = text(&id["Id"]);
        self.ask("POST", &format!("/containers/{id}/start"), None);
        id
    }

    /// Since when a container runs; nothing if it does not.
    pub(crate) fn running_since(&self, id: &str) -> Option<String> {
        let (code, said) =
            ask(&self.socket(), "GET", &format!("/containers/{id}/json"), None).unwrap();
        let said: Value = serde_json::from_slice(&said).ok().filter(|_| code == 200)?;
        let state = &said["State"];
        (state["Running"] == true).then(|| text(&state["StartedAt"]))
    }
}

/// What an engine has at one moment: each thing for people, and its labels. To list it takes Podman
/// a good part of a second, so one look serves many questions.
pub(crate) struct Stock(Vec<(String, BTreeMap<String, String>)>);

impl Stock {
    /// Everything with this label; with this value of it, if one is given.
    pub(crate) fn marked(&self, label: &str, value: Option<&str>) -> Vec<String> {
        let with = self.0.iter().filter(|(_, labels)| is(labels, label, value));
        with.map(|(shown, _)| shown.clone()).collect()
    }

    /// The different values of a label among the things of a trial; empty where it is missing.
    pub(crate) fn values(&self, trial: &str, label: &str) -> BTreeSet<String> {
        let ours = self.0.iter().filter(|(_, labels)| is(labels, "trial", Some(trial)));
        ours.map(|(_, labels)| labels.get(label).cloned().unwrap_or_default()).collect()
    }
}

fn is(labels: &BTreeMap<String, String>, label: &str, value: Option<&str>) -> bool {
    labels.get(label).is_some_and(|own| value.is_none_or(|value| value == own))
}

fn labels(one: &Value) -> BTreeMap<String, String> {
    let labels = one["Labels"].as_object().into_iter().flatten();
    labels.map(|(name, value)| (name.clone(), text(value))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Containers, a network and a volume of somebody else's, much like those of a trial.
pub(crate) struct Bystanders {
    since: BTreeMap<String, Option<String>>,
}

/// What a bystander's network and volume are called.
const OTHERS: [&str; 2] = ["net-bystander", "vol-bystander"];

impl Bystanders {
    /// Starts so many of them. `server` is what the trial's sessions are called, too.
    pub(crate) fn start(engine: &Engine, number: usize, server: &str) -> Bystanders {
        let other = json!({"dev.lariat.session": "0123456789abcde", "dev.lariat.server": server});
        let looks = [
            json!({}),
            other.clone(),
            json!({"dev.lariat.server": server, "trial": "another"}),
            json!({"dev.lariat.session": "", "dev.lariat.owner": ""}),
            json!({"lariat.session": "0123456789abcde", "dev.lariat.sessions": "all"}),
        ];
        let mut all = Bystanders { since: BTreeMap::new() };
        for (index, labels) in looks.iter().cycle().take(number).enumerate() {
            all.join(engine, &format!("cli-bystander-{index}"), labels);
        }
        let [network, volume] = OTHERS;
        engine.ask("POST", "/networks/create", Some(&json!({"Name": network, "Labels": other})));
        engine.ask("POST", "/volumes/create", Some(&json!({"Name": volume, "Labels": other})));
        all
    }

    /// One more, with these labels.
    pub(crate) fn join(&mut self, engine: &Engine, name: &str, labels: &Value) {
        let id = engine.run_deaf(name, labels);
        let since = engine.running_since(&id);
        assert!(since.is_some(), "bystander {name} does not run");
        self.since.insert(id, since);
    }

    /// Nobody ended, nobody was started again, nothing is missing.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, engine: &Engine) {
        for (id, since) in &self.since {
            assert_eq!(engine.running_since(id), *since, "bystander {id}");
        }
        let [network, volume] = OTHERS;
        assert!(engine.networks().contains_key(network), "the bystander's network is gone");
        assert!(engine.volumes().contains_key(volume), "the bystander's volume is gone");
    }
}
