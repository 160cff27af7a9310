//! The table against `lariat run`, and what a host would notice.

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::windows::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use trials::{Death, Misbehaviour, Subject, Witness, until};

/// A console without a window, as hosts with windows give their servers.
pub(crate) const CREATE_NO_WINDOW: u32 = 0x0800_0000;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// More than the host's pipe holds (64 KiB), but not more than that and what is under way: the server can
/// leave, and the rest of it is with the wrapper.
const SAYS: usize = 74_000;

type Test = fn() -> Result<(), Failed>;

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [(&str, Test); 13] = [
        ("bytes::64-MiB-are-the-same", large),
        ("bytes::100000-frames-are-the-same", small),
        ("codes::the-servers-own", own_code),
        ("codes::not-found", not_found),
        ("codes::not-executable", not_executable),
        ("receipt::says-why-and-how", receipt),
        ("stderr::is-drained-and-logged", stderr),
        ("stdin::who-never-reads-is-ended", unread),
        ("stdout::a-slow-host-has-all-of-it", slow),
        ("books::a-killed-wrapper-is-swept", swept),
        ("probe::what-it-offers-and-nothing-left", probed),
        ("demo::shows-a-leak-and-a-cure", demo),
        ("report::24-sessions", sessions),
    ];
    let mut trials: Vec<Trial> =
        tests.into_iter().map(|(name, test)| Trial::test(name, test)).collect();
    trials.extend(table());
    trials
}

/// Plays a server if asked.
pub(crate) fn serve_if_asked() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("__echo") => {
            let (mut stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout());
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n) = stdin.read(&mut buffer) {
                if n == 0 || stdout.write_all(&buffer[..n]).and_then(|()| stdout.flush()).is_err() {
                    break;
                }
            }
            leave(0)
        }
        Some("__serve") => {
            let manner = args.next().unwrap_or_default();
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                let asked: Value = serde_json::from_str(&line).unwrap_or_default();
                let result = match asked["method"].as_str() {
                    Some("initialize") => json!({"protocolVersion": "2025-06-18",
                        "serverInfo": {"name": "a server", "version": "7"}, "capabilities": {}}),
                    Some("tools/list") => json!({"tools": [{"name": "hammer"}, {"name": "nail"}]}),
                    // What comes back says what was asked, and who was.
                    Some("tools/call") => {
                        json!({"pid": std::process::id(), "said": asked["params"]["arguments"]})
                    }
                    _ => json!({}),
                };
                let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
                if !asked["id"].is_null() {
                    let text = format!("{answer}\n");
                    let mut out = std::io::stdout();
                    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
                }
                match (manner.as_str(), asked["method"].as_str()) {
                    ("stuck", Some("tools/list")) => drop(until(PATIENCE, || false)),
                    ("floods", Some("tools/list")) => drop(thread::spawn(flood)),
                    _ => {}
                }
            }
            leave(0)
        }
        Some("__deaf") => {
            // Longer than any trial takes, on whatever machine: a bystander that leaves by itself looks harmed.
            until(Duration::from_secs(900), || false);
            leave(0)
        }
        Some("__complain-and-exit") => {
            std::io::stderr().write_all(b"the reason").ok();
            leave(3)
        }
        Some("__says-much-and-exits") => {
            std::io::stdout().write_all(&[b'x'; SAYS]).ok();
            leave(0)
        }
        Some("__say") => {
            let words: Vec<String> = args.collect();
            std::io::stdout().write_all(format!("{words:?}\n").as_bytes()).ok();
            leave(0)
        }
        Some("__exit") => leave(args.next().and_then(|code| code.parse().ok()).unwrap_or(1)),
        Some("__complain") => {
            let line = [b'x'; 1023];
            for _ in 0..1024 {
                let mut err = std::io::stderr();
                err.write_all(&line).and_then(|()| err.write_all(b"\n")).ok();
            }
            std::io::stdout().write_all(b"through\n").ok();
            leave(0)
        }
        _ => {}
    }
}

/// Says what nobody has asked for, until nobody listens.
fn flood() {
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": "y".repeat(8000)});
    let text = format!("{note}\n");
    while std::io::stdout().write_all(text.as_bytes()).is_ok() {}
}

