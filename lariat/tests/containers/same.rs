//! The docker command does the same through Lariat as without it: each script is played twice, and
//! must print the same and end the same.

use crate::PATIENCE;
use crate::ends::{Death, PACE, assert_ended};
use crate::engine::{Engine, Kind};
use crate::eyes::Bystanders;
use crate::machine::{at_times, on_path, run, search_path};
use crate::session::Start;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/terminal.py");

/// Memory that the proxy may have, however much goes through it.
const MEMORY: u64 = 48 << 20;

/// Scripts with nothing in their output that differs by chance. `$N` is a name that does.
pub(crate) const SCRIPTS: [(&str, &str); 8] = [
    (
        "exit-codes",
        "run() { docker run --rm --network none \"$@\"; echo \"code $?\"; }
        run bb:latest true
        run bb:latest sh -c 'exit 7'
        run bb:latest sh -c 'kill -9 $$'
        run bb:latest no-such-program 2>/dev/null
        run no-such-image 2>/dev/null
        docker run -d --network none --name $N bb:latest sleep 1000 >/dev/null
        inside() { docker exec \"$@\"; echo \"code $?\"; }
        inside $N sh -c 'exit 3'
        inside $N no-such-program 2>/dev/null
        echo question | inside -i $N cat
        inside -d $N true
        docker kill $N >/dev/null
        docker wait $N
        inside $N true 2>/dev/null
        inside no-such-container true 2>/dev/null
        docker rm $N >/dev/null
        exit 5",
    ),
    (
        "streams",
        "docker run --rm --network none bb:latest sh -c 'echo out; echo err >&2' 2>err
        sed 's/^/on stderr: /' err
        run() { docker run --rm -i --network none --log-driver none bb:latest \"$@\"; }
        yes 'a line of some length' | head -c 8000000 | run md5sum
        run sh -c 'yes more of it | head -c 8000000' </dev/null | md5sum",
    ),
    (
        "logs-follow",
        // The container goes on when the first line has been read: nobody may hold it back.
        "docker run -d --network none --name $N bb:latest \
            sh -c 'echo first; until [ -e /go ]; do sleep 0.1; done; echo second; exit 4' >/dev/null
        docker logs -f $N | {
            read -r line
            echo \"read $line\"
            docker exec $N touch /go
            cat
        }
        docker wait $N
        docker rm $N >/dev/null",
    ),
    (
        "events",
        "mkfifo happens
        docker events --since 1 --filter container=$N --format '{{.Action}}' >happens &
        watch=$!
        (docker run --network none --name $N bb:latest true; docker rm $N) >/dev/null
        while read -r what; do echo \"$what\"; [ \"$what\" != destroy ] || break; done <happens
        kill $watch
        wait $watch 2>/dev/null
        true",
    ),
    (
        "attach",
        "docker create -i --network none --name $N bb:latest sh -c 'read -r x; echo got $x; exit 6' \
            >/dev/null
        echo something | docker start -ai $N
        echo \"code $?\"
        docker rm $N >/dev/null",
    ),
    (
        "copies",
        "docker create --network none --name $N bb:latest true >/dev/null
        head -c 20000000 /dev/zero | tr '\\0' x >big
        docker cp big $N:/big
        docker cp $N:/big - | tar -xO | md5sum
        docker export $N | tar -t | sort | md5sum
        docker diff $N
        docker rm $N >/dev/null",
    ),
    (
        "build-classic",
        "mkdir context
        head -c 5000000 /dev/zero >context/zeros
        printf 'FROM bb:latest\\nCOPY zeros /zeros\\nRUN md5sum /zeros >/sum\\n' >context/Dockerfile
        DOCKER_BUILDKIT=0 docker build -q --network none -t $N context >/dev/null 2>err || cat err
        docker run --rm --network none $N cat /sum
        printf 'FROM bb:latest\\nRUN exit 9\\n' >context/Dockerfile
        DOCKER_BUILDKIT=0 docker build --network none context >/dev/null 2>&1
        echo \"code $?\"
        docker rmi $N >/dev/null",
    ),
    (
        "small-things",
        "docker version --format '{{.Server.Version}} {{.Server.APIVersion}}'
        docker images --format '{{.Repository}}:{{.Tag}}' bb
        docker volume create $N >/dev/null && docker volume ls -q --filter name=$N | wc -l
        docker volume rm $N >/dev/null
        docker run -d --network none --name $N bb:latest sleep 1000 >/dev/null
        docker top $N -o comm
        docker stats --no-stream --format '{{.PIDs}}' $N
        docker run --network none --name $N bb:latest true 2>&1 | grep -o 'is already in use'
        docker stop -t 0 $N >/dev/null
        docker inspect -f '{{.State.ExitCode}} {{index .Config.Labels \"own\"}}' $N
        docker rm $N >/dev/null",
    ),
];

/// What every docker command on this machine plays: they differ in age, and so in how they speak.
/// The rest is played by the first one.
const BY_ALL: [&str; 4] = ["streams", "logs-follow", "events", "attach"];

/// One of the scripts, by name.
pub(crate) fn script(name: &'static str, script: &'static str) {
    let engine = Engine::start(Kind::Docker);
    let players = if BY_ALL.contains(&name) { usize::MAX } else { 1 };
    for docker in on_path("docker").into_iter().take(players) {
        both(&engine, &docker, script);
    }
}

/// Another engine, another way to it: what flows in both directions, and ends in each by itself.
pub(crate) fn elsewhere(kind: Kind) {
    let engine = Engine::start(kind);
    let docker = &on_path("docker")[0];
    // Podman calls what happens by other names.
    let flows = |name: &str| BY_ALL.contains(&name) && name != "events";
    for (_, script) in SCRIPTS.iter().filter(|(name, _)| flows(name)) {
        both(&engine, docker, script);
    }
}

/// A large image, by one of them: the proxy stays small.
pub(crate) fn load() {
    let engine = Engine::start(Kind::Docker);
    let script = "docker create --network none --name $N bb:latest true >/dev/null
        head -c 60000000 /dev/urandom >big
        docker cp big $N:/big
        docker commit $N $N:big >/dev/null
        docker rm $N >/dev/null
        docker save -o image.tar $N:big
        docker rmi $N:big >/dev/null
        docker load -q -i image.tar | sed \"s/$N/it/\"
        docker run --rm --network none --log-driver none $N:big cat /big | cmp - big && echo same
        docker rmi $N:big >/dev/null";
    both(&engine, &on_path("docker")[0], script);
}

/// BuildKit, by a command that needs no plugin for it.
pub(crate) fn buildkit(docker: &Path) {
    let engine = Engine::start(Kind::Docker);
    let script = "mkdir context
        head -c 5000000 /dev/zero >context/zeros
        printf 'FROM bb:latest\\nCOPY zeros /zeros\\nRUN md5sum /zeros >/sum\\n' >context/Dockerfile
        docker build -q --network none -t $N context >/dev/null 2>err || cat err
        docker run --rm --network none $N cat /sum
        printf 'FROM bb:latest\\nRUN exit 9\\n' >context/Dockerfile
        docker build --network none context >/dev/null 2>&1
        echo \"code $?\"
        docker rmi $N >/dev/null";
    both(&engine, docker, &format!("export DOCKER_BUILDKIT=1\n{script}"));
}

/// The docker command that has BuildKit in it, or why there is none.
pub(crate) fn with_buildkit() -> Result<PathBuf, String> {
    let has = |docker: &PathBuf| {
        let version = run(Command::new(docker).arg("--version"));
        let mut words = version.split(|c: char| !c.is_ascii_digit());
        let major = words.find_map(|word| word.parse::<u32>().ok());
        major.is_some_and(|major| (19..23).contains(&major))
    };
    let found = on_path("docker").into_iter().find(has);
    found.ok_or_else(|| "no docker command with BuildKit in it (19 to 22)".into())
}

/// A terminal: the size arrives, and its change.
pub(crate) fn terminal() {
    let engine = Engine::start(Kind::Docker);
    let script = format!(
        "docker run -d --network none --name $N bb:latest sleep 1000 >/dev/null
        python3 {TERMINAL} docker exec -it $N sh
        docker rm -f $N >/dev/null"
    );
    for docker in on_path("docker") {
        let said = both(&engine, &docker, &script);
        assert_eq!(said, "24 80\n50 132\nleft with 5\n");
    }
}

/// Plays the script without Lariat and with it. Gives what both said.
fn both(engine: &Engine, docker: &Path, script: &str) -> String {
    let mut proxied = Vec::new();
    let [bare, through] = [false, true].map(|through| {
        let start = if through { Start::lariat(engine) } else { Start::bare(engine) };
        let first = docker.parent().unwrap().to_owned();
        let usual = search_path();
        let path = [first].into_iter().chain(std::env::split_paths(&usual));
        let path = std::env::join_paths(path).unwrap().into_string().unwrap();
        let start = start.env("PATH", Some(&path));
        let script = script.replace("$N", &start.token);
        let mut session = start.script(&format!("({script}) >said; echo $? >code"));
        let mut peak = 0;
        let ended = at_times(PACE, PATIENCE * 2, || {
            peak = peak.max(session.proxy().map_or(0, memory));
            session.has_ended()
        });
        let way = if through { "with Lariat" } else { "without Lariat" };
        let so_far = fs::read_to_string(session.path("said")).unwrap_or_default();
        assert!(ended, "no end {way}: {so_far}\non stderr: {}", session.stderr());
        assert!(peak < MEMORY, "the proxy has taken {peak} bytes");
        proxied.push(peak > 0);
        let read = |name: &str| {
            let read = fs::read_to_string(session.path(name));
            read.unwrap_or_else(|_| panic!("no {name}; on stderr: {}", session.stderr()))
        };
        (read("code"), read("said"))
    });
    assert_eq!(bare, through, "without Lariat, and with it: {}", docker.display());
    assert!(!bare.1.is_empty(), "nothing was said");
    assert_eq!(proxied, [false, true], "whether there was a proxy");
    bare.1
}

/// The most memory that a process has had, other than the engine's.
fn memory(process: trials::Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(1) * 1024
}

/// Why compose cannot be tried: it is a program of its own, or a plugin.
pub(crate) fn missing_compose() -> Option<String> {
    let gone = on_path("docker-compose").is_empty();
    gone.then(|| "docker-compose is not installed".into())
}

/// Compose makes networks, volumes and containers; all of them go.
pub(crate) fn compose() {
    let engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 2, "sh");
    let volumes = engine.volumes().len();
    let start = Start::lariat(&engine);
    let token = &start.token;
    let service = format!(
        "image: bb:latest
    command: ['sh', '-c', 'trap \"\" TERM; while :; do sleep 1; done']
    labels: {{trial: {token}}}
    volumes: ['data:/data']"
    );
    let file = format!(
        "version: '3'
services:
  one:
    {service}
  two:
    {service}
    depends_on: [one]
volumes:
  data:
    labels: {{trial: {token}}}
networks:
  default:
    labels: {{trial: {token}}}
"
    );
    let folder = engine.path("compose");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("docker-compose.yml"), file).unwrap();
    let script = format!(
        "docker-compose -p $T -f {}/docker-compose.yml up -d >&2; echo $?; exec cat",
        folder.display()
    );
    let mut session = start.script(&script);
    session.expect("0");
    let all = engine.marked("trial", Some(token));
    assert_eq!(all.len(), 4, "{all:?}");
    Death::Wrapper.strike(&engine, &mut session);
    let receipt = assert_ended(&engine, &session);
    assert_eq!(receipt["containers"]["removed"], 2, "{receipt}");
    bystanders.assert_untouched(&engine);
    assert_eq!(engine.volumes().len(), volumes);
}
