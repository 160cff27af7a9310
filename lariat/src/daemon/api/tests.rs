//! Bodies are read or refused in words, whatever is in them.

use super::*;
use crate::dice::Dice;

fn open(body: &str) -> Result<Open, Problem> {
    Open::read(body.as_bytes())
}

#[test]
fn a_body_says_what_is_to_be() {
    let text = r#"{"name":"n","owner_pid":7,"servers":{"a":{"command":"x"}}}"#;
    let open = open(text).unwrap();
    assert_eq!((open.name.as_deref(), open.owner_pid), (Some("n"), Some(7)));
    assert_eq!(open.servers["a"], ServerSpec::new("x"));
    assert_eq!(serde_json::from_str::<Open>(&serde_json::to_string(&open).unwrap()).unwrap(), open);
    let call = Call::read(br#"{"tool":"t"}"#).unwrap();
    assert_eq!(call, Call { tool: "t".into(), arguments: None });
}

#[test]
fn what_is_no_json_is_malformed() {
    let deep = "[".repeat(100_000);
    for body in ["", "{", "nonsense", "{\"servers\":{}}x", "{\"name\":\"\\ud800\"}", &deep] {
        let problem = open(body).unwrap_err();
        assert_eq!(problem.status, 400, "{problem:?}");
        assert!(problem.detail.len() < 1000);
    }
    assert_eq!(Open::read(b"{\"name\":\"\xff\"}").unwrap_err().status, 400);
}

#[test]
fn what_is_wrong_is_named() {
    for (body, says) in [
        ("[]", "no JSON object"),
        (r#"["n",7,{}]"#, "no JSON object"),
        ("{}", "missing field `servers`"),
        (r#"{"servers":[]}"#, "an object of servers by name"),
        (r#"{"servers":{},"owner":1}"#, "unknown field `owner`"),
        (r#"{"servers":{"a":{"command":"x","cmd":"y"}}}"#, "unknown field `cmd`"),
        (r#"{"servers":{"a":{"command":"x"},"a":{"command":"y"}}}"#, "server `a` is there twice"),
        (r#"{"servers":{"a":{}}}"#, "In `servers.a`: there is neither"),
        (r#"{"servers":{"":{"command":"x"}}}"#, "In `servers`: `` is not a name"),
        (r#"{"servers":{"../x":{"command":"x"}}}"#, "`../x` is not a name"),
        (r#"{"servers":{".x":{"command":"x"}}}"#, "`.x` is not a name"),
        (r#"{"servers":{},"name":"a b"}"#, "In `name`: `a b` is not a name"),
        (r#"{"servers":{},"owner_pid":0}"#, "a number above 0"),
        (r#"{"servers":{},"owner_pid":-1}"#, "a number above 0"),
        (r#"{"servers":{},"owner_pid":99999999999}"#, "invalid value"),
    ] {
        let problem = open(body).unwrap_err();
        assert_eq!(problem.status, 422, "{body}: {problem:?}");
        assert!(problem.detail.contains(says), "{body}: {}", problem.detail);
    }
    let call = Call::read(br#"{"tool":"t","arguments":[1]}"#).unwrap_err();
    assert_eq!(call.status, 422);
    assert_eq!(Call::read(br#"{"tool":""}"#).unwrap_err().status, 422);
}

#[test]
fn names_have_a_length() {
    let named = |name: &str| open(&format!(r#"{{"name":"{name}","servers":{{}}}}"#));
    assert!(named("x").is_ok() && named(&"ü".repeat(80)).is_ok() && named("a-_.+9").is_ok());
    for length in [81, 1 << 20] {
        let problem = named(&"x".repeat(length)).unwrap_err();
        assert_eq!(problem.status, 422);
        assert!(problem.detail.len() < 1000, "{}", problem.detail.len());
    }
    let long = format!(r#"{{"{}":1}}"#, "x".repeat(1 << 20));
    let problem = open(&long).unwrap_err();
    assert!((problem.status, problem.detail.len() < 2000) == (422, true), "{problem:?}");
}

#[test]
fn a_servers_own_words_are_kept() {
    let refused = session::Error::Refused { code: -32602, message: "bad".into() };
    let problem = Problem::from(refused);
    assert_eq!(
        (problem.status, problem.code, problem.message.as_deref()),
        (502, Some(-32602), Some("bad"))
    );
    let text = serde_json::to_string(&Problem::from(session::Error::Closed)).unwrap();
    assert!(
        !text.contains("code") && text.contains(r#""type":"urn:lariat:problem:closed""#),
        "{text}"
    );
}

#[test]
fn causes_are_said_once_in_a_sentence() {
    let cause = std::io::Error::other("no space left");
    let error = session::Error::State("/x".into(), cause);
    assert_eq!(sentence(&error), "Cannot write the state directory /x: no space left.");
}

#[test]
fn no_body_is_too_odd() {
    let bodies: [&[u8]; 4] = [
        br#"{"name":"n","owner_pid":7,"servers":{"a":{"command":"x","args":["y"],"env":{"A":"b"},"cwd":"/"}}}"#,
        br#"{"servers":{"a":{"image":"x","tools":["*"],"startup_timeout_ms":5,"restart":"never"}}}"#,
        br#"{"servers":{"a":{"command":"x","capabilities":{"roots":{}}},"b":{"command":"y"}}}"#,
        br#"{"tool":"t","arguments":{"a":[1,2.5,null,true,"\u00e4"]}}"#,
    ];
    let words: [&[u8]; 9] =
        [b"null", b"{", b"}", b"\"", b"1e999", b"\\u0000", b"servers", b"-0", b"\xf0\x9f"];
    let (mut dice, mut read) = (Dice(0x9e37_79b9_7f4a_7c15), 0);
    for round in 0..40_000 {
        let body = dice.mutate(bodies[round % bodies.len()], &words);
        let problems =
            [Open::read(&body).err(), Refresh::read(&body).err(), Call::read(&body).err()];
        read += problems.iter().filter(|problem| problem.is_none()).count();
        for problem in problems.into_iter().flatten() {
            assert!(
                matches!(problem.status, 400 | 422) && problem.detail.len() < 2000,
                "{problem:?}"
            );
        }
    }
    assert!(read > 100, "{read}");
}