#[expect(clippy::disallowed_methods, clippy::exit, reason = "a server's part is over")]
pub(crate) fn leave(code: i32) -> ! {
    std::process::exit(code)
}

pub(crate) fn own() -> PathBuf {
    std::env::current_exe().expect("a path")
}

pub(crate) fn lariat() -> PathBuf {
    // Where it was built may be written in another system's way.
    std::path::absolute(env!("CARGO_BIN_EXE_lariat")).expect("a path")
}

/// A state directory of its own, gone at the end.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new() -> Place {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let number = PLACES.fetch_add(1, Ordering::SeqCst);
        let path =
            std::env::temp_dir().join(format!("lariat state {}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Place(path)
    }

    /// `lariat run` with a server.
    fn run(&self, server: &[OsString]) -> Command {
        self.run_for(server, "300ms")
    }

    /// The same with this much time to leave after the end of input.
    pub(crate) fn run_for(&self, server: &[OsString], grace: &str) -> Command {
        let mut command = Command::new(lariat());
        command.args(["run", "--grace", grace, "--term-grace", "300ms", "--state-dir"]);
        command.arg(&self.0).arg("--receipt").arg(self.0.join("receipt.json")).arg("--");
        command.args(server).creation_flags(CREATE_NO_WINDOW);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn play(&self, words: &[&str]) -> Command {
        let server = [own().into_os_string()].into_iter().chain(words.iter().map(OsString::from));
        self.run(&server.collect::<Vec<_>>())
    }

    /// A server that says what it is told, and has time to do so.
    pub(crate) fn echo(&self) -> Command {
        self.run_for(&[own().into_os_string(), "__echo".into()], "60s")
    }

    pub(crate) fn receipt(&self) -> Value {
        let text = fs::read(self.0.join("receipt.json")).expect("a receipt");
        serde_json::from_slice(&text).expect("JSON")
    }

    pub(crate) fn pages(&self) -> usize {
        fs::read_dir(self.0.join("sessions")).map_or(0, Iterator::count)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Somebody may have it open for another moment.
        until(Duration::from_secs(5), || fs::remove_dir_all(&self.0).is_ok() || !self.0.exists());
    }
}

/// Whether everything is to be tried, or what there is time for.
#[expect(clippy::disallowed_methods, reason = "a runner of tests is told so by its caller")]
pub(crate) fn everything() -> bool {
    std::env::var_os("LARIAT_TRIALS").is_some_and(|how_much| how_much == "full")
}

fn table() -> Vec<Trial> {
    let deaths = [Death::StdinEof, Death::WrapperKilled, Death::HostKilled];
    let mut trials = Vec::new();
    for &misbehaviour in Misbehaviour::ALL {
        for death in deaths {
            // Once is enough for two hundred processes.
            if misbehaviour == Misbehaviour::WideTree && death != Death::WrapperKilled {
                continue;
            }
            trials.push(Trial::test(format!("run::{misbehaviour}::{death}"), move || {
                let place = Place::new();
                let words = ["run", "--grace", "300ms", "--term-grace", "300ms", "--state-dir"];
                let mut wrap = vec![lariat().into_os_string()];
                wrap.extend(words.map(OsString::from));
                wrap.extend([place.0.clone().into_os_string(), "--".into()]);
                let subject = Subject::wrapped(own(), wrap);
                trials::run_in_turn(everything(), misbehaviour, death, &subject)
                    .map_err(Failed::from)
            }));
        }
    }
    trials
}

/// Writes everything, reads until the end, and says what came back and how the wrapper left.
pub(crate) fn exchange(mut command: Command, bytes: Vec<u8>) -> (Vec<u8>, i32) {
    let mut child = started(&mut command);
    let (mut stdin, mut stdout) =
        (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    // Piece by piece: Wine loses a thread that writes much at once while the machine is busy.
    let writer =
        thread::spawn(move || bytes.chunks(16 << 10).try_for_each(|it| stdin.write_all(it)));
    let mut back = Vec::new();
    stdout.read_to_end(&mut back).expect("it can be read");
    // A server that did not start reads nothing.
    let _refused = writer.join().expect("the writer ends");
    (back, child.wait().expect("the wrapper ends").code().expect("a code"))
}

/// A process of this command. Now and then Wine cannot start one at all, and can a moment later.
pub(crate) fn started(command: &mut Command) -> Child {
    const INTERNAL_ERROR: i32 = 1359;
    let mut child = command.spawn();
    until(PATIENCE, || {
        let failed = child.as_ref().is_err_and(|e| e.raw_os_error() == Some(INTERNAL_ERROR));
        if failed {
            child = command.spawn();
        }
        !failed
    });
    child.expect("it starts")
}

fn large() -> Result<(), Failed> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let sent: Vec<u8> = std::iter::repeat_with(next).take(64 << 20).collect();
    let (back, code) = exchange(Place::new().echo(), sent.clone());
    same(&sent, &back, code)
}

fn small() -> Result<(), Failed> {
    let frame = |id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n");
    let sent: String = (0..100_000).map(frame).collect();
    let (back, code) = exchange(Place::new().echo(), sent.clone().into_bytes());
    same(sent.as_bytes(), &back, code)
}

fn same(sent: &[u8], back: &[u8], code: i32) -> Result<(), Failed> {
    if sent != back {
        let at = sent.iter().zip(back).position(|(a, b)| a != b);
        let (back, sent) = (back.len(), sent.len());
        return Err(format!("{back} of {sent} came back, {at:?} differs, code {code}").into());
    }
    if code == 0 { Ok(()) } else { Err(format!("exit code {code}").into()) }
}

fn own_code() -> Result<(), Failed> {
    let (_, code) = exchange(Place::new().play(&["__exit", "70000"]), Vec::new());
    assert_eq!(code, 70_000, "all of it");
    Ok(())
}

fn not_found() -> Result<(), Failed> {
    let place = Place::new();
    let (_, code) = exchange(place.run(&["no-such-program-at-all".into()]), Vec::new());
    assert_eq!(code, 127);
    assert_eq!(place.pages(), 0, "nothing is written down of what never was");
    Ok(())
}

fn not_executable() -> Result<(), Failed> {
    let place = Place::new();
    let text = place.0.join("text.exe");
    fs::write(&text, "this is no program")?;
    let (_, code) = exchange(place.run(&[text.into_os_string()]), Vec::new());
    assert_eq!(code, 126);
    Ok(())
}

fn receipt() -> Result<(), Failed> {
    let place = Place::new();
    let (_, code) = exchange(place.play(&["__echo"]), b"x\n".to_vec());
    let receipt = place.receipt();
    assert_eq!(code, 0);
    // It may have left before it was seen to be asked: both are true.
    let reason = receipt["reason"].as_str().unwrap_or_default();
    assert!(["stdin-closed", "exited"].contains(&reason), "{receipt}");
    assert_eq!(receipt["backend"], "job");
    assert_eq!(
        (&receipt["processes"]["killed"], &receipt["survivors"]),
        (&0.into(), &Value::Array(vec![]))
    );
    assert_eq!(place.pages(), 0, "the page is struck");
    let events = fs::read_to_string(place.0.join("events.jsonl"))?;
    assert!(events.contains("\"event\":\"started\"") && events.contains("\"event\":\"ended\""));
    Ok(())
}

fn stderr() -> Result<(), Failed> {
    let place = Place::new();
    let mut command = place.play(&["__complain"]);
    // A host that has a pipe for it and never reads.
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said)?;
    assert_eq!(said, "through\n");
    assert!(until(PATIENCE, || child.try_wait().is_ok_and(|status| status.is_some())));
    let logs = fs::read_dir(place.0.join("logs"))?.map_while(Result::ok);
    let logged: u64 = logs.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    assert_eq!(logged, 1 << 20, "all of it is in the log and its predecessor");
    Ok(())
}

