//! Facts about paths and labels, and mutations of real bodies.

use super::*;
use crate::dice::Dice;
use std::collections::BTreeMap;

fn labels() -> Labels {
    Labels {
        session: "s1".into(),
        server: "git".into(),
        owner: "host-7".into(),
        birth: "b1".into(),
    }
}

/// Our three labels as they are put in.
const OURS: &str = r#""dev.lariat.session":"s1","dev.lariat.server":"git","dev.lariat.owner":"host-7","dev.lariat.birth":"b1""#;
const WITHIN_US: &str = r#""dev.lariat.within.s1":"b1""#;

fn injected(body: &str) -> Result<String, Unlabelled> {
    into(body, Creates::Container)
}

fn into(body: &str, what: Creates) -> Result<String, Unlabelled> {
    inject(body.as_bytes(), what, &labels()).map(|new| String::from_utf8(new).unwrap())
}

/// Fills in `OURS` for a hash, and `WITHIN_US` for an at sign.
fn with(text: &str) -> Result<String, Unlabelled> {
    Ok(text.replace('#', OURS).replace('@', WITHIN_US))
}

#[test]
fn creates_are_recognised_however_they_are_spelled() {
    for (target, what) in [
        ("/containers/create", Creates::Container),
        ("/v1.44/containers/create?name=x", Creates::Container),
        ("/v1.44.2/networks/create", Creates::Network),
        ("/v4.0.0/libpod/containers/create", Creates::Container),
        ("/v4.3.1-dev/libpod/networks/create", Creates::Network),
        ("/libpod/pods/create", Creates::Pod),
        ("/v5/libpod/volumes/create", Creates::Volume),
        ("/volumes/create", Creates::Volume),
        ("/v../volumes/create", Creates::Volume),
        ("/volumes/create/", Creates::Volume),
        ("//v1.44//containers///create", Creates::Container),
        ("/a/../containers/./create", Creates::Container),
        ("/../containers/create", Creates::Container),
        ("/%63ontainers/creat%65", Creates::Container),
        ("/containers%2Fcreate", Creates::Container),
        ("/containers%2fcreate", Creates::Container),
        ("/v1%2E44/containers/x/%2e%2E/create", Creates::Container),
        ("http://docker/v1.44/containers/create", Creates::Container),
        ("HTTP://u:p@[::1]:2375/containers/create?a=/b", Creates::Container),
        ("http:/containers/create", Creates::Container),
        ("http:///containers/create", Creates::Container),
        ("/containers/create#x", Creates::Container),
        ("/containers/create?x=/../..", Creates::Container),
    ] {
        assert_eq!(creates("POST", target), Some(what), "{target}");
        assert_eq!(creates("post", target), Some(what), "{target}");
        assert_eq!(creates("GET", target), None);
    }
    for target in [
        "",
        "/",
        "*",
        "http://containers/create",
        "/containers/json",
        "/containers/create/x",
        "/%",
        "/containers/x/start",
        "/images/create",
        "/containers/%2563reate",
        "/x?/containers/create",
        "/v/containers/create",
        "/containers",
        "/create",
        "/%zz/%c",
        "/volumes/volumes/create",
    ] {
        assert_eq!(creates("POST", target), None, "{target}");
    }
}

#[test]
fn tunnels_are_expected_at_few_places() {
    for target in [
        "/containers/abc/attach?stream=1",
        "/v1.44/exec/abc/start",
        "/session",
        "/v1.44/grpc",
        "/v4.0.0/libpod/containers/abc/attach",
        "/libpod/exec/abc/start",
        "/containers/a/b/attach",
        "/containers/abc/attach/ws",
        "http://d/v1.44/session",
    ] {
        assert!(may_hijack(target), "{target}");
    }
    for target in
        ["/containers/abc/logs", "/attach", "/containers/attach", "/exec/start", "/x/session", "/"]
    {
        assert!(!may_hijack(target), "{target}");
    }
}

