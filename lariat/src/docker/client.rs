//! The few questions and orders that we have for an engine ourselves.
//!
//! One connection per question: there are few of them, and an engine that was restarted in between
//! is nothing special. Every question has a deadline.

use super::connect::{Stream, connect};
use super::endpoint::Endpoint;
use super::head::{self, Body};
use super::label;
use serde::Deserialize;
use std::collections::HashMap;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer longer than this is no answer to our questions.
const LONGEST_ANSWER: usize = 64 << 20;

/// An engine that can be asked.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    endpoint: Endpoint,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    body: Vec<u8>,
}

impl Answer {
    /// What an engine says in an error, or its number.
    pub(crate) fn message(&self) -> String {
        #[derive(Deserialize)]
        struct Said {
            message: String,
        }
        match serde_json::from_slice::<Said>(&self.body) {
            Ok(said) => said.message,
            Err(_) => format!("the engine answered {}", self.status),
        }
    }
}

/// Something in an engine that carries labels.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Thing {
    /// Containers and networks have one; a volume's is its name.
    #[serde(rename = "Id", default)]
    id: String,
    #[serde(rename = "Name", default)]
    name: String,
    #[serde(rename = "Names", default)]
    names: Option<Vec<String>>,
    /// Of a container: `running`, `paused`, `exited` …
    #[serde(rename = "State", default)]
    pub(crate) state: String,
    /// Of a container.
    #[serde(rename = "ImageID", default)]
    pub(crate) image: String,
    #[serde(rename = "Labels", default)]
    labels: Option<HashMap<String, String>>,
}

impl Thing {
    /// What the engine knows it by.
    pub(crate) fn key(&self) -> &str {
        if self.id.is_empty() { &self.name } else { &self.id }
    }

    /// What a person knows it by.
    pub(crate) fn name(&self) -> &str {
        let first = self.names.as_ref().and_then(|names| names.first());
        first.map_or(self.name.as_str(), |name| name.trim_start_matches('/'))
    }

    /// True if its owner wants it to stay.
    pub(crate) fn is_kept(&self) -> bool {
        self.label(label::KEEP).is_some_and(|value| value == "true")
    }

    /// True if it has this session's labels from its image alone: somebody else started it. What
    /// tells is the birth, which is another one for each create.
    pub(crate) fn is_inherited(&self, session: &str, image: &HashMap<String, String>) -> bool {
        let same = |key: &str| self.label(key) == image.get(key).map(String::as_str);
        let named = self.label(label::SESSION) == Some(session);
        let within = format!("{}{session}", label::WITHIN);
        let born = (named && !same(label::BIRTH))
            || (self.label(&within).is_some() && !same(&within))
            // Labelled by hand, or by an older Lariat.
            || (named && self.label(label::BIRTH).is_none());
        !born
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// What can be listed by label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Container,
    Network,
    Volume,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Container => "container",
            Kind::Network => "network",
            Kind::Volume => "volume",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Kind::Container => "/containers",
            Kind::Network => "/networks",
            Kind::Volume => "/volumes",
        }
    }
}

