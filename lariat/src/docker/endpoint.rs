//! Where the engine is: what the docker command would have connected to.
//!
//! A server's processes get an address of ours, so the real one must be found first, by the rules
//! of the docker command itself. Hosts strip the environment, and with it `DOCKER_HOST` and
//! `XDG_RUNTIME_DIR`; where nothing is said and the default socket is absent, the places where
//! engines put their sockets are tried. Nothing is connected to here.

use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

mod address;

/// The name of the context that stands for no context.
const DEFAULT_CONTEXT: &str = "default";

/// Where an engine listens if nobody says otherwise, below the root.
const DEFAULT_SOCKET: &str = "var/run/docker.sock";

/// What TLS without any address means to the docker command.
const DEFAULT_TLS: &str = "localhost:2376";

/// What the search goes by. The binary fills it in: the library reads no environment.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// Whose runtime directory is looked into.
    pub uid: u32,
    /// `DOCKER_HOST`.
    pub host: Option<String>,
    /// `DOCKER_CONTEXT`.
    pub context: Option<String>,
    /// `DOCKER_CONFIG`.
    pub config: Option<PathBuf>,
    /// `DOCKER_CERT_PATH`.
    pub cert_path: Option<PathBuf>,
    /// True if `DOCKER_TLS_VERIFY` is not empty.
    pub tls_verify: bool,
    /// True if `DOCKER_TLS` is not empty.
    pub tls: bool,
    /// Authority, certificate and key, where docker's own flags name them.
    pub files: [Option<PathBuf>; 3],
}

/// An engine's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// A socket on this machine.
    Unix(PathBuf),
    /// `host:port`, in the clear.
    Tcp(String),
    /// `host:port` behind TLS.
    Tls {
        /// `host:port`.
        address: String,
        /// The name or IP address the certificate must be for.
        name: String,
        /// Who may have signed it.
        ca: Option<PathBuf>,
        /// Our certificate.
        cert: Option<PathBuf>,
        /// Its key.
        key: Option<PathBuf>,
        /// False if any certificate will do.
        verify: bool,
    },
    /// The docker command of another machine, behind ssh.
    Ssh {
        /// Who to log in as.
        user: Option<String>,
        /// Which machine, as ssh knows it.
        host: String,
        /// Which port.
        port: Option<u16>,
        /// The socket there, if it is not the default one.
        path: Option<String>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp(address) | Endpoint::Tls { address, .. } => write!(f, "tcp://{address}"),
            Endpoint::Ssh { user, host, port, path } => {
                f.write_str("ssh://")?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                f.write_str(&address::bracketed(host))?;
                if let Some(port) = port {
                    write!(f, ":{port}")?;
                }
                f.write_str(path.as_deref().unwrap_or_default())
            }
        }
    }
}

/// Why what is configured leads to no engine. No address is repeated in it: one may hold a password.
#[derive(Debug)]
pub enum Unusable {
    /// A file of the configuration cannot be read, or says nothing sensible.
    File(PathBuf, io::Error),
    /// A context is chosen that is not in this directory.
    NoContext(String, PathBuf),
    /// A context is chosen, and no home directory says where contexts are.
    NoHome(String),
    /// The address that comes from here is none, and what to write instead.
    Address(Origin, &'static str),
    /// The engine's certificate is to be checked, and this file should say against what.
    NoAuthority(PathBuf),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::File(path, e) => {
                write!(f, "cannot read {}: {e}; repair it or set DOCKER_HOST", path.display())
            }
            Unusable::NoContext(name, dir) => write!(
                f,
                "the Docker context {name:?} is not in {}; choose one that `docker context ls` shows",
                dir.display()
            ),
            Unusable::NoHome(name) => write!(
                f,
                "the Docker context {name:?} cannot be looked up; set HOME or DOCKER_CONFIG"
            ),
            Unusable::Address(origin, why) => write!(f, "{origin} {why}"),
            Unusable::NoAuthority(path) => write!(
                f,
                "DOCKER_TLS_VERIFY is set and {} does not exist; set DOCKER_CERT_PATH to where it is",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Unusable {}

/// Where an address was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In `DOCKER_HOST`.
    Environment,
    /// In the context of this name.
    Context(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Environment => f.write_str("DOCKER_HOST"),
            Origin::Context(name) => write!(f, "the Docker context {name:?}"),
        }
    }
}

/// Finds the engine. `None` means that this machine has no Docker at all: nothing is configured
/// and no engine has a socket. A docker command alone is no engine, and a server's environment is
/// not touched for the sake of one that may come up later.
pub fn resolve(around: &Surroundings) -> Result<Option<Endpoint>, Unusable> {
    Search { around, root: Path::new("/") }.resolve()
}

/// A search, with the root of the file system it happens in.
struct Search<'a> {
    around: &'a Surroundings,
    root: &'a Path,
}

