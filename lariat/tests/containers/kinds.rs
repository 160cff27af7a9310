//! Containers of every kind that the docker command can make, and the command itself as the server.

use crate::ends::{Death, PACE, assert_ended, assert_ended_within, time_for, together};
use crate::engine::{Engine, Kind};
use crate::eyes::{Bystanders, DEAF};
use crate::machine::at_times;
use crate::session::{Session, Start};
use crate::{PATIENCE, PROMISE};

/// A shell function for servers: `box HOW… -- more options` makes a deaf container of the trial.
pub(crate) fn shell(script: &str) -> String {
    format!(
        "set -e
        box() {{
            how=$1
            shift
            docker $how --label trial=$T --network none \"$@\" bb:latest sh -c '{DEAF}' >&2
        }}
        {script}"
    )
}

/// What a server does with containers before it waits.
const KINDS: [(&str, &str); 12] = [
    ("rm", "box 'run -d' --rm --name rm-$T"),
    ("init", "box 'run -d' --init --name init-$T"),
    ("restart-always", "box 'run -d' --restart=always --name restart-always-$T"),
    ("nameless", "box 'run -d'"),
    ("paused", "box 'run -d' --name paused-$T; docker pause paused-$T >&2"),
    ("never-started", "box create --name never-started-$T"),
    ("never-started-rm", "box create --rm --name never-started-rm-$T"),
    ("exited", "docker run --label trial=$T --network none --name exited-$T bb:latest true"),
    (
        "crashing",
        "docker run -d --label trial=$T --network none --restart=always --name crashing-$T \
         bb:latest false >&2",
    ),
    ("renamed", "box 'run -d' --name before-$T; docker rename before-$T renamed-$T"),
    ("volumes", "box 'run -d' --name volumes-$T -v /nameless -v named-$T:/named"),
    ("shares", "box 'run -d' --name shares-$T --volumes-from volumes-$T --pid container:rm-$T"),
];

/// All kinds in one session.
pub(crate) fn kinds(death: Death) {
    let engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 3, "sh");
    let volumes = engine.volumes().len();
    let script = KINDS.map(|(_, script)| script).join("\n");
    let script = shell(&format!("{script}\necho up\nexec cat"));
    let mut session = Start::lariat(&engine).script(&script);
    session.expect("up");
    assert_eq!(engine.containers_with("trial", Some(&session.token)).len(), KINDS.len());
    death.strike(&engine, &mut session);
    let receipt = assert_ended_within(time_for(KINDS.len()), &engine, &session);
    assert_eq!(receipt["containers"]["seen"], KINDS.len(), "{receipt}");
    bystanders.assert_untouched(&engine);
    // The one with a name was not created as a volume but by a container, so it has no label: it
    // stays, as it does without Lariat. The one without goes with its container.
    let named = format!("named-{}", session.token);
    let left: Vec<String> = engine.volumes().into_keys().filter(|name| *name == named).collect();
    assert_eq!(engine.volumes().len(), volumes + left.len(), "{:?}", engine.volumes());
}

/// The docker command given as the server's.
pub(crate) fn direct() {
    let engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 2, "docker");
    let start = |what: &[&str]| {
        let start = Start::lariat(&engine);
        let label = format!("trial={}", start.token);
        let words = ["docker", "run", "--label", &label, "--network", "none"];
        let words = words.iter().chain(what).map(ToString::to_string);
        start.server(&words.collect::<Vec<_>>())
    };
    let deaf = |death: Death, options: &[&str]| {
        let what = [options, &["-i", "bb:latest", "sh", "-c", DEAF]].concat();
        let mut session = start(&what);
        session.expect("up");
        death.strike(&engine, &mut session);
        assert_ended(&engine, &session);
    };
    together(vec![
        (
            "it answers, and leaves at the end of stdin",
            Box::new(|| {
                let mut session = start(&["-i", "bb:latest", "cat"]);
                session.say("hello");
                session.expect("hello");
                session.hang_up();
                assert_eq!(session.code(), Some(0));
                assert_ended(&engine, &session);
            }),
        ),
        (
            "its exit code",
            Box::new(|| {
                let mut session = start(&["--rm", "bb:latest", "sh", "-c", "exit 7"]);
                assert_eq!(session.code(), Some(7));
                assert_ended(&engine, &session);
            }),
        ),
        ("eof, deaf", Box::new(|| deaf(Death::Eof, &[]))),
        ("eof, deaf, --rm", Box::new(|| deaf(Death::Eof, &["--rm"]))),
        ("sigterm, deaf, --init", Box::new(|| deaf(Death::Term, &["--init"]))),
        ("sigkill, deaf, --rm", Box::new(|| deaf(Death::Wrapper, &["--rm"]))),
        ("sigkill of the command, deaf", Box::new(|| deaf(Death::Command, &[]))),
    ]);
    bystanders.assert_untouched(&engine);
}

/// A server whose last act is a container, and one that never stops making them.
pub(crate) fn born_late() {
    let engine = Engine::start(Kind::Docker);
    let stays_empty = |session: &Session| {
        let left = || engine.marked("trial", Some(&session.token));
        assert!(!at_times(PACE, PROMISE / 2, || !left().is_empty()), "came later: {:?}", left());
    };
    together(vec![
        (
            "on sigterm",
            Box::new(|| {
                let start = Start::lariat(&engine).options(&["--term-grace", "20s"]);
                let script =
                    "trap 'box \"run -d\"; exit 3' TERM; echo up; while :; do sleep 0.1; done";
                let mut session = start.script(&shell(script));
                session.expect("up");
                Death::Term.strike(&engine, &mut session);
                assert_eq!(session.code(), Some(3), "{}", session.stderr());
                let receipt = assert_ended(&engine, &session);
                assert_eq!(receipt["containers"]["removed"], 1, "{receipt}");
            }),
        ),
        (
            "without end",
            Box::new(|| {
                let script = "(while :; do box 'run -d' --rm; done) & echo up; exec cat";
                let mut session = Start::lariat(&engine).script(&shell(script));
                session.expect("up");
                let some = || !engine.marked("trial", Some(&session.token)).is_empty();
                assert!(at_times(PACE, PATIENCE, some), "{}", session.stderr());
                Death::Wrapper.strike(&engine, &mut session);
                assert_ended(&engine, &session);
                stays_empty(&session);
            }),
        ),
    ]);
}
