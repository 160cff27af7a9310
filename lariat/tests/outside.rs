//! The way in for other machines, driven by curl with a certificate and tokens that openssl makes.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/place.rs"]
mod place;

use place::{PATIENCE, Place};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use trials::{Witness, until};

const ISSUER: &str = "https://login.example";
const US: &str = "https://tools.example/mcp";
const LARIAT: &str = env!("CARGO_BIN_EXE_lariat");

fn main() {
    let arguments = libtest_mimic::Arguments::from_args();
    let has = |tool: &str| Command::new(tool).arg("version").output().is_ok();
    let can = has("openssl") && Command::new("curl").arg("--version").output().is_ok();
    let trial = |name: &str, test: fn()| {
        libtest_mimic::Trial::test(name, move || {
            std::panic::catch_unwind(test).map_err(|_| libtest_mimic::Failed::from("see above"))
        })
        .with_ignored_flag(!can)
    };
    let tests = vec![
        trial("a_token_lets_in_and_keeps_people_apart", a_token_lets_in_and_keeps_people_apart),
        trial(
            "without_tls_and_tokens_there_is_no_way_in",
            without_tls_and_tokens_there_is_no_way_in,
        ),
    ];
    libtest_mimic::run(&arguments, tests).exit();
}

/// A daemon at its gate.
struct Gate {
    place: Place,
    token: String,
    port: String,
    child: Child,
}

