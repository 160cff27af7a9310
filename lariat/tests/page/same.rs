//! One server of the daemon's, seen by everybody who looks: they say the same.

use crate::finish::finish;
use crate::kit::House;
use crate::place::PATIENCE;
use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Command, Stdio};
use trials::until;

/// A call that nobody answers. It is given up with this.
struct Call(Child);

impl Drop for Call {
    fn drop(&mut self) {
        // Not waited for yet, so the number is its own.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn session(house: &House, verb: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lariat"));
    command.args(["session", verb, "--state-dir"]).arg(house.place.path("state"));
    command
}

/// What `ps` says of the one server there is.
fn listed(house: &House) -> Value {
    let output = finish(house.place.lariat("ps").arg("--json"));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].take()
}

/// How many servers are in this state, by the metrics, which are made of what the page shows.
fn counted(house: &House, state: &str) -> bool {
    let text = house.get("/metrics", &house.bearer()).expect(200).text;
    text.contains(&format!("lariat_servers{{state=\"{state}\"}} 1\n"))
}

#[test]
fn who_waits_for_a_server_of_the_daemon_is_seen_by_all() {
    let house = House::new();
    let config = json!({"servers": {
        "a": {"command": env!("CARGO_BIN_EXE_lariat"), "args": ["__misbehave", "polite", "same-test"]},
    }});
    fs::write(house.place.path("servers.json"), config.to_string()).unwrap();
    let mut open = session(&house, "open");
    open.arg("--config").arg(house.place.path("servers.json"));
    open.arg("--owner-pid").arg(std::process::id().to_string());
    let opened = finish(&mut open);
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    let id = String::from_utf8(opened.stdout).unwrap().trim().to_owned();
    let one = listed(&house);
    assert_eq!(one["state"], "ready", "{one}");
    assert!(one["idle_s"].as_f64().is_some_and(|idle| idle < 60.0), "{one}");
    // The daemon wanted it on behalf of us.
    assert_eq!(one["host"]["pid"], std::process::id(), "{one}");
    assert!(counted(&house, "ready"));
    let mut call = session(&house, "call");
    call.args([&id, "a", "hang"]).stdout(Stdio::null()).stderr(Stdio::null());
    let call = Call(call.spawn().unwrap());
    assert!(until(PATIENCE, || listed(&house)["state"] == "busy"), "{}", listed(&house));
    assert_eq!(listed(&house)["idle_s"], Value::Null);
    assert!(counted(&house, "busy"), "the page says something else than ps");
    let tree = finish(&mut house.place.lariat("tree"));
    assert!(String::from_utf8_lossy(&tree.stdout).contains("busy"), "{tree:?}");
    drop(call);
    assert!(until(PATIENCE, || listed(&house)["state"] == "ready"), "{}", listed(&house));
    assert!(counted(&house, "ready"));
    assert!(finish(session(&house, "close").arg(&id)).status.success());
}
