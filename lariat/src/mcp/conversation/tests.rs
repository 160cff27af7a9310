use super::*;
use std::time::Duration;

/// Plays lines in order: `>` from the host, `<` from the server.
fn after(lines: &[&str]) -> Conversation {
    let now = Instant::now();
    let mut talk = Conversation::new(now);
    for line in lines {
        play(&mut talk, line, now);
    }
    talk
}

fn play(talk: &mut Conversation, line: &str, now: Instant) {
    let (who, text) = line.split_at(1);
    let text = format!("{text}\n");
    match who {
        ">" => talk.host_said(&Sight::Line(text.as_bytes()), now),
        "<" => talk.server_said(&Sight::Line(text.as_bytes()), now),
        other => panic!("{other}"),
    }
}

const HANDSHAKE: [&str; 3] = [
    r#">{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#,
    r#"<{"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}}},"id":0}"#,
    r#">{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
];

const MODERN: &str = r#">{"id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;

fn shaken(more: &[&str]) -> Conversation {
    after(&[&HANDSHAKE, more].concat())
}

fn open(talk: &Conversation) -> Open {
    talk.open(Instant::now())
}

#[test]
fn nothing_is_settled_before_the_handshake_is() {
    assert_eq!(open(&after(&[])), Open::Nothing, "nobody has said anything");
    let taken_back = r#">{"method":"notifications/cancelled","params":{"requestId":9}}"#;
    assert_eq!(open(&after(&[taken_back])), Open::Nothing, "what was never asked is taken back");
    assert_eq!(open(&after(&[r#">{"method":"notifications/x"}"#])), Open::Work);
    assert_eq!(open(&after(&HANDSHAKE[..1])), Open::Work);
    assert_eq!(open(&after(&HANDSHAKE[..2])), Open::Nothing, "it knows who it is");
    let talk = after(&HANDSHAKE);
    assert_eq!((open(&talk), talk.era()), (Open::Nothing, Some(Era::Legacy)));
    let refused = after(&[HANDSHAKE[0], r#"<{"id":0,"error":{}}"#, HANDSHAKE[2]]);
    assert_eq!(open(&refused), Open::Work);
    let modern = after(&[MODERN, r#"<{"id":1,"result":{}}"#]);
    assert_eq!((open(&modern), modern.era()), (Open::Nothing, Some(Era::Modern)));
    let neither = after(&[r#">{"id":1,"method":"hello"}"#, r#"<{"id":1,"result":{}}"#]);
    assert_eq!(open(&neither), Open::Work);
}

#[test]
fn whoever_waits_for_an_answer_keeps_it_open() {
    for (asks, answers) in [
        (r#">{"id":7,"method":"tools/call"}"#, r#"<{"id":7,"result":{}}"#),
        (r#">{"id":"7","method":"x/y"}"#, r#"<{"error":{},"id":"7"}"#),
        (r#">{"id":7,"method":"ping"}"#, r#"<{"id":7,"result":{}}"#),
        (
            r#">{"id":7,"method":"tools/call"}"#,
            r#">{"method":"notifications/cancelled","params":{"requestId":7}}"#,
        ),
        (r#"<{"id":7,"method":"roots/list"}"#, r#">{"id":7,"result":{"roots":[]}}"#),
        (
            r#"<{"id":7,"method":"sampling/createMessage"}"#,
            r#"<{"method":"notifications/cancelled","params":{"requestId":7}}"#,
        ),
        (
            r#"<{"id":"e","method":"elicitation/create","params":{"elicitationId":"q"}}"#,
            r#">{"id":"e","result":{"action":"decline"}}"#,
        ),
        (r#">[{"id":7,"method":"a"},{"method":"b"}]"#, r#"<[{"id":7,"result":1}]"#),
    ] {
        let mut talk = shaken(&[asks]);
        assert_eq!(open(&talk), Open::Work, "{asks}");
        // Not to be mistaken for the answer.
        play(&mut talk, r#"<{"id":"8","result":{}}"#, Instant::now());
        assert_eq!(open(&talk), Open::Work, "{asks}");
        play(&mut talk, answers, Instant::now());
        assert_eq!(open(&talk), Open::Nothing, "{answers}");
    }
}

#[test]
fn what_is_to_be_done_elsewhere_keeps_it_open() {
    let asked = r#"<{"id":1,"method":"elicitation/create","params":{"elicitationId":"q"}}"#;
    let accepted = r#">{"id":1,"result":{"action":"accept"}}"#;
    let required =
        r#"<{"id":2,"error":{"code":-32042,"data":{"elicitations":[{"elicitationId":"q"}]}}}"#;
    let done = r#"<{"method":"notifications/elicitation/complete","params":{"elicitationId":"q"}}"#;
    for mut talk in
        [shaken(&[asked, accepted]), shaken(&[r#">{"id":2,"method":"tools/call"}"#, required])]
    {
        assert_eq!(open(&talk), Open::Work);
        play(&mut talk, done, Instant::now());
        assert_eq!(open(&talk), Open::Nothing);
    }
}

#[test]
fn a_task_keeps_it_open_until_it_is_over() {
    let call = r#">{"id":5,"method":"tools/call","params":{"task":{"ttl":60000}}}"#;
    let made = r#"<{"id":5,"result":{"task":{"taskId":"t","status":"working","ttl":60000}}}"#;
    let modern = r#"<{"id":5,"result":{"resultType":"task","taskId":"t","status":"working"}}"#;
    for end in [
        vec![
            r#"<{"method":"notifications/tasks/status","params":{"taskId":"t","status":"failed"}}"#,
        ],
        vec![
            r#">{"id":6,"method":"tasks/get","params":{"taskId":"t"}}"#,
            r#"<{"id":6,"result":{"taskId":"t","status":"completed"}}"#,
        ],
        vec![
            r#">{"id":6,"method":"tasks/result","params":{"taskId":"t"}}"#,
            r#"<{"id":6,"result":{"content":[]}}"#,
        ],
        vec![
            r#">{"id":6,"method":"tasks/cancel","params":{"taskId":"t"}}"#,
            r#"<{"id":6,"result":{"taskId":"t","status":"cancelled"}}"#,
        ],
    ] {
        for made in [made, modern] {
            let mut talk = shaken(&[call, made]);
            play(
                &mut talk,
                r#">{"id":9,"method":"tasks/get","params":{"taskId":"t"}}"#,
                Instant::now(),
            );
            let going_on = r#"<{"id":9,"result":{"taskId":"t","status":"input_required"}}"#;
            play(&mut talk, going_on, Instant::now());
            assert_eq!(open(&talk), Open::Work, "{made}");
            for line in &end {
                play(&mut talk, line, Instant::now());
            }
            assert_eq!(open(&talk), Open::Nothing, "{end:?}");
        }
    }
    let talk = shaken(&[call, made]);
    let later = Instant::now() + Duration::from_secs(61);
    assert_eq!(talk.open(later), Open::Nothing, "it is not kept for longer");
    assert!(talk.frees_at().is_some_and(|at| at <= later));
}

#[test]
fn who_watches_is_no_work_but_is_remembered() {
    let mut talk = shaken(&[
        r#">{"id":1,"method":"resources/subscribe","params":{"uri":"a://b"}}"#,
        r#"<{"id":1,"result":{}}"#,
        r#">{"id":2,"method":"resources/subscribe","params":{"uri":"a://c"}}"#,
        r#"<{"id":2,"error":{}}"#,
        r#">{"id":3,"method":"logging/setLevel","params":{"level":"debug"}}"#,
        r#"<{"id":3,"result":{}}"#,
    ]);
    assert_eq!(open(&talk), Open::Watches);
    assert_eq!(talk.subscribed().collect::<Vec<_>>(), ["a://b"]);
    assert_eq!(talk.in_force().count(), 2, "the level and what was not refused");
    let now = Instant::now();
    play(&mut talk, r#">{"id":4,"method":"resources/unsubscribe","params":{"uri":"a://b"}}"#, now);
    play(&mut talk, r#"<{"id":4,"result":{}}"#, now);
    assert_eq!(open(&talk), Open::Nothing);

    let listen = r#">{"id":"l","method":"subscriptions/listen","params":{}}"#;
    let listening = || after(&[MODERN, r#"<{"id":1,"result":{}}"#, listen]);
    assert_eq!(open(&listening()), Open::Watches);
    assert_eq!(listening().listens().map(|(id, _)| id.to_owned()).collect::<Vec<_>>(), ["\"l\""]);
    for end in [
        r#"<{"id":"l","result":{}}"#,
        r#"<{"method":"notifications/cancelled","params":{"requestId":"l"}}"#,
        r#">{"method":"notifications/cancelled","params":{"requestId":"l"}}"#,
    ] {
        let mut talk = listening();
        play(&mut talk, end, now);
        assert_eq!(open(&talk), Open::Nothing, "{end}");
    }
}

#[test]
fn what_makes_no_sense_is_never_interrupted() {
    for line in [
        r#">{"id":1,"id":2,"method":"a"}"#,
        r#">{"id":{},"method":"a"}"#,
        r#">{"method":"a","params":{"uri":"x","uri":"y"}}"#,
        r#">[1]"#,
        r#"<{"id":1,"method":"a","params":{"taskId":1,"taskId":2}}"#,
    ] {
        let talk = shaken(&[line, r#"<{"id":1,"result":{}}"#, r#">{"id":1,"result":{}}"#]);
        assert_eq!(open(&talk), Open::Work, "{line}");
    }
    let twice = r#">{"id":1,"method":"a"}"#;
    assert_eq!(open(&shaken(&[twice, twice, r#"<{"id":1,"result":{}}"#])), Open::Work);
    let noise = shaken(&["<Listening on stdio", "<"]);
    assert_eq!(open(&noise), Open::Nothing, "what is no message opens nothing");
}

#[test]
fn a_ping_breaks_no_silence() {
    let now = Instant::now();
    let later = now + Duration::from_secs(5);
    let mut talk = shaken(&[]);
    let before = talk.spoke();
    for line in
        [r#">{"id":1,"method":"ping"}"#, r#"<{"id":1,"result":{}}"#, r#"<{"id":1,"method":"ping"}"#]
    {
        play(&mut talk, line, later);
    }
    assert_eq!(talk.spoke(), before);
    play(&mut talk, r#"<{"method":"notifications/message","params":{}}"#, later);
    assert_eq!(talk.spoke(), later);
}

#[test]
fn what_is_known_is_answered_with_another_id_and_the_same_bytes() {
    let list = r#"<{"result":{"tools":[ {"name":"a"}]},"jsonrpc":"2.0","id":1}"#;
    let mut talk = shaken(&[r#">{"id":1,"method":"tools/list"}"#, list]);
    let now = Instant::now();
    let mut ask = |line: &str| {
        let answer = talk.answer(format!("{line}\n").as_bytes(), now);
        answer.map(|line| String::from_utf8(line).unwrap())
    };
    let again = "{\"result\":{\"tools\":[ {\"name\":\"a\"}]},\"jsonrpc\":\"2.0\",\"id\":\"x\"}\n";
    assert_eq!(ask(r#"{"id":"x","method":"tools/list","params":{}}"#).as_deref(), Some(again));
    assert!(ask(r#"{"id":2,"method":"ping"}"#).is_some());
    for other in [
        r#"{"id":2,"method":"tools/list","params":{"cursor":"c"}}"#,
        r#"{"id":2,"method":"prompts/list"}"#,
        r#"{"id":2,"method":"tools/call"}"#,
        r#"{"method":"tools/list"}"#,
        r#"[{"id":2,"method":"ping"}]"#,
    ] {
        assert_eq!(ask(other), None, "{other}");
    }
    play(&mut talk, r#"<{"method":"notifications/tools/list_changed"}"#, now);
    assert_eq!(talk.answer(b"{\"id\":3,\"method\":\"tools/list\"}\n", now), None, "not any more");
}

#[test]
fn another_host_that_asks_the_same_is_answered_the_same() {
    let known = {
        let mut talk = shaken(&[]);
        std::mem::take(talk.known_mut())
    };
    let now = Instant::now();
    let mut talk = Conversation::new(now);
    *talk.known_mut() = known;
    let other = br#"{"id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}}}}"#;
    assert_eq!(talk.answer(other, now), None, "it can do more");
    let same = br#"{"id":9,"method":"initialize","params":{"clientInfo":{},"capabilities":{},"protocolVersion":"2025-11-25"}}"#;
    assert!(talk.answer(same, now).is_some());
    assert!(talk.is_idle_talk(b"{\"method\":\"notifications/initialized\"}\n"));
    assert_eq!((open(&talk), talk.handshake().map(|h| h.0)), (Open::Nothing, Some("9")));
}

#[test]
fn what_is_never_answered_is_not_remembered_for_ever() {
    let mut talk = shaken(&[]);
    let now = Instant::now();
    for id in 0..3 * MOST {
        for who in ['>', '<'] {
            play(&mut talk, &format!(r#"{who}{{"id":{id},"method":"x/y"}}"#), now);
        }
    }
    assert_eq!(open(&talk), Open::Work);
    let remembered = talk.asked.len() + talk.wanted.len();
    assert!(remembered <= 2 * MOST, "{remembered}");
    // Nor is it a conversation that could go on with another server, when all is answered.
    for id in 0..3 * MOST {
        play(&mut talk, &format!(r#"<{{"id":{id},"result":{{}}}}"#), now);
        play(&mut talk, &format!(r#">{{"id":{id},"result":{{}}}}"#), now);
    }
    assert_eq!(open(&talk), Open::Work);
}

#[test]
fn what_the_server_takes_back_is_its_own() {
    let mut talk = shaken(&[
        r#">{"id":5,"method":"tools/call"}"#,
        r#"<{"id":5,"method":"sampling/createMessage"}"#,
        r#"<{"method":"notifications/cancelled","params":{"requestId":5}}"#,
    ]);
    assert_eq!(open(&talk), Open::Work, "the host's call has the same number");
    play(&mut talk, r#"<{"id":5,"result":{}}"#, Instant::now());
    assert_eq!(open(&talk), Open::Nothing);
}

#[test]
fn whoever_looked_for_the_other_era_in_vain_waits_for_nothing() {
    let mut talk = after(&[r#">{"id":"d","method":"server/discover","params":{}}"#]);
    for line in HANDSHAKE {
        play(&mut talk, line, Instant::now());
    }
    assert_eq!((open(&talk), talk.greeting()), (Open::Nothing, None));
}

#[test]
fn an_error_about_a_task_is_not_its_end() {
    let talk = shaken(&[
        r#">{"id":5,"method":"tools/call","params":{"task":{}}}"#,
        r#"<{"id":5,"result":{"task":{"taskId":"t","status":"working"}}}"#,
        r#">{"id":6,"method":"tasks/get","params":{"taskId":"t"}}"#,
        r#"<{"id":6,"error":{"code":-32603,"message":"busy"}}"#,
    ]);
    assert_eq!(open(&talk), Open::Work);
}

#[test]
fn a_server_that_wants_more_first_is_waited_for() {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    let mut talk = after(&[
        &format!(r#">{{"id":1,"method":"tools/call","params":{{{meta}}}}}"#),
        r#"<{"id":1,"result":{"resultType":"input_required","requestState":"s","inputRequests":{}}}"#,
    ]);
    assert_eq!(open(&talk), Open::Work);
    let again = r#""requestState":"s","inputResponses":{}"#;
    play(
        &mut talk,
        &format!(r#">{{"id":2,"method":"tools/call","params":{{{meta},{again}}}}}"#),
        Instant::now(),
    );
    play(&mut talk, r#"<{"id":2,"result":{"resultType":"complete"}}"#, Instant::now());
    assert_eq!(open(&talk), Open::Nothing);
}

#[test]
fn a_list_of_many_pages_is_not_repeated() {
    let page = r#"<{"id":1,"result":{"tools":[],"nextCursor":"n"}}"#;
    let mut talk = shaken(&[r#">{"id":1,"method":"tools/list"}"#, page]);
    assert_eq!(talk.answer(b"{\"id\":2,\"method\":\"tools/list\"}\n", Instant::now()), None);
    let whole = r#"<{"id":3,"result":{"tools":[]}}"#;
    let mut talk = shaken(&[r#">{"id":3,"method":"tools/list","params":{"_meta":{}}}"#, whole]);
    let mut ask = |params: &str| {
        let line = format!("{{\"id\":4,\"method\":\"tools/list\",\"params\":{params}}}\n");
        talk.answer(line.as_bytes(), Instant::now()).is_some()
    };
    assert!(ask("{}") && ask(r#"{"_meta":{"x":1}}"#));
    assert!(!ask(r#"{"filter":"x"}"#) && !ask(r#"{"cursor":"x"}"#));
}