fn openssl(place: &Place, words: &str, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    command.current_dir(place.path("")).args(words.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn url(place: &Place, bytes: &[u8]) -> String {
    let text = String::from_utf8(openssl(place, "base64 -A", bytes)).unwrap();
    text.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

impl Gate {
    fn new() -> Gate {
        let place = Place::new();
        let token = format!("outside-{}", std::process::id());
        openssl(
            &place,
            "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 \
             -subj /CN=tools.example -addext subjectAltName=DNS:tools.example",
            b"",
        );
        openssl(&place, "genrsa -out signer.pem 2048", b"");
        let modulus = openssl(&place, "rsa -in signer.pem -noout -modulus", b"");
        let modulus = String::from_utf8(modulus).unwrap();
        let hex = modulus.trim().strip_prefix("Modulus=").unwrap().as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
        let bytes: Vec<u8> = hex.chunks(2).map(|two| digit(two[0]) * 16 + digit(two[1])).collect();
        let key = json!({ "kty": "RSA", "kid": "k", "alg": "RS256", "n": url(&place, &bytes), "e": "AQAB" });
        fs::write(place.path("keys.json"), json!({ "keys": [key] }).to_string()).unwrap();
        let config = format!(
            "[servers.a]\ncommand = {LARIAT:?}\nargs = [\"__misbehave\", \"polite\", {token:?}]\nshare = true\n"
        );
        fs::write(place.path("lariat.toml"), config).unwrap();
        let mut child = command(&place)
            .args(["--https", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"])
            .args(["--oauth-issuer", ISSUER, "--oauth-audience", US, "--oauth-keys", "keys.json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        let gate = lines.next().unwrap().unwrap();
        let port = gate.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
        Gate { place, token, port, child }
    }

    fn sign(&self, claims: &Value) -> String {
        let part = |value: &Value| url(&self.place, value.to_string().as_bytes());
        let signed = format!("{}.{}", part(&json!({ "alg": "RS256", "kid": "k" })), part(claims));
        let signature = openssl(&self.place, "dgst -sha256 -sign signer.pem", signed.as_bytes());
        format!("{signed}.{}", url(&self.place, &signature))
    }

    fn token_of(&self, who: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        self.sign(&json!({ "iss": ISSUER, "aud": US, "sub": who, "exp": now + 300 }))
    }

    /// Status, headers and body.
    fn curl(&self, path: &str, headers: &[String], body: Option<&str>) -> (u16, String, String) {
        let mut command = Command::new("curl");
        command.current_dir(self.place.path("")).args(["-sS", "--max-time", "20", "-D", "headers"]);
        command.args(["--cacert", "cert.pem", "--noproxy", "*"]);
        command.args(["--connect-to", &format!("tools.example:443:127.0.0.1:{}", self.port)]);
        for header in headers {
            command.args(["-H", header]);
        }
        command.args(["-H", "Accept: application/json, text/event-stream"]);
        if let Some(body) = body {
            command.args(["-H", "Content-Type: application/json", "-d", body]);
        }
        let output = command.arg(format!("https://tools.example{path}")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let headers = fs::read_to_string(self.place.path("headers")).unwrap();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        (status, headers.to_ascii_lowercase(), String::from_utf8(output.stdout).unwrap())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
        let mut witness = Witness::new(&self.token, &[]);
        let gone = until(PATIENCE, || witness.nobody_in(1));
        assert!(gone || std::thread::panicking(), "{:?}", witness.look());
        let pages = || fs::read_dir(self.place.path("state/sessions"));
        until(PATIENCE, || pages().is_ok_and(|mut pages| pages.next().is_none()));
    }
}

fn command(place: &Place) -> Command {
    let mut command = place.lariat("daemon");
    command.current_dir(place.path("")).args(["--config", "lariat.toml", "--containers", "leave"]);
    command.arg("--socket").arg(place.path("d.sock"));
    command
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;

fn a_token_lets_in_and_keeps_people_apart() {
    let gate = Gate::new();
    let shows = |token: &str| format!("Authorization: Bearer {token}");
    let path = "/servers/a/mcp";
    // Nobody, and somebody whose token is not for us.
    let (status, headers, _) = gate.curl(path, &[], Some(HELLO));
    assert_eq!(status, 401);
    let metadata = "https://tools.example/.well-known/oauth-protected-resource";
    assert!(
        headers.contains(&format!("www-authenticate: bearer resource_metadata=\"{metadata}\""))
    );
    let elsewhere = gate.sign(&json!({ "iss": ISSUER, "aud": "x", "sub": "ann", "exp": 9e9 }));
    let (status, headers, _) = gate.curl(path, &[shows(&elsewhere)], Some(HELLO));
    assert!(status == 401 && headers.contains("error=\"invalid_token\""), "{status} {headers}");
    let (status, _, body) = gate.curl("/.well-known/oauth-protected-resource/mcp", &[], None);
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &told["resource"], &told["authorization_servers"][0]),
        (200, &json!(US), &json!(ISSUER))
    );
    // Nothing but MCP, another name, another page.
    let ann = shows(&gate.token_of("ann"));
    for path in ["/", "/metrics", "/open", "/v1/page/events"] {
        assert_eq!(gate.curl(path, std::slice::from_ref(&ann), None).0, 404, "{path}");
    }
    let foreign = ["Host: evil.example", "Origin: https://evil.example"];
    for header in foreign {
        let (status, _, _) = gate.curl(path, &[ann.clone(), header.into()], Some(HELLO));
        assert_eq!(status, 403, "{header}");
    }
    // Two people: a process each, although it is shared, and no session is another's.
    let session = |who: &str| {
        let (status, headers, body) = gate.curl(path, &[who.to_owned()], Some(HELLO));
        assert!(status == 200 && body.contains("serverInfo"), "{status} {body}");
        let id = headers.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        format!("Mcp-Session-Id: {}", id.trim())
    };
    let bob = shows(&gate.token_of("bob"));
    let (of_ann, of_bob) = (session(&ann), session(&bob));
    let again = session(&ann);
    assert_ne!(of_ann, again);
    let mut witness = Witness::new(&gate.token, &[]);
    assert_eq!(witness.look().len(), 2);
    let call =
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{}}}"#;
    let said =
        |who: &str, session: &str| gate.curl(path, &[who.into(), session.into()], Some(call));
    let (status, _, body) = said(&ann, &of_ann);
    assert!(status == 200 && body.contains("done"), "{status} {body}");
    assert_eq!(said(&bob, &of_bob).0, 200);
    assert_eq!(said(&bob, &of_ann).0, 404);
    assert_eq!(said(&ann, &of_bob).0, 404);
}

fn without_tls_and_tokens_there_is_no_way_in() {
    let place = Place::new();
    fs::write(place.path("lariat.toml"), "[servers.a]\ncommand = \"true\"\n").unwrap();
    let refused = |options: &[&str]| {
        let output = command(&place).args(options).output().unwrap();
        assert!(!output.status.success(), "{options:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let words = refused(&["--http", "0.0.0.0:0"]);
    assert!(words.contains("--https"), "{words}");
    let words = refused(&["--https", "0.0.0.0:0"]);
    assert!(words.contains("--tls-cert") && words.contains("--oauth-keys"), "{words}");
    let tls = ["--https", "0.0.0.0:0", "--tls-cert", "c", "--tls-key", "k"];
    assert!(refused(&tls).contains("--oauth-issuer"));
    let issuer = ["--oauth-issuer", ISSUER, "--oauth-audience", US, "--oauth-keys", "keys.json"];
    let all = [&tls[..], &issuer].concat();
    let words = refused(&all);
    assert!(words.contains("keys.json"), "{words}");
    assert!(refused(&[]).contains("--http"));
}
