//! The shell face: scripts that open, call, connect and close, and a daemon that comes by itself.

use crate::finish::finish;
use crate::kit::{lariat, token};
use crate::place::{PATIENCE, Place};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use trials::{Witness, until};

/// A place whose daemon is started on demand, and ends with the test.
struct Demand {
    place: Place,
    token: String,
}

impl Demand {
    fn new() -> Demand {
        Demand { place: Place::new(), token: token() }
    }

    fn socket(&self) -> PathBuf {
        self.place.path("state/daemon.sock")
    }

    /// The daemon's pid, as the kernel has it.
    fn daemon(&self) -> Option<i32> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).unwrap();
        Some(peer.pid.as_raw_pid())
    }

    /// A script with `$L` for the command, `$D` for its options and `$T` for the server's token.
    fn script(&self, shell: &str, text: &str) -> Command {
        let mut command = Command::new(shell);
        let state = self.place.path("state");
        command.args(["-c", &format!("{text}\n:")]).current_dir(self.place.path(""));
        command.env("L", lariat()).env("D", format!("--state-dir={}", state.display()));
        command.env("T", &self.token).env("SECRET", "s3cret");
        command
    }

    fn run(&self, shell: &str, text: &str) -> Output {
        finish(&mut self.script(shell, text))
    }

    #[track_caller]
    fn assert_gone(&self) {
        let mut witness = Witness::new(&self.token, &[]);
        // The daemon that comes by itself has the usual ladder.
        assert!(until(PATIENCE, || witness.nobody_in(1)), "{:?}", witness.look());
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        if let Some(pid) = self.daemon().and_then(rustix::process::Pid::from_raw) {
            // It holds its socket, so the number is still its own.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            until(PATIENCE, || self.daemon().is_none());
        }
    }
}

