//! What is the same is shared, and what differs in anything that a server could notice is not.

use crate::client::{Client, VERSION};
use crate::stage::{PATIENCE, Stage, trial};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::process::Command;
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("keys::the_same_is_shared", the_same_is_shared),
        trial("keys::on_demand", on_demand),
        trial("keys::another_environment", || {
            differs(|command, _| _ = command.env("CREDENTIAL", "hunter2"));
        }),
        trial("keys::another_directory", || {
            differs(|command, stage| _ = command.current_dir(stage.path("other")));
        }),
        trial("keys::other_arguments", other_arguments),
        trial("keys::another_umask", another_umask),
        trial("keys::another_version", another_version),
        trial("keys::another_era", another_era),
        trial("keys::roots", || declares("roots", &json!({"roots": {"listChanged": true}}))),
        trial("keys::sampling", || declares("sampling", &json!({"sampling": {}}))),
        trial("keys::elicitation", || declares("elicitation", &json!({"elicitation": {}}))),
        trial("keys::another_program", another_program),
    ]
}

fn the_same_is_shared() {
    let stage = Stage::new();
    let mut clients: Vec<Client> = (0..5).map(|_| stage.join()).collect();
    let servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    assert!(servers.iter().all(|pid| *pid == servers[0]), "{servers:?}");
    assert_eq!(stage.servers().len(), 1);
    let about = clients[0].about();
    assert_eq!((&about["greetings"], &about["sins"]), (&json!(1), &json!([])), "{about}");
    // Nobody could be asked anything, so nobody is promised.
    assert_eq!(about["greeting"]["capabilities"], json!({}), "{about}");
    let verdicts = stage.verdicts();
    assert_eq!(verdicts, ["shared"], "{:#?}", stage.listed());
    assert_eq!(stage.listed()[0]["share"]["sessions"], 5, "{:#?}", stage.listed());
    for client in clients {
        client.leave();
    }
    stage.close();
}

/// Nobody needs to have started a daemon.
fn on_demand() {
    let stage = Stage::without_daemon();
    let (mut one, mut two) = (stage.join(), stage.join());
    assert_eq!(one.server(), two.server());
    let daemon = stage.any_daemon().expect("a daemon");
    one.leave();
    two.leave();
    crate::stage::signal(daemon, rustix::process::Signal::TERM);
    stage.assert_gone();
}

/// Two clients of which the second is changed; they have two servers, both shared with who is alike.
#[track_caller]
fn differs(change: fn(&mut Command, &Stage)) {
    let stage = Stage::new();
    std::fs::create_dir(stage.path("other")).expect("a directory");
    let start = |is_changed: bool| {
        let mut command = stage.sharing(&["--name", "checker"], &stage.checker(&[]));
        if is_changed {
            change(&mut command, &stage);
        }
        let mut client = Client::start(command);
        client.greet();
        client
    };
    let mut clients = [start(false), start(true), start(false), start(true)];
    let servers = clients.each_mut().map(Client::server);
    assert_eq!((servers[0], servers[1]), (servers[2], servers[3]), "the same is shared");
    assert_ne!(servers[0], servers[1], "what differs is not");
    let looks = clients.each_mut().map(|client| {
        let about = client.call("about", json!({"variable": "CREDENTIAL"}));
        (about["variable"].clone(), about["cwd"].clone())
    });
    assert!(looks[0] == looks[2] && looks[1] == looks[3] && looks[0] != looks[1], "{looks:?}");
    clients.into_iter().for_each(Client::leave);
    stage.close();
}

fn other_arguments() {
    let stage = Stage::new();
    let mut clients = [stage.meet(&["one"]), stage.meet(&["two"]), stage.meet(&["one"])];
    clients.iter_mut().for_each(Client::greet);
    let servers = clients.each_mut().map(Client::server);
    assert_eq!(servers[0], servers[2]);
    assert_ne!(servers[0], servers[1]);
    clients.into_iter().for_each(Client::leave);
    stage.close();
}

fn another_umask() {
    let stage = Stage::new();
    let mut plain = stage.join();
    let wrapper = stage.sharing(&["--name", "checker"], &stage.checker(&[]));
    let mut shell = stage.mark(Command::new("sh"));
    shell.args(["-c", r#"umask 077; exec "$@""#, "sh"]).arg(wrapper.get_program());
    shell.args(wrapper.get_args());
    let mut strict = Client::start(shell);
    strict.greet();
    assert_ne!(plain.server(), strict.server());
    let mask = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.expect("a umask").trim().to_owned()
    };
    assert_eq!(mask(strict.server()), "0077");
    plain.leave();
    strict.leave();
    stage.close();
}

fn another_version() {
    let stage = Stage::new();
    let mut clients = [stage.meet(&[]), stage.meet(&[]), stage.meet(&[])];
    for (client, version) in clients.iter_mut().zip([VERSION, "2025-06-18", VERSION]) {
        let answer = client.greet_as(version, &json!({}));
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
    }
    let servers = clients.each_mut().map(Client::server);
    assert_eq!(servers[0], servers[2]);
    assert_ne!(servers[0], servers[1]);
    clients.into_iter().for_each(Client::leave);
    stage.close();
}

fn another_era() {
    let stage = Stage::new();
    let mut legacy = stage.join();
    let mut modern = [stage.meet(&[]).modern(), stage.meet(&[]).modern()];
    let servers = modern.each_mut().map(Client::server);
    assert_eq!(servers[0], servers[1], "this era is made for it");
    assert_ne!(servers[0], legacy.server());
    for client in modern.iter_mut().chain([&mut legacy]) {
        assert_eq!(client.about()["sins"], json!([]));
    }
    modern.into_iter().for_each(Client::leave);
    legacy.leave();
    stage.close();
}

/// Who could be asked something has a server of its own, that knows it; and `ps` says why.
#[track_caller]
fn declares(what: &str, capabilities: &Value) {
    let stage = Stage::new();
    let (mut plain, mut able) = (stage.join(), stage.meet(&[]));
    able.greet_as(VERSION, capabilities);
    let mut another = stage.meet(&[]);
    another.greet_as(VERSION, capabilities);
    let servers = [plain.server(), able.server(), another.server()];
    assert!(servers[0] != servers[1] && servers[1] != servers[2] && servers[0] != servers[2]);
    assert_eq!(able.about()["greeting"]["capabilities"], *capabilities, "it is told everything");
    let why = format!("private: client declares {what}");
    let expected = [why.clone(), why, "shared".to_owned()];
    let shown = until(PATIENCE, || stage.verdicts() == expected);
    assert!(shown, "{:#?}", stage.listed());
    plain.leave();
    able.leave();
    another.leave();
    stage.close();
}

/// The same path, and another program behind it.
fn another_program() {
    let stage = Stage::new();
    let program = stage.path("program");
    let words = stage.checker(&[]);
    let write = |remark: &str| {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let text = format!("#!/bin/sh\n# {remark}\nexec {}\n", quoted.join(" "));
        let draft = stage.path("draft");
        std::fs::write(&draft, text).expect("a file");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).expect("ours");
        std::fs::rename(&draft, &program).expect("a file");
    };
    let start = || {
        let server = [program.display().to_string()];
        let mut client = Client::start(stage.sharing(&["--name", "checker"], &server));
        client.greet();
        client
    };
    write("first");
    let (mut one, mut two) = (start(), start());
    write("second, after an upgrade");
    let mut three = start();
    assert_eq!(one.server(), two.server());
    assert_ne!(one.server(), three.server(), "an upgrade is another program");
    [one, two, three].into_iter().for_each(Client::leave);
    stage.close();
}
