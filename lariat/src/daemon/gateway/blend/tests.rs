use super::*;
use crate::dice::{self, Dice};
use std::time::Instant;

fn blend(tools: &[&str]) -> Blend {
    let names = ["a", "b"].map(String::from).to_vec();
    Blend::new(names, tools.iter().map(|it| String::from(*it)).collect())
}

/// Both have shaken hands.
fn greeted(tools: &[&str]) -> Blend {
    let mut blend = blend(tools);
    let hello = r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    assert_eq!(blend.client_says(hello.as_bytes()).to_servers.len(), 2);
    let offer = |version: &str, more: &str| {
        format!(
            r#"{{"id":0,"result":{{"protocolVersion":"{version}","capabilities":{{"tools":{{}},"tasks":{{}}{more}}},"instructions":"Hm."}}}}"#
        )
    };
    let first = blend.server_says(0, offer("2025-11-25", "").as_bytes());
    assert_eq!(first, Out::default(), "the other is waited for");
    let both =
        blend.server_says(1, offer("2025-06-18", r#","resources":{"subscribe":true}"#).as_bytes());
    let answer = client(&both);
    let result = &answer["result"];
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(result["capabilities"], json!({ "tools": {}, "resources": { "subscribe": true } }));
    assert_eq!(result["instructions"], "a: Hm.\n\nb: Hm.");
    blend
}

/// The one thing that is said to the client.
fn client(out: &Out) -> Value {
    assert_eq!(out.to_client.len(), 1, "{out:?}");
    serde_json::from_slice(&out.to_client[0]).unwrap()
}

/// The one thing that is said to a server.
fn server(out: &Out) -> (usize, String) {
    assert_eq!(out.to_servers.len(), 1, "{out:?}");
    let (at, line) = &out.to_servers[0];
    (*at, String::from_utf8(line.clone()).unwrap())
}

#[test]
fn a_list_has_the_items_of_all_with_their_names() {
    let mut blend = greeted(&["*"]);
    let list = r#"{"id":"x","method":"tools/list"}"#;
    assert_eq!(blend.client_says(list.as_bytes()).to_servers.len(), 2);
    let page = br#"{"id":"x","result":{"tools":[{"n":1e400,"name":"one"}],"nextCursor":"c"}}"#;
    let next = blend.server_says(0, page);
    let wanted = r#"{"id":"x","params":{"cursor":"c"},"method":"tools/list"}"#;
    assert_eq!(server(&next), (0, wanted.into()));
    blend.server_says(1, br#"{"id":"x","result":{"tools":[{"name":"one"},{"name":"two"}]}}"#);
    let all = blend.server_says(0, br#"{"id":"x","result":{"tools":[{"name":"last"}]}}"#);
    let text = String::from_utf8(all.to_client[0].clone()).unwrap();
    assert!(text.contains(r#"{"n":1e400,"name":"a__one"}"#), "{text}");
    for name in ["a__last", "b__one", "b__two"] {
        assert!(text.contains(&format!("\"{name}\"")), "{text}");
    }
    // Only one of them has resources.
    let list = blend.client_says(br#"{"id":1,"method":"resources/list","params":{}}"#);
    assert_eq!(server(&list).0, 1);
    let list = blend.server_says(1, br#"{"id":1,"result":{"resources":[{"uri":"file:///x"}]}}"#);
    assert_eq!(client(&list)["result"]["resources"][0]["uri"], "b+file:///x");
    // And nobody has prompts.
    let list = blend.client_says(br#"{"id":1,"method":"prompts/list"}"#);
    assert_eq!(client(&list)["result"], json!({ "prompts": [] }));
    let page = blend.client_says(br#"{"id":2,"method":"tools/list","params":{"cursor":"c"}}"#);
    assert_eq!(client(&page)["error"]["code"], INVALID_PARAMS);
}

#[test]
fn a_call_goes_to_the_server_that_its_name_says() {
    let mut blend = greeted(&["*"]);
    let call = br#"{"id":1, "method":"tools/call","params":{"x":1.50,"name":"b__c__d"}}"#;
    let wanted = r#"{"id":1, "method":"tools/call","params":{"x":1.50,"name":"c__d"}}"#;
    assert_eq!(server(&blend.client_says(call)), (1, wanted.into()));
    assert_eq!(client(&blend.client_says(call))["error"]["code"], INVALID_REQUEST, "twice");
    assert_eq!(blend.server_says(0, br#"{"id":1,"result":{}}"#), Out::default(), "not asked");
    let answer = br#"{"id":1,"result":{"content":[{"type":"text","text":"t"},{"type":"resource_link","uri":"u"},{"type":"resource","resource":{"uri":"v"}}]}}"#;
    let content = &client(&blend.server_says(1, answer))["result"]["content"];
    assert_eq!(
        (&content[1]["uri"], &content[2]["resource"]["uri"]),
        (&json!("b+u"), &json!("b+v"))
    );
    for (line, wanted) in [
        (
            r#"{"id":1,"method":"resources/read","params":{"uri":"a+b+c"}}"#,
            r#"{"id":1,"method":"resources/read","params":{"uri":"b+c"}}"#,
        ),
        (
            r#"{"id":2,"method":"prompts/get","params":{"name":"a__p"}}"#,
            r#"{"id":2,"method":"prompts/get","params":{"name":"p"}}"#,
        ),
        (
            r#"{"id":3,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"a+t{x}"}}}"#,
            r#"{"id":3,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"t{x}"}}}"#,
        ),
    ] {
        assert_eq!(server(&blend.client_says(line.as_bytes())), (0, wanted.into()));
    }
    for line in [
        r#"{"id":9,"method":"tools/call","params":{"name":"c__d"}}"#,
        r#"{"id":9,"method":"tools/call","params":{"name":"plain"}}"#,
        r#"{"id":9,"method":"tools/call"}"#,
        r#"{"id":9,"method":"resources/read","params":{"uri":"file:///x"}}"#,
    ] {
        let no = blend.client_says(line.as_bytes());
        assert_eq!(client(&no)["error"]["code"], INVALID_PARAMS, "{line}");
    }
    let no = blend.client_says(br#"{"id":9,"method":"tasks/get"}"#);
    assert_eq!(client(&no)["error"]["code"], METHOD_NOT_FOUND);
}

#[test]
fn only_the_tools_that_are_wanted_are_there() {
    let mut blend = greeted(&["a__r*", "b__x"]);
    blend.client_says(br#"{"id":1,"method":"tools/list"}"#);
    blend.server_says(0, br#"{"id":1,"result":{"tools":[{"name":"read"},{"name":"write"}]}}"#);
    let all = blend.server_says(1, br#"{"id":1,"result":{"tools":[{"name":"read"}]}}"#);
    assert_eq!(client(&all)["result"]["tools"], json!([{ "name": "a__read" }]));
    let no = blend.client_says(br#"{"id":1,"method":"tools/call","params":{"name":"a__write"}}"#);
    assert_eq!(client(&no)["error"]["code"], INVALID_PARAMS);
}

#[test]
fn what_a_server_asks_is_answered_to_that_server() {
    let mut blend = greeted(&["*"]);
    let ask = br#"{"id":"q","method":"sampling/createMessage"}"#;
    let (one, other) = (client(&blend.server_says(0, ask)), client(&blend.server_says(1, ask)));
    assert_ne!(one["id"], other["id"]);
    let answer = format!(r#"{{"id":{},"result":{{}}}}"#, other["id"]);
    let wanted = (1, r#"{"id":"q","result":{}}"#.to_owned());
    assert_eq!(server(&blend.client_says(answer.as_bytes())), wanted);
    assert_eq!(blend.client_says(answer.as_bytes()), Out::default(), "once");
    let back = br#"{"method":"notifications/cancelled","params":{"requestId":"q"}}"#;
    assert_eq!(client(&blend.server_says(0, back))["params"]["requestId"], one["id"]);
    // What the client takes back goes to whom it had asked.
    blend.client_says(br#"{"id":5,"method":"tools/call","params":{"name":"b__x"}}"#);
    let back = br#"{"method":"notifications/cancelled","params":{"requestId":5}}"#;
    assert_eq!(server(&blend.client_says(back)).0, 1);
    assert_eq!(blend.client_says(back), Out::default());
    assert_eq!(blend.server_says(1, br#"{"id":5,"result":{}}"#), Out::default(), "too late");
    let told = br#"{"method":"notifications/resources/updated","params":{"uri":"u"}}"#;
    assert_eq!(client(&blend.server_says(1, told))["params"]["uri"], "b+u");
}

#[test]
fn one_that_fails_is_left_out() {
    let mut blend = blend(&["*"]);
    blend.client_says(br#"{"id":0,"method":"initialize"}"#);
    blend.server_says(0, br#"{"id":0,"error":{"code":-1,"message":"no"}}"#);
    let offer =
        br#"{"id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}}"#;
    let hello = client(&blend.server_says(1, offer));
    assert_eq!(hello["result"]["_meta"]["dev.lariat/absent"], json!(["a"]));
    blend.client_says(br#"{"id":1,"method":"tools/call","params":{"name":"b__x"}}"#);
    let list = blend.client_says(br#"{"id":2,"method":"tools/list"}"#);
    assert_eq!(server(&list).0, 1);
    let gone = blend.server_gone(1);
    let said: Vec<Value> =
        gone.to_client.iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(said.iter().filter(|it| it["error"].is_object()).count(), 2);
    assert!(said.iter().any(|it| it["method"] == "notifications/tools/list_changed"));
    assert!(blend.is_over());
}

#[test]
fn one_that_says_nothing_is_not_waited_for_for_ever() {
    let mut blend = greeted(&["*"]);
    blend.client_says(br#"{"id":1,"method":"tools/list"}"#);
    blend.server_says(0, br#"{"id":1,"result":{"tools":[{"name":"x"}]}}"#);
    for _ in 1..PATIENCE {
        assert!(blend.waits_for_several());
        assert_eq!(blend.tick(), Out::default());
    }
    assert_eq!(client(&blend.tick())["result"]["tools"], json!([{ "name": "a__x" }]));
    assert!(!blend.waits_for_several());
    // If nobody can, the first reason is said.
    blend.client_says(br#"{"id":2,"method":"tools/list"}"#);
    blend.server_says(0, br#"{"id":2,"error":{"code":-7,"message":"no"}}"#);
    let both = blend.server_says(1, br#"{"id":2,"error":{"code":-8,"message":"no"}}"#);
    assert_eq!(client(&both)["error"]["code"], -7);
}

#[test]
fn all_are_listened_to_at_once() {
    let mut blend = blend(&["*"]);
    let listen = br#"{"id":7,"method":"subscriptions/listen","params":{"_meta":{},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["b+u","c+v"]}}}"#;
    let asked = blend.client_says(listen);
    let lines: Vec<Value> =
        asked.to_servers.iter().map(|(_, line)| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(lines[0]["params"]["notifications"], json!({ "toolsListChanged": true }));
    assert_eq!(lines[1]["params"]["notifications"]["resourceSubscriptions"], json!(["u"]));
    let say = |method: &str, more: &str| {
        format!(
            r#"{{"method":"notifications/{method}","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":7}}{more}}}}}"#
        )
    };
    let begun = say("subscriptions/acknowledged", r#","notifications":{"toolsListChanged":true}"#);
    assert_eq!(blend.server_says(0, begun.as_bytes()), Out::default());
    let early = say("tools/list_changed", "");
    assert_eq!(blend.server_says(0, early.as_bytes()), Out::default(), "not before it has begun");
    let begun =
        say("subscriptions/acknowledged", r#","notifications":{"resourceSubscriptions":["u"]}"#);
    let out = blend.server_says(1, begun.as_bytes());
    assert_eq!(out.to_client.len(), 2);
    let first: Value = serde_json::from_slice(&out.to_client[0]).unwrap();
    assert_eq!(
        first["params"]["notifications"],
        json!({ "toolsListChanged": true, "resourceSubscriptions": ["b+u"] })
    );
    assert_eq!(first["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
    let told = blend.server_says(1, say("resources/updated", r#","uri":"u""#).as_bytes());
    assert_eq!(client(&told)["params"]["uri"], "b+u");
    assert_eq!(blend.server_says(0, br#"{"id":7,"result":{}}"#), Out::default());
    assert_eq!(client(&blend.server_gone(1))["result"]["resultType"], "complete");
}

#[test]
fn what_all_know_is_discovered() {
    let mut blend = blend(&["*"]);
    blend.client_says(br#"{"id":1,"method":"server/discover","params":{}}"#);
    blend.server_says(0, br#"{"id":1,"result":{"supportedVersions":["2026-07-28","x"],"capabilities":{"tools":{"listChanged":false}},"ttlMs":5,"cacheScope":"public"}}"#);
    let all = blend.server_says(1, br#"{"id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":3,"cacheScope":"private"}}"#);
    let result = &client(&all)["result"];
    assert_eq!(result["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
    assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(3), &json!("private")));
    // In this era nobody has said before what it has.
    let list = blend.client_says(br#"{"id":2,"method":"prompts/list"}"#);
    assert_eq!(list.to_servers.len(), 2);
    blend.server_says(
        1,
        br#"{"id":2,"result":{"resultType":"complete","prompts":[{"name":"y"}],"ttlMs":1}}"#,
    );
    let all = blend.server_says(
        0,
        br#"{"id":2,"result":{"resultType":"complete","prompts":[{"name":"x"}],"ttlMs":0}}"#,
    );
    assert_eq!(
        client(&all)["result"],
        json!({
            "prompts": [{ "name": "a__x" }, { "name": "b__y" }],
            "resultType": "complete", "ttlMs": 0,
        })
    );
}

#[test]
fn one_of_the_other_era_is_not_forgotten() {
    let mut blend = blend(&["*"]);
    let offer = br#"{"id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}"#;
    let discover = br#"{"id":1,"method":"server/discover","params":{}}"#;
    blend.client_says(discover);
    blend.server_says(0, offer);
    let older = br#"{"id":1,"error":{"code":-32602,"message":"what?"}}"#;
    assert_eq!(client(&blend.server_says(1, older))["error"]["code"], METHOD_NOT_FOUND);
    // One that is not there at all keeps nobody from the new one.
    blend.client_says(discover);
    blend.server_says(0, offer);
    let absent =
        format!(r#"{{"id":1,"error":{{"code":{NO_SERVER},"message":"no such program"}}}}"#);
    let all = client(&blend.server_says(1, absent.as_bytes()));
    assert_eq!(all["result"]["_meta"]["dev.lariat/absent"], json!(["b"]));
    // Who asks in the new one all the same is not given what makes no sense in it.
    blend.client_says(br#"{"id":2,"method":"tools/list"}"#);
    blend.server_says(1, br#"{"id":2,"result":{"tools":[{"name":"old"}]}}"#);
    let all = blend.server_says(0, br#"{"id":2,"result":{"resultType":"complete","tools":[]}}"#);
    assert_eq!(client(&all)["result"]["tools"], json!([]));
}

/// Whatever is said, nobody falls over, and who asks something gets one answer at most.
#[test]
fn nonsense_on_either_side_is_survived() {
    let client = [
        r#"{"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        r#"{"id":2,"method":"tools/list","params":{}}"#,
        r#"{"id":3,"method":"tools/call","params":{"name":"b__x","arguments":{}}}"#,
        r#"{"id":4,"method":"resources/read","params":{"uri":"a+u"}}"#,
        r#"{"id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["b+u"]}}}"#,
        r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"{"id":5,"method":"subscriptions/listen","params":{"notifications":7}}"#,
    ];
    let server = [
        r#"{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}}"#,
        r#"{"id":2,"result":{"tools":[{"name":"x"}],"nextCursor":"c"}}"#,
        r#"{"id":3,"result":{"content":[{"type":"resource","resource":{"uri":"u"}}]}}"#,
        r#"{"id":4,"result":{"contents":[{"uri":"u"}]}}"#,
        r#"{"id":"q","method":"sampling/createMessage"}"#,
        r#"{"method":"notifications/cancelled","params":{"requestId":"q"}}"#,
        r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"resourceSubscriptions":["u"]}}}"#,
        r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":[]}}"#,
        r#"{"id":7,"error":{"code":-32601,"message":"no"}}"#,
        r#"[{"id":4,"result":{"contents":7}},{"id":1,"result":[]}]"#,
    ];
    let words: [&[u8]; 8] =
        [b"{", b"}", b"null", b"\"id\"", b"7", b"\"name\":", b"[[", b"\"uri\":\"b+\""];
    let mut dice = Dice(0x1234_5678);
    let (end, mut rounds) = (dice::enough(0), 0);
    while rounds < 300 || Instant::now() < end {
        rounds += 1;
        let mut blend = blend(&["*"]);
        let (mut asked, mut answered) = (0, 0);
        for _ in 0..60 {
            let mut line = |lines: &[&str]| {
                let line = lines[dice.next(lines.len())].as_bytes();
                if dice.next(3) == 0 { dice.mutate(line, &words) } else { line.to_vec() }
            };
            let out = match dice_side(&mut line, &client, &server) {
                (None, line) => {
                    asked += 1;
                    blend.client_says(&line)
                }
                (Some(at), line) => blend.server_says(at, &line),
            };
            for line in &out.to_client {
                let Line::One(it) = envelope::read(line) else { panic!("{line:?}") };
                answered += usize::from(it.shape() == Shape::Response);
            }
        }
        let mut late: usize = (0..PATIENCE).map(|_| blend.tick().to_client.len()).sum();
        late += (0..2).map(|at| blend.server_gone(at).to_client.len()).sum::<usize>();
        assert!(answered <= asked && late <= asked + 6, "{answered} and {late} of {asked}");
        assert!(blend.is_over() && blend.pending.is_empty());
    }
}

/// A line of the client, or of one of the servers.
fn dice_side(
    line: &mut impl FnMut(&[&str]) -> Vec<u8>,
    client: &[&str],
    server: &[&str],
) -> (Option<usize>, Vec<u8>) {
    // Chance has no other source than the lines: their length is as good as any.
    let (mine, theirs) = (line(client), line(server));
    match (mine.len() + theirs.len()) % 3 {
        0 => (None, mine),
        one => (Some(one - 1), theirs),
    }
}