impl Client {
    pub(crate) fn new(endpoint: &Endpoint) -> Client {
        Client { endpoint: endpoint.clone() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Everything of a kind that a session started, whether it runs or not.
    pub(crate) async fn of_session(&self, kind: Kind, session: &str) -> io::Result<Vec<Thing>> {
        let mine = format!("{}={session}", label::SESSION);
        // What an inner session of ours started carries that session's label and this one.
        let within = format!("{}{session}", label::WITHIN);
        let (mut found, inner) =
            tokio::try_join!(self.labelled(kind, &mine), self.labelled(kind, &within))?;
        found.extend(inner);
        found.sort_by(|a, b| a.key().cmp(b.key()));
        found.dedup_by(|a, b| a.key() == b.key());
        // An engine that knows no filters lists everything. Its word is not enough to remove by.
        found.retain(|thing| {
            thing.label(label::SESSION) == Some(session) || thing.label(&within).is_some()
        });
        Ok(found)
    }

    async fn labelled(&self, kind: Kind, label: &str) -> io::Result<Vec<Thing>> {
        #[derive(Deserialize)]
        struct Volumes {
            #[serde(rename = "Volumes", default)]
            volumes: Option<Vec<Thing>>,
        }
        let filters = escape(&serde_json::json!({ "label": [label] }).to_string());
        let target = match kind {
            Kind::Container => format!("/containers/json?all=1&filters={filters}"),
            Kind::Network => format!("/networks?filters={filters}"),
            Kind::Volume => format!("/volumes?filters={filters}"),
        };
        let answer = self.ask("GET", &target).await?;
        if answer.status != 200 {
            return Err(io::Error::other(answer.message()));
        }
        match kind {
            Kind::Volume => {
                let listed: Volumes = serde_json::from_slice(&answer.body).map_err(unreadable)?;
                Ok(listed.volumes.unwrap_or_default())
            }
            _ => serde_json::from_slice(&answer.body).map_err(unreadable),
        }
    }

    /// The labels of an image.
    pub(crate) async fn image_labels(&self, image: &str) -> io::Result<HashMap<String, String>> {
        #[derive(Deserialize)]
        struct Image {
            #[serde(rename = "Config", default)]
            config: Option<Config>,
        }
        #[derive(Deserialize)]
        struct Config {
            #[serde(rename = "Labels", default)]
            labels: Option<HashMap<String, String>>,
        }
        let answer = self.ask("GET", &format!("/images/{}/json", escape(image))).await?;
        match answer.status {
            200 => {
                let image: Image = serde_json::from_slice(&answer.body).map_err(unreadable)?;
                Ok(image.config.and_then(|config| config.labels).unwrap_or_default())
            }
            // Gone by force: nobody can have labels from it that were not given.
            404 => Ok(HashMap::new()),
            _ => Err(io::Error::other(answer.message())),
        }
    }

    /// Which engine it is.
    pub(crate) async fn version(&self) -> io::Result<String> {
        #[derive(Deserialize)]
        struct Engine {
            #[serde(rename = "Version")]
            version: String,
        }
        let answer = self.ask("GET", "/version").await?;
        if answer.status != 200 {
            return Err(io::Error::other(answer.message()));
        }
        let engine: Engine = serde_json::from_slice(&answer.body).map_err(unreadable)?;
        Ok(engine.version)
    }

    /// Lets a paused container go on.
    pub(crate) async fn unpause(&self, id: &str) -> io::Result<Answer> {
        self.ask("POST", &format!("/containers/{}/unpause", escape(id))).await
    }

    /// Asks a container to stop, in the way its image wants to be asked.
    pub(crate) async fn stop(&self, id: &str) -> io::Result<Answer> {
        self.ask("POST", &format!("/containers/{}/stop?t=1", escape(id))).await
    }

    /// Kills a container. Podman's removal would wait for a stop that is under way, its kill does not.
    pub(crate) async fn kill(&self, id: &str) -> io::Result<Answer> {
        self.ask("POST", &format!("/containers/{}/kill?signal=SIGKILL", escape(id))).await
    }

    /// Removes it. A container is killed first and its anonymous volumes go with it.
    pub(crate) async fn remove(&self, kind: Kind, key: &str) -> io::Result<Answer> {
        let how = if kind == Kind::Container { "?force=1&v=1" } else { "" };
        self.ask("DELETE", &format!("{}/{}{how}", kind.path(), escape(key))).await
    }

    async fn ask(&self, method: &str, target: &str) -> io::Result<Answer> {
        let asked = async {
            let mut stream = connect(&self.endpoint).await?;
            let head = format!(
                "{method} {target} HTTP/1.1\r\nHost: docker\r\nUser-Agent: lariat\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await?;
            answer(&mut stream, method).await
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(answered) => answered,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the engine does not answer")),
        }
    }
}

fn unreadable(error: serde_json::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads one answer whole.
async fn answer(stream: &mut Stream, method: &str) -> io::Result<Answer> {
    let bad = |_| io::Error::new(io::ErrorKind::InvalidData, "the engine's answer is no HTTP");
    let mut bytes = Vec::with_capacity(8 << 10);
    let mut response = loop {
        let n = stream.read_buf(&mut bytes).await?;
        if let Some(response) = head::response(&bytes, method).map_err(bad)? {
            break response;
        }
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let mut raw = bytes.split_off(response.length);
    let mut taken = response.body.take(&raw).map_err(bad)?;
    while !response.body.is_done() {
        if stream.read_buf(&mut raw).await? == 0 {
            // Some ways to us cannot close one direction without an error; the length tells.
            match response.body {
                Body::UntilClose => break,
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        taken += response.body.take(&raw[taken..]).map_err(bad)?;
        if raw.len() > LONGEST_ANSWER {
            return Err(io::Error::other("the engine's answer has no end"));
        }
    }
    raw.truncate(taken);
    let chunked = matches!(response.body, Body::Chunked(_));
    let body = if chunked { head::dechunk(&raw).map_err(bad)? } else { raw };
    Ok(Answer { status: response.status, body })
}

/// Percent-encodes whatever has a meaning in a target.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(byte.into());
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_into_a_target() {
        assert_eq!(escape(r#"{"label":["a=b c"]}"#), "%7B%22label%22%3A%5B%22a%3Db%20c%22%5D%7D");
    }

    #[test]
    fn labels_that_came_with_an_image_prove_nothing() {
        let thing = |labels: &str| -> Thing {
            serde_json::from_str(&format!(r#"{{"Id":"c","Labels":{{{labels}}}}}"#)).unwrap()
        };
        let labels = |text: &str| serde_json::from_str(&format!("{{{text}}}")).unwrap();
        let made = r#""dev.lariat.session":"s","dev.lariat.birth":"1""#;
        let inner = r#""dev.lariat.session":"t","dev.lariat.birth":"2","dev.lariat.within.s":"3""#;
        let committed =
            r#""dev.lariat.session":"u","dev.lariat.birth":"9","dev.lariat.within.s":"3""#;
        let nothing = HashMap::new();
        for ours in [made, inner, r#""dev.lariat.session":"s""#] {
            assert!(!thing(ours).is_inherited("s", &nothing), "{ours}");
        }
        assert!(thing(made).is_inherited("s", &labels(made)));
        assert!(thing(committed).is_inherited("s", &labels(inner)));
        assert!(!thing(committed).is_inherited("u", &labels(inner)));
    }

    #[test]
    fn engines_name_things_in_two_ways() {
        let container = r#"{"Id":"c1","Names":["/web"],"State":"running","Labels":null,"New":1}"#;
        let container: Thing = serde_json::from_str(container).unwrap();
        assert_eq!((container.key(), container.name()), ("c1", "web"));
        let volume = r#"{"Name":"data","Labels":{"dev.lariat.keep":"true"}}"#;
        let volume: Thing = serde_json::from_str(volume).unwrap();
        assert_eq!((volume.key(), volume.name(), volume.is_kept()), ("data", "data", true));
    }
}
