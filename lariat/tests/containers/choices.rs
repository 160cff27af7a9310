//! What a user can choose: what is kept, how many there may be, which engine is meant.

use crate::PATIENCE;
use crate::ends::{Death, PACE, assert_ended, assert_ended_within, time_for, together};
use crate::engine::{Engine, Kind};
use crate::eyes::{Bystanders, DEAF, ask};
use crate::kinds::shell;
use crate::machine::{at_times, run};
use crate::session::{Session, Start};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

/// Where a server that prints `$DOCKER_HOST` first finds its engine.
#[track_caller]
pub(crate) fn socket_of(session: &mut Session) -> PathBuf {
    let said = session.hear();
    let path = said.strip_prefix("unix://");
    PathBuf::from(path.unwrap_or_else(|| panic!("no socket: {said}\n{}", session.stderr())))
}

/// A server that says where its engine is, and waits.
pub(crate) const WAITS: &str = "echo \"$DOCKER_HOST\"; exec cat";

/// What a container's making looks like on the wire.
pub(crate) fn deaf_box(token: &str) -> Value {
    let limits = json!({"NetworkMode": "none"});
    let labels = json!({"trial": token});
    json!({"Image": "bb:latest", "Cmd": ["sh", "-c", DEAF], "Labels": labels, "HostConfig": limits})
}

/// The label that keeps, and the option that leaves all alone.
pub(crate) fn kept() {
    let engine = Engine::start(Kind::Docker);
    let ended = |session: &Session| {
        session.assert_tree_gone(PATIENCE);
        session.assert_nobody();
    };
    let running = |name: String| {
        let one = engine.container(&name);
        assert!(one.is_some_and(|one| one.state == "running"), "{name} did not stay");
    };
    together(vec![
        (
            "the label",
            Box::new(|| {
                let keep = "--label dev.lariat.keep=true";
                let script = format!(
                    "box 'run -d' {keep} --name kept-$T
                box 'run -d' --label dev.lariat.keep=false --name lost-$T
                docker volume create {keep} kept-vol-$T >&2
                docker volume create lost-vol-$T >&2
                docker network create {keep} kept-net-$T >&2
                docker network create lost-net-$T >&2
                echo up
                exec cat"
                );
                let mut session = Start::lariat(&engine).script(&shell(&script));
                session.expect("up");
                Death::Eof.strike(&engine, &mut session);
                ended(&session);
                let token = session.token.clone();
                running(format!("kept-{token}"));
                let gone = |name: &str| engine.container(&format!("{name}-{token}")).is_none();
                assert!(at_times(PACE, PATIENCE, || gone("lost")));
                assert!(engine.volumes().contains_key(&format!("kept-vol-{token}")));
                assert!(!engine.volumes().contains_key(&format!("lost-vol-{token}")));
                assert!(engine.networks().contains_key(&format!("kept-net-{token}")));
                assert!(!engine.networks().contains_key(&format!("lost-net-{token}")));
            }),
        ),
        (
            "the option",
            Box::new(|| {
                let start = Start::lariat(&engine).options(&["--containers", "leave"]);
                let script = "box 'run -d' --name left-$T; echo up; exec cat";
                let mut session = start.script(&shell(script));
                session.expect("up");
                Death::Eof.strike(&engine, &mut session);
                ended(&session);
                running(format!("left-{}", session.token));
            }),
        ),
    ]);
}

/// The one too many gets a clear answer; who makes room may go on; a race gains nothing.
pub(crate) fn limit() {
    let engine = Engine::start(Kind::Docker);
    let start = || Start::lariat(&engine).options(&["--max-containers", "3"]);
    let count = |session: &Session| engine.containers_with("trial", Some(&session.token)).len();
    together(vec![
        (
            "by the command",
            Box::new(|| {
                let script = "for i in 1 2 3; do box 'run -d' --name number-$i-$T; done
                if box create 2>refusal; then echo made; fi
                docker rm -f number-2-$T >&2
                box 'run -d'
                echo up
                exec cat";
                let mut session = start().script(&shell(script));
                session.expect("up");
                let refusal = fs::read_to_string(session.path("refusal")).unwrap();
                assert!(refusal.contains("lariat") && refusal.contains('3'), "{refusal}");
                assert_eq!(count(&session), 3);
                Death::Eof.strike(&engine, &mut session);
                assert_ended(&engine, &session);
            }),
        ),
        (
            "on the wire, in a race",
            Box::new(|| {
                let start = start();
                let mut session = start.script(WAITS);
                let socket = socket_of(&mut session);
                let body = deaf_box(&start.token);
                let nothing = json!({"Image": "no-such-image"});
                for _ in 0..5 {
                    // What the engine did not make does not count.
                    let answer =
                        ask(&socket, "POST", "/containers/create", Some(&nothing)).unwrap();
                    assert_eq!(answer.0, 404);
                }
                let answers: Vec<(u16, Vec<u8>)> = thread::scope(|scope| {
                    let asks = [(); 10].map(|()| {
                        let (socket, body) = (&socket, &body);
                        scope.spawn(|| ask(socket, "POST", "/v1.41/containers/create", Some(body)))
                    });
                    asks.into_iter().map(|ask| ask.join().unwrap().unwrap()).collect()
                });
                let made = answers.iter().filter(|(code, _)| *code == 201).count();
                assert_eq!((made, count(&session)), (3, 3), "{answers:?}");
                for (code, said) in answers.iter().filter(|(code, _)| *code != 201) {
                    let said: Value = serde_json::from_slice(said).unwrap();
                    let message = said["message"].as_str().unwrap();
                    assert!(
                        (400..500).contains(code) && message.starts_with("lariat:"),
                        "{code} {said}"
                    );
                }
                Death::Wrapper.strike(&engine, &mut session);
                assert_ended(&engine, &session);
            }),
        ),
    ]);
}