/// A host says much, and goes; the server has read nothing of it. The second time more than is read ahead.
fn unread() -> Result<(), Failed> {
    for much in [1 << 20, (4 << 20) + (32 << 10)] {
        let place = Place::new();
        let mut child = place.play(&["__deaf"]).spawn()?;
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(&vec![b'x'; much])?;
        drop(stdin);
        assert!(until(PATIENCE, || child.try_wait().is_ok_and(|status| status.is_some())));
        assert_eq!(place.receipt()["reason"], "stdin-closed");
    }
    Ok(())
}

/// A host that takes its time has everything that its server said before it left.
fn slow() -> Result<(), Failed> {
    let place = Place::new();
    let mut child = place.play(&["__says-much-and-exits"]).spawn()?;
    let mut out = child.stdout.take().expect("a pipe");
    // Longer than anybody is waited for who ends a session himself.
    assert!(!until(Duration::from_secs(5), || child
        .try_wait()
        .is_ok_and(|status| status.is_some())));
    let mut said = Vec::new();
    out.read_to_end(&mut said)?;
    assert_eq!((said.len(), child.wait()?.code()), (SAYS, Some(0)));
    Ok(())
}

/// Starts a server with a shell in a shell below it; complete when this returns.
fn session(place: &Place, token: &str) -> Result<(Child, PathBuf), Failed> {
    let roll = place.0.join("roll");
    fs::write(&roll, "")?;
    let path = roll.to_str().ok_or("text")?;
    let child = place.play(&["__misbehave", "cmd-chain", token, path]).spawn()?;
    let up = || {
        let file = fs::File::open(&roll).map(BufReader::new);
        file.is_ok_and(|file| file.lines().count() >= 2)
    };
    if !until(PATIENCE, up) {
        return Err("the server never came up".into());
    }
    Ok((child, roll))
}