impl Search<'_> {
    /// The docker command's order: the address, the context, the context of its configuration.
    fn resolve(&self) -> Result<Option<Endpoint>, Unusable> {
        if let Some(host) = self.around.host.as_deref().filter(|h| !h.is_empty()) {
            return match host.trim() {
                "" => self.unconfigured(),
                host => self.addressed(host).map(Some),
            };
        }
        let context = match self.around.context.as_deref().filter(|c| !c.is_empty()) {
            Some(context) => Some(context.to_owned()),
            None => self.current_context(),
        };
        match context.as_deref() {
            None | Some(DEFAULT_CONTEXT) => self.unconfigured(),
            Some(name) => self.in_context(name).map(Some),
        }
    }

    /// The docker command's directory.
    fn config(&self) -> Option<PathBuf> {
        let given = self.around.config.clone().filter(|c| !c.as_os_str().is_empty());
        given.or_else(|| self.around.home.as_ref().map(|home| home.join(".docker")))
    }

    /// A configuration that cannot be read is one that says nothing: docker warns and goes on.
    fn current_context(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(rename = "currentContext")]
            current_context: Option<String>,
        }
        let text = fs::read(self.config()?.join("config.json")).ok()?;
        let config = serde_json::from_slice::<Config>(&text).ok()?;
        config.current_context.filter(|context| !context.is_empty())
    }

    /// What `DOCKER_HOST` says, together with the variables for TLS.
    fn addressed(&self, host: &str) -> Result<Endpoint, Unusable> {
        let found = address::parse(host, &self.standard())
            .map_err(|why| Unusable::Address(Origin::Environment, why))?;
        match found {
            Endpoint::Tcp(address) if self.around.tls || self.around.tls_verify => {
                self.behind_tls(address)
            }
            found => Ok(found),
        }
    }

    /// TLS as the variables have it. Verification wants an authority; the rest is optional.
    fn behind_tls(&self, address: String) -> Result<Endpoint, Unusable> {
        let given = self.around.cert_path.clone().filter(|c| !c.as_os_str().is_empty());
        let dir = given.or_else(|| self.config()).unwrap_or_default();
        let verify = self.around.tls_verify;
        if verify && self.around.files[0].is_none() && !dir.join("ca.pem").exists() {
            return Err(Unusable::NoAuthority(dir.join("ca.pem")));
        }
        let mut found = tls(address, &dir, verify);
        if let Endpoint::Tls { ca, cert, key, .. } = &mut found {
            for (slot, file) in [ca, cert, key].into_iter().zip(&self.around.files) {
                *slot = file.clone().or_else(|| slot.take());
            }
        }
        Ok(found)
    }

    /// What a context says. Its directory is named by a digest of its name; looking into each one
    /// is as good, and needs no digest.
    fn in_context(&self, name: &str) -> Result<Endpoint, Unusable> {
        let Some(contexts) = self.config().map(|c| c.join("contexts")) else {
            return Err(Unusable::NoHome(name.into()));
        };
        let meta = contexts.join("meta");
        let mut damaged = None;
        for dir in fs::read_dir(&meta).into_iter().flatten().flatten() {
            let path = dir.path().join("meta.json");
            let read = fs::read(&path)
                .and_then(|text| serde_json::from_slice::<Meta>(&text).map_err(io::Error::from));
            match read {
                Ok(meta) if meta.name == name => {
                    return self.of_context(meta, &contexts.join("tls").join(dir.file_name()));
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // It may be the one that is looked for.
                Err(e) => damaged = Some(Unusable::File(path, e)),
            }
        }
        Err(damaged.unwrap_or_else(|| Unusable::NoContext(name.into(), meta)))
    }

    fn of_context(&self, meta: Meta, secrets: &Path) -> Result<Endpoint, Unusable> {
        let unusable = |why| Unusable::Address(Origin::Context(meta.name.clone()), why);
        let Some(docker) = meta.endpoints.docker else {
            return Err(unusable("is for something other than Docker; choose another context"));
        };
        let host = docker.host.as_deref().map(str::trim).filter(|h| !h.is_empty());
        let skip = docker.skip_tls_verify.unwrap_or_default();
        let secrets = secrets.join("docker");
        // What cannot be seen counts as there: nothing falls back to speaking in the clear.
        let encrypted = skip || secrets.try_exists().unwrap_or(true);
        match address::parse(host.unwrap_or("unix://"), &self.standard()).map_err(unusable)? {
            Endpoint::Tcp(address) if encrypted => Ok(tls(address, &secrets, !skip)),
            found => Ok(found),
        }
    }

    /// Nobody says anything. The first place with a socket wins.
    fn unconfigured(&self) -> Result<Option<Endpoint>, Unusable> {
        if self.around.tls || self.around.tls_verify {
            return self.behind_tls(DEFAULT_TLS.into()).map(Some);
        }
        let runtime = self.root.join(format!("run/user/{}", self.around.uid));
        let mut places = vec![self.standard(), runtime.join("docker.sock")];
        if let Some(home) = &self.around.home {
            // Docker Desktop. Colima needs no line: it makes itself the current context.
            places.push(home.join(".docker/run/docker.sock"));
            places.push(home.join(".docker/desktop/docker.sock"));
        }
        if self.around.uid == 0 {
            places.push(self.root.join("run/podman/podman.sock"));
        }
        places.push(runtime.join("podman/podman.sock"));
        Ok(places.into_iter().find(|place| is_socket(place)).map(Endpoint::Unix))
    }

    fn standard(&self) -> PathBuf {
        self.root.join(DEFAULT_SOCKET)
    }
}

