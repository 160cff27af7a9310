//! Real engines of the test's own: Debian's dockerd, the same behind TCP and TLS in another network
//! namespace, and Podman's service. Each has one image, `bb:latest`, made from busybox.

use crate::PATIENCE;
use crate::eyes;
use crate::machine::{on_path, run};
use crate::room::Room;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use trials::until;

/// The name of Podman's directory for what runs has at most 50 bytes, a socket's 107: both are below a room's.
const LONGEST: usize = 28;

/// A program that needs libraries names what loads them.
const LOADER: &[u8] = b"/ld-linux";

/// Where the far engine listens, and where its clients are.
const FAR: &str = "10.77.0.2";
const NEAR: &str = "10.77.0.1";

/// What the machine says of other engines, and of authorities that would replace the test's own.
const OUTSIDE: [&str; 6] = [
    "CURL_CA_BUNDLE",
    "DOCKER_CERT_PATH",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "REQUESTS_CA_BUNDLE",
];

/// Which engine, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Docker,
    /// Docker over TCP, with certificates on both sides.
    Far,
    Podman,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Docker, Kind::Far, Kind::Podman];

    /// Why it cannot be started here.
    pub(crate) fn missing(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("an engine of one's own needs root".into());
        }
        let common = ["busybox", "docker", "unshare", "ip", "tar"];
        let own: &[&str] = match self {
            Kind::Docker => &["dockerd", "containerd", "runc"],
            Kind::Far => &["dockerd", "containerd", "runc", "openssl", "nsenter"],
            Kind::Podman => &["podman", "conmon", "runc"],
        };
        if let Some(gone) = common.iter().chain(own).find(|program| on_path(program).is_empty()) {
            return Some(format!("{gone} is not installed"));
        }
        if std::env::temp_dir().as_os_str().len() > LONGEST {
            return Some("the temporary directory's name is too long for engines below it".into());
        }
        let busybox = fs::read(&on_path("busybox")[0]).unwrap_or_default();
        let is_static = !busybox.windows(LOADER.len()).any(|part| part == LOADER);
        (!is_static).then(|| "busybox is not static (Debian's busybox-static is)".into())
    }
}

/// An engine that lives as long as its value.
pub(crate) struct Engine {
    pub(crate) kind: Kind,
    room: Room,
    /// Holds the network namespace of the clients of a far engine.
    near: Option<Child>,
}

impl Engine {
    /// Starts one, with its image.
    pub(crate) fn start(kind: Kind) -> Engine {
        let mut room = Room::new(|dir, _| match kind {
            Kind::Docker => dockerd(dir),
            Kind::Far => {
                let mut command = dockerd(dir);
                command.extend(["-H".into(), format!("tcp://{FAR}:2376"), "--tlsverify".into()]);
                for (option, file) in [("cacert", "ca"), ("cert", "server"), ("key", "server-key")]
                {
                    let file = dir.join("certs").join(format!("{file}.pem"));
                    command.extend([format!("--tls{option}"), file.display().to_string()]);
                }
                command
            }
            Kind::Podman => podman(dir),
        });
        let near = (kind == Kind::Far).then(|| {
            certificates(&room.path("certs"));
            wire(room.inside())
        });
        room.start();
        let engine = Engine { kind, room, near };
        engine.await_answer();
        engine.import();
        engine
    }

    /// The socket at which it is looked at. Never through anything of Lariat's.
    pub(crate) fn socket(&self) -> PathBuf {
        self.room.path("docker.sock")
    }