/// As many as one call once left, or nearly: they all go, and quickly.
pub(crate) fn many() {
    const MANY: usize = 20;
    let engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 3, "sh");
    let start = Start::lariat(&engine);
    let mut session = start.script(WAITS);
    let socket = socket_of(&mut session);
    let body = deaf_box(&start.token);
    for _ in 0..MANY {
        let (code, made) = ask(&socket, "POST", "/containers/create", Some(&body)).unwrap();
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&made));
        let made: Value = serde_json::from_slice(&made).unwrap();
        let path = format!("/containers/{}/start", made["Id"].as_str().unwrap());
        assert_eq!(ask(&socket, "POST", &path, None).unwrap().0, 204);
    }
    Death::Wrapper.strike(&engine, &mut session);
    let receipt = assert_ended_within(time_for(MANY), &engine, &session);
    let tally = json!({"seen": MANY, "removed": MANY});
    assert_eq!(receipt["containers"], tally, "{receipt}");
    bystanders.assert_untouched(&engine);
}

/// The engine is the one that the docker command would have spoken to.
pub(crate) fn found() {
    let engine = Engine::start(Kind::Docker);
    let host = format!("host=unix://{}", engine.socket().display());
    let docker = |config: &str, words: &[&str]| {
        let mut docker = Command::new("docker");
        docker.args(words).env_remove("DOCKER_HOST").env("DOCKER_CONFIG", engine.path(config));
        fs::create_dir_all(engine.path(config)).unwrap();
        run(&mut engine.client(&docker));
    };
    let holds = |start: Start<'_>| {
        let mut session = start.script(&shell("box 'run -d'; echo up; exec cat"));
        session.expect("up");
        let made = engine.containers_with("trial", Some(&session.token));
        assert!(made.iter().all(|one| one.labels.contains_key("dev.lariat.session")), "{made:?}");
        Death::Eof.strike(&engine, &mut session);
        let receipt = assert_ended(&engine, &session);
        assert_eq!(receipt["containers"], json!({"seen": 1, "removed": 1}), "{receipt}");
    };
    let start = || Start::lariat(&engine).env("DOCKER_HOST", None);
    together(vec![
        (
            "by DOCKER_CONTEXT",
            Box::new(|| {
                docker("named", &["context", "create", "mine", "--docker", &host]);
                let config = engine.path("named").display().to_string();
                let start = start().env("DOCKER_CONFIG", Some(&config));
                holds(start.env("DOCKER_CONTEXT", Some("mine")));
            }),
        ),
        (
            "by the current context",
            Box::new(|| {
                docker("current", &["context", "create", "mine", "--docker", &host]);
                docker("current", &["context", "use", "mine"]);
                let config = engine.path("current").display().to_string();
                holds(start().env("DOCKER_CONFIG", Some(&config)));
            }),
        ),
        (
            "in the home directory",
            Box::new(|| {
                docker("home/.docker", &["context", "create", "mine", "--docker", &host]);
                docker("home/.docker", &["context", "use", "mine"]);
                let home = engine.path("home").display().to_string();
                holds(start().env("DOCKER_CONFIG", None).env("HOME", Some(&home)));
            }),
        ),
        (
            "where it usually is",
            Box::new(|| {
                // For the session's eyes only: the machine may have an engine of its own there.
                let usual = engine.path("usual");
                fs::create_dir(&usual).unwrap();
                symlink(engine.socket(), usual.join("docker.sock")).unwrap();
                let mut start = start();
                start.run = Some(usual);
                holds(start);
            }),
        ),
    ]);
}