/// What a context's file says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Meta {
    name: String,
    #[serde(default)]
    endpoints: Endpoints,
}

#[derive(Deserialize, Default)]
struct Endpoints {
    docker: Option<Docker>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Docker {
    host: Option<String>,
    #[serde(rename = "SkipTLSVerify")]
    skip_tls_verify: Option<bool>,
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

/// An address behind TLS, with what there is in `dir`. Half a pair proves nothing, as the docker
/// command has it too.
fn tls(address: String, dir: &Path, verify: bool) -> Endpoint {
    let file = |name| Some(dir.join(name)).filter(|path: &PathBuf| path.exists());
    let (cert, key) = file("cert.pem").zip(file("key.pem")).unzip();
    let name = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    Endpoint::Tls { name, ca: file("ca.pem"), cert, key, verify, address }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A machine of its own in a temporary directory, which goes with it.
    struct Machine(PathBuf);

    impl Drop for Machine {
        fn drop(&mut self) {
            let _left_over = fs::remove_dir_all(&self.0);
        }
    }

    impl Machine {
        fn new(name: &str) -> Machine {
            let name = format!("lariat-endpoint-{}-{name}", std::process::id());
            let machine = Machine(std::env::temp_dir().join(name));
            fs::create_dir_all(machine.home()).unwrap();
            machine
        }

        fn home(&self) -> PathBuf {
            self.0.join("home")
        }

        /// What a host leaves of the environment.
        fn stripped(&self) -> Surroundings {
            Surroundings { home: Some(self.home()), uid: 1000, ..Surroundings::default() }
        }

        fn find(&self, around: &Surroundings) -> Result<Option<Endpoint>, String> {
            Search { around, root: &self.0 }.resolve().map_err(|e| e.to_string())
        }

        fn socket(&self, path: &str) -> Endpoint {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            drop(UnixListener::bind(&path).unwrap());
            Endpoint::Unix(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.home().join(".docker").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn context(&self, id: &str, name: &str, docker: &str) {
            let text =
                format!(r#"{{"Name":"{name}","Metadata":{{}},"Endpoints":{{"docker":{docker}}}}}"#);
            self.write(&format!("contexts/meta/{id}/meta.json"), &text);
        }
    }

    #[test]
    fn each_source_wins_over_the_next() {
        let machine = Machine::new("order");
        let tcp = |address: &str| Ok(Some(Endpoint::Tcp(address.into())));
        let default = machine.socket(DEFAULT_SOCKET);
        machine.context("1", "one", r#"{"Host":"tcp://one:1"}"#);
        machine.context("2", "two", r#"{"Host":"tcp://two:2"}"#);
        let mut around = machine.stripped();
        assert_eq!(machine.find(&around), Ok(Some(default.clone())));
        machine.write("config.json", r#"{"auths":{},"currentContext":"one"}"#);
        assert_eq!(machine.find(&around), tcp("one:1"));
        around.context = Some("two".into());
        assert_eq!(machine.find(&around), tcp("two:2"));
        around.context = Some("default".into());
        assert_eq!(machine.find(&around), Ok(Some(default.clone())));
        around.host = Some("three:3".into());
        assert_eq!(machine.find(&around), tcp("three:3"));
        around.host = Some(" ".into());
        assert_eq!(machine.find(&around), Ok(Some(default)));
        let config = Some(machine.home().join(".docker"));
        let elsewhere = Surroundings { config, uid: 1, ..Surroundings::default() };
        assert_eq!(machine.find(&elsewhere), tcp("one:1"), "without a home");
    }

    #[test]
    fn a_stripped_environment_finds_the_sockets_there_are() {
        let machine = Machine::new("sockets");
        let around = machine.stripped();
        assert_eq!(machine.find(&around), Ok(None));
        fs::create_dir_all(machine.0.join(DEFAULT_SOCKET)).unwrap();
        assert_eq!(machine.find(&around), Ok(None), "a directory is no socket");
        machine.socket("run/podman/podman.sock");
        assert_eq!(machine.find(&around), Ok(None), "that one is root's");
        // Each of these is preferred to the ones before it.
        for place in [
            "run/user/1000/podman/podman.sock",
            "home/.docker/desktop/docker.sock",
            "home/.docker/run/docker.sock",
            "run/user/1000/docker.sock",
        ] {
            let socket = machine.socket(place);
            assert_eq!(machine.find(&around), Ok(Some(socket)));
        }
        let root = Surroundings::default();
        let podman = machine.0.join("run/podman/podman.sock");
        assert_eq!(machine.find(&root), Ok(Some(Endpoint::Unix(podman))));
    }

    #[test]
    fn a_context_brings_its_own_secrets() {
        let machine = Machine::new("contexts");
        let dir = machine.home().join(".docker/contexts/tls/5ec/docker");
        for file in ["ca", "cert", "key"] {
            machine.write(&format!("contexts/tls/5ec/docker/{file}.pem"), "");
        }
        machine.context("5ec", "far", r#"{"Host":"tcp://[::1]:2376","SkipTLSVerify":false}"#);
        machine.context("a", "lax", r#"{"Host":"tcp://lax","SkipTLSVerify":true}"#);
        machine.context("b", "own", r#"{"Host":""}"#);
        machine.context("c", "pods", "null");
        let find = |name: &str| {
            let around = Surroundings { context: Some(name.into()), ..machine.stripped() };
            machine.find(&around)
        };
        let file = |name| Some(dir.join(name));
        let far = Endpoint::Tls {
            address: "[::1]:2376".into(),
            name: "::1".into(),
            ca: file("ca.pem"),
            cert: file("cert.pem"),
            key: file("key.pem"),
            verify: true,
        };
        assert_eq!(find("far"), Ok(Some(far)));
        assert_eq!(find("lax"), Ok(Some(tls("lax:2375".into(), Path::new("/nowhere"), false))));
        assert_eq!(find("own"), Ok(Some(Endpoint::Unix(machine.0.join(DEFAULT_SOCKET)))));
        assert!(find("pods").unwrap_err().contains("other than Docker"));
        assert!(find("gone").unwrap_err().contains("docker context ls"));
        machine.write("contexts/meta/d/meta.json", "{");
        assert!(find("gone").unwrap_err().contains("meta/d/meta.json"));
        let homeless = Surroundings { context: Some("far".into()), ..Surroundings::default() };
        assert!(machine.find(&homeless).unwrap_err().contains("set HOME"));
    }

    #[test]
    fn variables_turn_on_tls() {
        let machine = Machine::new("tls");
        let docker = machine.home().join(".docker");
        let around = Surroundings { tls_verify: true, ..machine.stripped() };
        assert!(machine.find(&around).unwrap_err().contains("DOCKER_CERT_PATH"));
        machine.write("ca.pem", "");
        machine.write("cert.pem", "");
        let local = tls(DEFAULT_TLS.into(), &docker, true);
        assert!(matches!(&local, Endpoint::Tls { cert: None, ca: Some(_), .. }), "half a pair");
        assert_eq!(machine.find(&around), Ok(Some(local)));
        let host = Some("tcp://far:7".into());
        let lax = Surroundings { host: host.clone(), tls: true, ..machine.stripped() };
        assert_eq!(machine.find(&lax), Ok(Some(tls("far:7".into(), &docker, false))));
        let cert_path = Some(docker.join("x"));
        let elsewhere = Surroundings { host, cert_path, ..around.clone() };
        assert!(machine.find(&elsewhere).unwrap_err().contains(".docker/x/ca.pem"));
        let socket = Surroundings { host: Some("unix:///s".into()), ..around };
        assert_eq!(machine.find(&socket), Ok(Some(Endpoint::Unix("/s".into()))));
    }

    #[test]
    fn a_damaged_configuration_says_nothing() {
        let machine = Machine::new("damaged");
        let socket = machine.socket(DEFAULT_SOCKET);
        for text in ["", "{", r#"{"currentContext": 1}"#] {
            machine.write("config.json", text);
            assert_eq!(machine.find(&machine.stripped()), Ok(Some(socket.clone())));
        }
    }
}