#[test]
fn labels_go_in_and_nothing_else_changes() {
    for (body, expected) in [
        ("{}", r##"{"Labels":{#}}"##),
        (" { \n} \n", " { \n\"Labels\":{#}} \n"),
        (r#"{"Image":"a" }"#, r##"{"Image":"a" ,"Labels":{#}}"##),
        (r#"{"Labels":null,"x":1e400}"#, r##"{"Labels":{#},"x":1e400}"##),
        (r#"{"Labels" : { } }"#, r##"{"Labels" : { #} }"##),
        (r#"{"Labels":{"a":"b" }}"#, r##"{"Labels":{"a":"b" ,#}}"##),
        (r#"{"Labels":{"a":7,"a":[]}}"#, r##"{"Labels":{"a":7,"a":[],#}}"##),
        (r#"{"lABELs":{},"Y":"\ud800"}"#, r##"{"lABELs":{#},"Y":"\ud800"}"##),
        (r#"{"\u004cabels":{}}"#, r##"{"\u004cabels":{#}}"##),
        (r#"{"x":{"Labels":{}}}"#, r##"{"x":{"Labels":{}},"Labels":{#}}"##),
        (r#"{"Labels ":{}}"#, r##"{"Labels ":{},"Labels":{#}}"##),
    ] {
        assert_eq!(injected(body), with(expected), "{body}");
    }
}

#[test]
fn labels_win_over_duplicates_and_other_spellings() {
    for (body, expected) in [
        (r#"{"Labels":{},"labels":{"a":""}}"#, r##"{"Labels":{},"labels":{"a":"",#}}"##),
        (
            r#"{"labels":{"a":""},"Labels":null}"#,
            r##"{"labels":{"a":""},"Labels":null,"Labels":{#}}"##,
        ),
        // A reader that does not fold this letter would not see them there.
        (r#"{"Label\u017f":{"a":""}}"#, r##"{"Label\u017f":{"a":""},"Labels":{#}}"##),
        (r#"{"Labels":{},"labelſ":null}"#, r##"{"Labels":{},"labelſ":null,"Labels":{#}}"##),
        (r#"{"labelſ":null,"Labels":{}}"#, r##"{"labelſ":null,"Labels":{#}}"##),
        (
            r#"{"Labels":{"dev.lariat.session":"s1","dev.lariat.owner":"x"}}"#,
            r##"{"Labels":{"dev.lariat.session":"s1","dev.lariat.owner":"x",#}}"##,
        ),
        (
            r#"{"Labels":{"dev.lariat.session":"s2"},"Labels":null}"#,
            r##"{"Labels":{"dev.lariat.session":"s2"},"Labels":null,"Labels":{#}}"##,
        ),
        (r#"{"Labels":{"dev.lariat.owner":"x"}}"#, r##"{"Labels":{"dev.lariat.owner":"x",#}}"##),
    ] {
        assert_eq!(injected(body), with(expected), "{body}");
    }
}

#[test]
fn what_belongs_to_an_inner_session_stays_its_own() {
    for (body, expected) in [
        (
            r#"{"Labels":{"dev.lariat.session":"s2"}}"#,
            r#"{"Labels":{"dev.lariat.session":"s2",@}}"#,
        ),
        (
            r#"{"Labels":{"dev.lariat.sessio\u006e":"s1","dev.lariat.session":"s2"},"labels":{}}"#,
            r#"{"Labels":{"dev.lariat.sessio\u006e":"s1","dev.lariat.session":"s2"},"labels":{@}}"#,
        ),
        (
            r#"{"Labels":{"dev.lariat.session":"s2"},"labels":{"dev.lariat.session":"s1"}}"#,
            r##"{"Labels":{"dev.lariat.session":"s2"},"labels":{"dev.lariat.session":"s1",#}}"##,
        ),
    ] {
        assert_eq!(injected(body), with(expected), "{body}");
    }
    // From the outermost to the innermost and on: each finds it, the innermost owns it.
    let third = Labels { session: "s3".into(), ..labels() };
    let inner = inject(b"{}", Creates::Container, &labels()).unwrap();
    let outer = inject(&inner, Creates::Container, &third).unwrap();
    let outer = String::from_utf8(outer).unwrap();
    assert_eq!(outer, with(r##"{"Labels":{#,"dev.lariat.within.s3":"b1"}}"##).unwrap());
    assert_eq!(injected(&injected("{}").unwrap()), with(r##"{"Labels":{#,#}}"##));
}

#[test]
fn volumes_are_labelled_under_both_names_of_podman() {
    for (body, expected) in [
        ("{}", r##"{"Labels":{#}}"##),
        (r#"{"Label":{"a":"b"}}"#, r##"{"Label":{"a":"b",#},"Labels":{#}}"##),
        (r#"{"Labels":{},"Label":null}"#, r##"{"Labels":{#},"Label":{#}}"##),
        (
            r#"{"Label":{"dev.lariat.session":"s2"}}"#,
            r#"{"Label":{"dev.lariat.session":"s2",@},"Labels":{@}}"#,
        ),
        (
            r#"{"Labels":{"dev.lariat.session":"s2"},"Label":{"dev.lariat.session":"s1"}}"#,
            r#"{"Labels":{"dev.lariat.session":"s2",@},"Label":{"dev.lariat.session":"s1",@}}"#,
        ),
    ] {
        assert_eq!(into(body, Creates::Volume), with(expected), "{body}");
    }
    assert_eq!(injected(r#"{"Label":7}"#), with(r##"{"Label":7,"Labels":{#}}"##));
    assert_eq!(into(r#"{"Label":7}"#, Creates::Volume), Err(Unlabelled::LabelsNotAnObject));
}

#[test]
fn what_could_be_read_differently_is_refused() {
    for (body, why) in [
        ("", Unlabelled::Empty),
        (" ", Unlabelled::NotAnObject),
        ("null", Unlabelled::NotAnObject),
        ("[{}]", Unlabelled::NotAnObject),
        ("\u{feff}{}", Unlabelled::NotAnObject),
        ("{", Unlabelled::Malformed),
        (r#"{"a":1,}"#, Unlabelled::Malformed),
        (r#"{"a":01}"#, Unlabelled::Malformed),
        (r#"{"a":tru}"#, Unlabelled::Malformed),
        (r#"{a:1}"#, Unlabelled::Malformed),
        ("{\"a\":\"\n\"}", Unlabelled::Malformed),
        (r#"{"a\ud800":1}"#, Unlabelled::Malformed),
        (r#"{"Labels":{"a\udc00":"1"}}"#, Unlabelled::Malformed),
        ("{}{}", Unlabelled::Trailing),
        ("{} x", Unlabelled::Trailing),
        ("{}\0", Unlabelled::Trailing),
        (r#"{"Labels":[]}"#, Unlabelled::LabelsNotAnObject),
        (r#"{"Labels":"a","labels":{}}"#, Unlabelled::LabelsNotAnObject),
        (r#"{"Labels":{"dev.lariat.session":null}}"#, Unlabelled::LabelNotText),
        (r#"{"Labels":{"dev.lariat.owner":1}}"#, Unlabelled::LabelNotText),
        (r#"{"Labels":{"dev.lariat.session":"\ud800"}}"#, Unlabelled::LabelNotText),
    ] {
        assert_eq!(injected(body), Err(why), "{body}");
    }
    let bad = inject(b"{\"a\":\"\xff\"}", Creates::Container, &labels());
    assert_eq!(bad, Err(Unlabelled::NotUtf8));
    let text = Unlabelled::Trailing.to_string();
    assert_eq!(text, "lariat: cannot label this create: something follows the JSON object");
}

#[test]
fn deep_bodies_are_read_without_a_deep_stack() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    assert!(injected(&deep).is_ok());
}

#[test]
fn labels_are_quoted() {
    let odd = Labels { session: "a\"\\\n".into(), ..labels() };
    let new = inject(b"{}", Creates::Pod, &odd).unwrap();
    let new: Value = serde_json::from_slice(&new).unwrap();
    assert_eq!(new["Labels"][SESSION], odd.session);
}

/// The labels that the engine takes from a body: members of any case add up, null takes back.
fn engine_reads(text: &str, names: &[&str]) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for name in names {
        let mut field = BTreeMap::new();
        for (key, value) in Members::read(text).unwrap().0 {
            let upper = key.replace('ſ', "S").to_ascii_uppercase();
            if upper == name.to_ascii_uppercase() {
                match serde_json::from_str::<Option<BTreeMap<String, &RawValue>>>(value.get()) {
                    Ok(None) => field.clear(),
                    Ok(Some(more)) => {
                        field.extend(more.into_iter().map(|(k, v)| (k, v.get().to_string())));
                    }
                    Err(error) => panic!("{text}: {error}"),
                }
            }
        }
        read.extend(field);
    }
    read
}

/// All members but the labels, as they are written.
fn others(text: &str) -> Vec<(String, String)> {
    let members = Members::read(text).unwrap().0.into_iter();
    let others = members.filter(|(key, _)| !folds_to(key, "Labels") && !folds_to(key, "Label"));
    others.map(|(key, value)| (key, value.get().to_string())).collect()
}

#[test]
fn mutated_bodies_are_labelled_or_refused() {
    let corpus = [
        r#"{"Image":"alpine","Cmd":["sh","-c","é"],"Labels":{"a":"b","c":"d"},"HostConfig":{}}"#,
        r#"{"Labels":{"dev.lariat.session":"s2","dev.lariat.owner":"o"},"labels":null,"N":1.5e3}"#,
        r#"{"Name":"net","Driver":"bridge","IPAM":{"Config":[]},"Labels":null,"Internal":false}"#,
        r#"{"name":"v","Label":{"x":"y"},"Labels":{"dev.lariat.session":"s1"},"Options":null}"#,
        r#"{"labelſ":{"k":"v"},"\u004cabels":{},"pod_name":"p\ud800","share_parent":true}"#,
        "{\n  \"Labels\" : { } ,\n  \"Env\": [ \"A=1\" ]\n}\n",
        "{}",
    ];
    let members = [
        r#""labels":null,"#,
        r#""Label":{"l":""},"#,
        r#""label":null,"#,
        r#""Label\u017f":{"dev.lariat.session":"s4"},"#,
        r#""lAbEls":{"dev.lariat.session":"s1"},"#,
        r#""dev.lariat.session":"s3","#,
        r#""dev.lariat.within.s1":"","#,
        r#""Labels":{},"#,
    ];
    let words: [&[u8]; 12] = [
        b"\"Labels\":",
        b"{",
        b"}",
        b",",
        b"null",
        b"\"",
        b"\\",
        b"\\u017f",
        b"{},",
        b"[",
        b" ",
        b":",
    ];
    let (mut dice, mut labelled, mut kept) = (Dice(0x2545_f491_4f6c_dd1d), 0, 0);
    for round in 0..80_000 {
        let mut body = corpus[round % corpus.len()].to_string();
        for _ in 0..dice.next(4) {
            let places: Vec<_> = body.match_indices(['{', ',']).map(|(at, _)| at + 1).collect();
            let at = places[dice.next(places.len())];
            body.insert_str(at, members[dice.next(members.len())]);
        }
        let mut body = body.into_bytes();
        if dice.next(3) == 0 {
            body = dice.mutate(&body, &words);
        }
        let (what, names): (_, &[&str]) = match round % 2 {
            0 => (Creates::Container, &["Labels"]),
            _ => (Creates::Volume, &["Label", "Labels"]),
        };
        let Ok(new) = inject(&body, what, &labels()) else { continue };
        let (old, new) = (std::str::from_utf8(&body).unwrap(), String::from_utf8(new).unwrap());
        let (before, after) = (engine_reads(old, names), engine_reads(&new, names));
        // An older Podman reads one name, everybody else reads the other.
        for names in names.iter().map(std::slice::from_ref).chain([names]) {
            let alone = engine_reads(&new, names);
            assert!(
                alone.is_empty() || alone.keys().any(|k| k == SESSION || k.starts_with(WITHIN))
            );
        }
        assert_eq!(others(old), others(&new), "{old}");
        let session = before.get(SESSION).map(|raw| serde_json::from_str::<String>(raw).unwrap());
        let mut expected = before;
        if session.is_some_and(|s| s != "s1") {
            expected.insert(format!("{WITHIN}s1"), "\"b1\"".into());
            kept += 1;
        } else {
            for (key, value) in labels().all() {
                expected.insert(key.into(), quoted(value));
            }
        }
        assert_eq!(after, expected, "{old}");
        labelled += 1;
    }
    assert!(labelled > 20_000 && kept > 1_000, "the mutations are too wild: {labelled}, {kept}");
}