    /// A path in the engine's directory, for what should go with it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.room.path(name)
    }

    /// Sets a command up as a client of this engine: where it stands, and what it is told.
    pub(crate) fn client(&self, command: &Command) -> Command {
        let mut client = match &self.near {
            None => Command::new(command.get_program()),
            Some(near) => {
                let mut client = Command::new("nsenter");
                client.arg(format!("--net=/proc/{}/ns/net", near.id()));
                client.arg(command.get_program());
                client
            }
        };
        client.args(command.get_args());
        if let Some(dir) = command.get_current_dir() {
            client.current_dir(dir);
        }
        for name in OUTSIDE {
            client.env_remove(name);
        }
        client.env("DOCKER_CONFIG", self.path("config"));
        match self.kind {
            Kind::Far => {
                client.env("DOCKER_HOST", format!("tcp://{FAR}:2376"));
                client.env("DOCKER_TLS_VERIFY", "1").env("DOCKER_CERT_PATH", self.path("certs"));
            }
            Kind::Docker | Kind::Podman => {
                client.env("DOCKER_HOST", format!("unix://{}", self.socket().display()));
            }
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => client.env(name, value),
                None => client.env_remove(name),
            };
        }
        client
    }

    /// Ends the engine, not its containers.
    pub(crate) fn stop(&mut self) {
        self.room.stop();
    }

    /// Ends it without a word, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.room.kill();
    }

    /// Starts it again, with all that it had.
    pub(crate) fn start_again(&mut self) {
        self.room.start();
        self.await_answer();
    }

    #[track_caller]
    fn await_answer(&self) {
        let socket = self.socket();
        let answers =
            || eyes::ask(&socket, "GET", "/_ping", None).is_ok_and(|(code, _)| code == 200);
        assert!(until(PATIENCE, answers), "no engine:\n{}", self.room.said("log"));
    }

    /// Busybox and its links are all the image there is.
    fn import(&self) {
        let image = self.path("image");
        fs::create_dir_all(image.join("bin")).unwrap();
        fs::copy(&on_path("busybox")[0], image.join("bin/busybox")).unwrap();
        let applets = run(Command::new("busybox").arg("--list"));
        for name in applets.lines().filter(|name| *name != "busybox") {
            symlink("busybox", image.join("bin").join(name)).unwrap();
        }
        let tar = self.path("image.tar");
        run(Command::new("tar").arg("-C").arg(&image).arg("-cf").arg(&tar).arg("."));
        run(&mut self.client(Command::new("docker").arg("import").arg(&tar).arg("bb:latest")));
        fs::create_dir_all(self.path("config")).unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(near) = &mut self.near {
            // It only waits for its stdin to end, and the network goes with it.
            drop(near.stdin.take());
            near.wait().unwrap();
        }
    }
}

/// Containers go on while the daemon is away: that is when one has to be looked for later.
fn dockerd(dir: &Path) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let socket = format!("unix://{}", at("docker.sock"));
    let words = [
        ["--data-root", &at("data")],
        ["--exec-root", &at("exec")],
        ["--pidfile", &at("pid")],
        ["--config-file", &at("daemon.json")],
        ["-H", &socket],
        ["--storage-driver", "overlay2"],
        ["--exec-opt", "native.cgroupdriver=cgroupfs"],
    ];
    fs::write(dir.join("daemon.json"), "{}").unwrap();
    let switches = ["--iptables=false", "--bridge=none", "--live-restore"];
    let words = words.as_flattened().iter().chain(&switches);
    [&"dockerd"].into_iter().chain(words).map(ToString::to_string).collect()
}

/// The default runtime wants limits and control groups that not every machine grants.
fn podman(dir: &Path) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let settings = "[containers]\n\
        default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
        [engine]\n\
        cgroup_manager = \"cgroupfs\"\n\
        events_logger = \"file\"\n\
        runtime = \"runc\"\n";
    fs::write(dir.join("containers.conf"), settings).unwrap();
    let settings = format!("CONTAINERS_CONF={}", at("containers.conf"));
    let socket = format!("unix://{}", at("docker.sock"));
    let words = [
        ["env", &settings],
        ["podman", "--storage-driver=overlay"],
        ["--root", &at("data")],
        ["--runroot", &at("exec")],
        ["system", "service"],
        ["-t", "0"],
    ];
    words.as_flattened().iter().map(ToString::to_string).chain([socket]).collect()
}

/// A network for the clients of a far engine and the cable between the two; nobody else's is touched.
fn wire(engine: u32) -> Child {
    let script = format!(
        "set -e
        ip link set lo up
        ip link add near type veth peer name far netns {engine}
        ip addr add {NEAR}/30 dev near
        ip link set near up
        nsenter --net=/proc/{engine}/ns/net ip addr add {FAR}/30 dev far
        nsenter --net=/proc/{engine}/ns/net ip link set far up
        echo up
        read -r end || exit 0"
    );
    let mut near = Command::new("unshare");
    near.args(["--net", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut near = near.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(near.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n", "no network for the clients");
    near
}

/// An authority, a server that is its address, and a client, as a directory that the docker command
/// takes.
fn certificates(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        run(command.args(words.split(' ')).current_dir(dir));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let authority = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign";
    openssl(&format!(
        "req -x509 {key} -keyout ca-key.pem -out ca.pem -days 2 -subj /CN=authority {authority}"
    ));
    let certify = |name: &str, file: &str, extensions: &str| {
        let file_key = if file == "server" { "server-key" } else { "key" };
        openssl(&format!("req {key} -keyout {file_key}.pem -out {file}.csr -subj /CN={name}"));
        fs::write(dir.join("extensions"), extensions).unwrap();
        openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
             -out {file}.pem -days 2 -extfile extensions"
        ));
    };
    certify("engine", "server", &format!("subjectAltName=IP:{FAR}\nextendedKeyUsage=serverAuth\n"));
    certify("client", "cert", "extendedKeyUsage=clientAuth\n");
}