fn swept() -> Result<(), Failed> {
    let place = Place::new();
    let token = format!("lariat-swept-{}", std::process::id());
    let (mut child, _roll) = session(&place, &token)?;
    assert_eq!(place.pages(), 2, "a page and its lock");
    child.kill()?;
    child.wait()?;
    let mut witness = Witness::new(&token);
    assert!(until(PATIENCE, || witness.look().is_empty()), "the kernel ends them");
    assert_eq!(place.pages(), 2, "nobody was there to strike it");
    let ps = Command::new(lariat()).args(["ps", "--state-dir"]).arg(&place.0).output()?;
    assert_eq!(String::from_utf8_lossy(&ps.stdout), "no sessions\n");
    assert_eq!(place.pages(), 0);
    let events = fs::read_to_string(place.0.join("events.jsonl"))?;
    assert!(events.contains("wrapper-died"), "{events}");
    Ok(())
}

fn probed() -> Result<(), Failed> {
    let mut command = Command::new(lariat());
    command.args(["probe", "--json", "--"]).arg(own()).arg("__serve");
    let output = command.creation_flags(CREATE_NO_WINDOW).stdin(Stdio::null()).output()?;
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("{e}: {}", String::from_utf8_lossy(&output.stderr)))?;
    assert_eq!(found["server"]["name"], "a server");
    assert_eq!(found["tools"], json!(["hammer", "nail"]));
    assert_eq!(found["processes_peak"], 1);
    assert_eq!(found["receipt"]["processes"]["left"], 1);
    assert_eq!(found["receipt"]["survivors"], json!([]));
    let silent = ["probe", "--timeout", "1s", "--"];
    let mut command = Command::new(lariat());
    command.args(silent).arg(own()).arg("__echo").stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.creation_flags(CREATE_NO_WINDOW).status()?;
    assert_eq!(status.code(), Some(1), "who says the same again is no server");
    Ok(())
}

fn demo() -> Result<(), Failed> {
    let output = Command::new(lariat()).arg("demo").creation_flags(CREATE_NO_WINDOW).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("without Lariat: 0 of"), "{said}");
    assert!(said.contains("with `lariat run --`: 0 of"), "{said}");
    Ok(())
}

/// The fourth report: sessions come and go, and never is there more than one session's processes.
fn sessions() -> Result<(), Failed> {
    let place = Place::new();
    let token = format!("lariat-sessions-{}", std::process::id());
    let mut witness = Witness::new(&token);
    let mut there = || {
        let mut all = witness.look();
        // A console's host comes and goes by itself.
        all.retain(|one| !witness.name(*one).eq_ignore_ascii_case("conhost.exe"));
        all.len()
    };
    for number in 0..24 {
        let (mut child, _roll) = session(&place, &token)?;
        assert_eq!(there(), 5, "wrapper, server, two shells and a leaf, in session {number}");
        drop(child.stdin.take());
        child.wait()?;
        assert_eq!(there(), 0, "after session {number}");
    }
    Ok(())
}