#[track_caller]
fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_script_has_sessions_that_end_with_it() {
    for shell in ["bash", "dash"] {
        if finish(Command::new("sh").args(["-c", &format!("command -v {shell}")])).stdout.is_empty()
        {
            continue;
        }
        let demand = Demand::new();
        let output = demand.run(
            shell,
            r#"S=$("$L" session open "$D" --name one --server a -- "$L" __misbehave polite $T)
            R=$(cd /; "$L" session open "$D" --server b -- "$L" __misbehave polite $T; true)
            Q=$("$L" session open "$D" --server c -- "$L" __misbehave polite $T | cat)
            "$L" session call "$D" $S a echo '{"x": 1}'
            "$L" session list "$D" --json
            echo $$
            "$L" session close "$D" $S
            "$L" session list "$D""#,
        );
        let said = text(&output);
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some(r#"{"content":[{"type":"text","text":"done"}]}"#));
        let listed: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let me: i32 = lines.next().unwrap().parse().unwrap();
        let sessions = listed["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), 3, "{shell}: {listed:#}");
        for session in sessions {
            assert_eq!(session["owner"]["pid"], me, "{shell}: {listed:#}");
        }
        assert!(lines.next().unwrap().starts_with("a: 1 process, "), "{said}");
        let rest: Vec<&str> = lines.collect();
        assert!(rest.iter().any(|line| line.contains("ready")), "{said}");
        assert!(rest.iter().all(|line| !line.contains("one")), "{said}");
        demand.assert_gone();
        // The receipt is written after the last process is gone, and the session leaves after that.
        let listed = || text(&demand.run(shell, r#""$L" session list "$D""#));
        assert!(until(PATIENCE, || listed() == "no sessions\n"), "{shell}: {}", listed());
    }
}

#[test]
fn several_that_start_one_at_once_get_the_same() {
    let demand = Demand::new();
    let open =
        r#""$L" session open "$D" --owner-pid $PPID --server a -- "$L" __misbehave polite $T"#;
    let spawn = |_| {
        let mut script = demand.script("sh", open);
        script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..8).map(spawn).collect();
    let mut ids: Vec<String> =
        children.into_iter().map(|child| text(&child.wait_with_output().unwrap())).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 8);
    let listed = text(&demand.run("sh", r#""$L" session list "$D""#));
    for id in &ids {
        assert!(listed.contains(id.trim()), "{listed}");
    }
    for id in &ids {
        text(&demand.run("sh", &format!(r#""$L" session close "$D" {id}"#)));
    }
    demand.assert_gone();
}

#[test]
fn a_daemon_that_came_by_itself_has_no_secrets_and_no_starter() {
    let demand = Demand::new();
    // The session ends at once with the script; the daemon stays for a while.
    let output =
        demand.run("sh", r#""$L" session open "$D" --server a -- "$L" __misbehave polite $T"#);
    text(&output);
    let daemon = demand.daemon().unwrap();
    let environ = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    assert!(!environ.windows(6).any(|window| window == b"s3cret"));
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(fields[3], daemon.to_string(), "a session of its own");
    assert_ne!(fields[1], std::process::id().to_string());
    assert_eq!(fs::read_to_string(format!("/proc/{daemon}/comm")).unwrap(), "lariat-daemon\n");
    demand.assert_gone();
}

#[test]
fn what_a_server_inherits_is_what_was_said() {
    let demand = Demand::new();
    let output = demand.run(
        "sh",
        r#"mkdir here; cd here
        "$L" session open "$D" --json --server a --env GIVEN=1 --env SECRET -- \
            sh -c 'echo "$PWD $GIVEN $SECRET" >../said; exec "$0" "$@"' "$L" __misbehave polite $T
        SECRET= "$L" session open "$D" --server b -- sh -c 'echo "[$SECRET]" >../more; exec "$0" "$@"' \
            "$L" __misbehave polite $T"#,
    );
    text(&output);
    let said = fs::read_to_string(demand.place.path("said")).unwrap();
    assert_eq!(said, format!("{} 1 s3cret\n", demand.place.path("here").display()));
    assert_eq!(fs::read_to_string(demand.place.path("more")).unwrap(), "[]\n");
}

#[test]
fn servers_come_from_a_file_or_from_standard_input() {
    let demand = Demand::new();
    let server = crate::kit::server("polite", &demand.token);
    let ours = serde_json::json!({ "name": "n", "servers": { "a": server } });
    let hosts = serde_json::json!({ "mcpServers": { "a": server } });
    fs::write(demand.place.path("ours"), ours.to_string()).unwrap();
    fs::write(demand.place.path("hosts"), hosts.to_string()).unwrap();
    let output = demand.run(
        "sh",
        r#""$L" session open "$D" --json --config ours
        "$L" session open "$D" --json --config - <hosts"#,
    );
    for (line, name) in text(&output).lines().zip([Some("n"), None]) {
        let session: Value = serde_json::from_str(line).unwrap();
        assert_eq!(session["name"].as_str(), name);
        assert_eq!(session["servers"]["a"]["state"], "ready");
    }
    for (file, says) in [("{", "EOF"), (r#"{"servers":{"a":{"x":1}}}"#, "unknown field `x`")] {
        fs::write(demand.place.path("bad"), file).unwrap();
        let output = demand.run("sh", r#""$L" session open "$D" --config bad; exit $?"#);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_server_that_fails_is_said_and_the_session_stays() {
    let demand = Demand::new();
    let output = demand.run(
        "sh",
        r#"S=$("$L" session open "$D" --server a -- no-such-server); echo $?
        "$L" session close "$D" $S"#,
    );
    assert!(text(&output).starts_with("1\n"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("server a is failed") && said.contains("lariat session close"), "{said}");
}

#[test]
fn bytes_pass_through_connect() {
    let demand = Demand::new();
    let id = text(&demand.run(
        "sh",
        r#""$L" session open "$D" --owner-pid $PPID --server a -- "$L" __misbehave polite $T"#,
    ));
    let id = id.trim();
    let mut connect = demand.script("sh", &format!(r#"exec "$L" connect "$D" --session {id} a"#));
    let piped = connect.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut speak = |line: &str| {
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut heard = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut heard).unwrap();
        serde_json::from_str::<Value>(&heard).unwrap()
    };
    let hello = r#"{"jsonrpc":"2.0","id":"é","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"0"}}}"#;
    assert_eq!(speak(hello)["id"], "é");
    let called =
        speak(r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}"#);
    assert_eq!(called["result"]["content"][0]["text"], "done");
    drop(stdin);
    assert!(until(PATIENCE, || child.try_wait().unwrap().is_some()), "stdin's end is the end");
    assert!(child.wait().unwrap().success());
    // And the session's end is its end.
    let mut child = demand
        .script("sh", &format!(r#"exec "$L" connect "$D" --session {id} a"#))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    text(&demand.run("sh", &format!(r#""$L" session close "$D" {id}"#)));
    assert!(until(PATIENCE, || child.try_wait().unwrap().is_some()));
    child.wait().unwrap();
}

#[test]
fn only_open_starts_a_daemon() {
    let demand = Demand::new();
    for verb in
        ["session list", "session close x", "session call x a echo", "connect --session x a"]
    {
        let output = demand.run("sh", &format!(r#""$L" {verb} "$D"; exit $?"#));
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("no daemon listens on"), "{verb}: {said}");
        assert!(demand.daemon().is_none(), "{verb}");
    }
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let demand = Demand::new();
    text(&demand.run(
        "sh",
        r#""$L" session open "$D" --owner-pid $PPID --server a -- "$L" __misbehave polite $T"#,
    ));
    for verb in ["session close nope", "session call nope a echo", "connect --session nope a"] {
        let output = demand.run("sh", &format!(r#""$L" {verb} "$D"; exit $?"#));
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("nope") && said.contains("lariat session list"), "{verb}: {said}");
    }
}

#[test]
fn where_it_listens_can_be_asked() {
    let demand = Demand::new();
    let said = text(&demand.run("sh", r#""$L" daemon "$D" --print-socket"#));
    assert_eq!(said.trim_end(), demand.socket().to_str().unwrap());
    assert!(demand.daemon().is_none() && !demand.place.path("state").exists());
    let deep = "d".repeat(120);
    let said = text(&demand.run("sh", &format!(r#""$L" daemon --print-socket "$D/{deep}""#)));
    assert!(said.starts_with("/tmp/lariat-") && said.len() < 108, "{said}");
}
