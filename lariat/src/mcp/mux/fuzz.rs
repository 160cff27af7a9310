//! The mux against its model, on talk that chance makes up: clients that come, speak and vanish, a
//! server that answers late, twice, wrongly or to nobody. Who gets what must be the same, to the byte.

use super::model::{Greeting, Heard, Model, Said};
use super::{Company, Mux, Port, Routed};
use crate::dice::{self, Dice};
use serde_json::Value;
use std::time::Instant;

#[test]
fn the_mux_does_what_its_model_does() {
    let end = dice::enough(1);
    let mut seed = 0;
    let (mut lines, mut heard) = (0, 0);
    while seed < 200 || Instant::now() < end {
        seed += 1;
        let mut talk = Talk::begin(seed);
        for step in 0..150 {
            talk.step(step);
        }
        (lines, heard) = (lines + 150, heard + talk.heard);
    }
    assert!(heard > lines / 4, "{heard} of {lines}");
    println!("{seed} talks, {lines} steps, {heard} lines heard");
}

/// One server, its clients, and what it takes to make up what they say.
struct Talk {
    seed: u64,
    dice: Dice,
    mux: Mux,
    model: Model,
    /// What clients speak of, if not of everything: some mistakes take several of a kind.
    topic: &'static [usize],
    /// What was said so far, for whoever has to find out.
    story: Vec<String>,
    heard: usize,
}

const IDS: &[&str] = &[
    "1",
    "\"1\"",
    "2",
    "\"a\"",
    "\"\\u0061\"",
    "1e2",
    "-0",
    "18446744073709551616",
    "0",
    "1.0",
    "\"\"",
];
const URIS: &[&str] =
    &["\"f:/a\"", "\"f:/a/b\"", "\"f:\\/a\"", "\"f:/a/b?x\"", "\"f:/\"", "\"g\"", "7", "\"f:/ab\""];
const WORDS: &[&str] = &["\"T1\"", "\"T2\"", "\"\\u00541\"", "\"T3\"", "1", "null"];
const STATUS: &[&str] = &["\"working\"", "\"completed\"", "\"failed\"", "\"input_required\"", "7"];
const LEVEL: &[&str] =
    &["\"debug\"", "\"info\"", "\"err\\u006fr\"", "\"emergency\"", "\"loud\"", "3"];

/// Some of what [`Talk::client_line`] knows: resources, levels, tasks, and what can be cancelled.
const TOPICS: &[&[usize]] =
    &[&[], &[], &[], &[1, 7, 8, 9, 16], &[1, 10, 11, 16], &[5, 6, 13, 14, 16], &[12, 16, 18, 21]];

const META: &str = "io.modelcontextprotocol/";

impl Talk {
    fn begin(seed: u64) -> Talk {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed << 20) ^ seed);
        (0..8).for_each(|_| assert!(dice.next(2) < 2));
        let company = if dice.next(5) == 0 { Company::Kin } else { Company::Strangers };
        let tools: Vec<String> = vec![if dice.next(3) == 0 { "read" } else { "*" }.into()];
        let version = ["2025-11-25", "2025-03-26"][dice.next(2)];
        let result = format!(r#"{{"x":1e999,"protocolVersion":"{version}"}}"#);
        let mut mux = Mux::new(tools.clone(), company);
        let greeting = match dice.next(8) {
            0 => Greeting::NotYet,
            1 | 2 => Greeting::ByClient(None),
            3 | 4 => Greeting::Modern,
            _ => Greeting::Legacy(result.clone()),
        };
        match &greeting {
            Greeting::NotYet => {}
            Greeting::Legacy(result) => mux.greeted(serde_json::from_str(result).unwrap()),
            Greeting::Modern => mux.greeted_modern(),
            Greeting::ByClient(_) => mux.greeted_by_client(),
        }
        let model = Model::new(tools, company, greeting);
        let topic = TOPICS[dice.next(TOPICS.len())];
        Talk { seed, dice, mux, model, topic, story: Vec::new(), heard: 0 }
    }

    fn step(&mut self, step: usize) {
        if self.dice.next(12) == 0 {
            self.write_down();
        }
        let many = if matches!(self.model.greeting, Greeting::ByClient(_)) { 40 } else { 4 };
        let ports = self.model.ports.clone();
        let port = ports.get(self.dice.next(ports.len())).copied();
        let (routed, expected) = match (self.dice.next(40), port) {
            (_, None) => return self.arrive(),
            (0, _) if self.dice.next(many) < 3 => return self.arrive(),
            (1, Some(port)) => {
                self.story.push(format!("{port:?} departs"));
                (self.mux.depart(port), self.model.depart(port))
            }
            (2, _) if step > 100 && self.dice.next(8) == 0 => {
                self.story.push("the server leaves".into());
                let (routed, expected) = (self.mux.server_left("gone"), self.model.server_left());
                self.compare(routed, expected);
                let to_server = self.mux.replay();
                (Routed { to_server, ..Routed::default() }, self.model.replay())
            }
            (n, Some(port)) if n % 2 == 0 => {
                let line = self.client_line();
                let line = self.spoilt(line);
                self.story.push(format!("{port:?}: {}", String::from_utf8_lossy(&line)));
                let expected = self.model.port_says(port, &line);
                (self.mux.port_says(port, line), expected)
            }
            _ => {
                let line = self.server_line();
                let line = self.spoilt(line);
                self.story.push(format!("server: {}", String::from_utf8_lossy(&line)));
                let expected = self.model.server_says(&line);
                (self.mux.server_says(line), expected)
            }
        };
        self.compare(routed, expected);
    }

    /// Another process goes on where this one is: it knows what was written down, and nothing else.
    fn write_down(&mut self) {
        let written = serde_json::to_vec(&self.mux).unwrap();
        self.mux = serde_json::from_slice(&written).unwrap();
        let again: Value = serde_json::to_value(&self.mux).unwrap();
        assert_eq!(again, serde_json::from_slice::<Value>(&written).unwrap());
        self.story.push("written down and read again".into());
    }

    fn arrive(&mut self) {
        let port = self.mux.arrive();
        self.story.push(format!("{port:?} arrives"));
        self.model.arrive(port);
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.dice.next(from.len())]
    }

    /// An id of the mux's own making, or nearly.
    fn own(&mut self) -> String {
        let last = self.model.last as usize;
        match self.dice.next(12) {
            0 => self.pick(IDS).into(),
            1 => (last + 1).to_string(),
            // The newest are the ones that somebody waits for.
            n if n < 9 => (last.saturating_sub(self.dice.next(6))).to_string(),
            _ => self.dice.next(last + 1).to_string(),
        }
    }

    fn client_line(&mut self) -> String {
        let id = self.pick(IDS);
        let mut meta = Vec::new();
        if self.dice.next(3) == 0 {
            meta.push(format!(r#""progressToken": {}"#, self.pick(IDS)));
        }
        if self.dice.next(4) == 0 {
            meta.push(format!(r#""{META}logLevel":"info""#));
        }
        if self.dice.next(20) == 0 {
            meta.push(r#""progressToken":[]"#.into());
        }
        let meta = format!(r#""_meta":{{"t":1e400 ,{}}}"#, meta.join(",")).replace(",}", "}");
        let call = |method: &str, params: String| {
            format!(r#" {{"a\u0062":[ ],"id": {id} ,"method":"{method}","params":{{{params}}}}}"#)
        };
        let (uri, kind) = match self.topic {
            [] => (self.pick(URIS), self.dice.next(26)),
            topic => (self.pick(&URIS[..2]), topic[self.dice.next(topic.len())]),
        };
        match kind {
            0 => call("ping", String::new()),
            1 => call("initialize", meta),
            2 => r#"{"method":"notifications/initialized"}"#.into(),
            3 => call("tools/list", meta),
            4 => call(
                "tools/call",
                format!(r#""name":"{}",{meta}"#, ["read", "write"][self.dice.next(2)]),
            ),
            5 | 6 => call("tools/call", format!(r#""name":"re\u0061d","task":{{}},{meta}"#)),
            7 | 8 => call("resources/subscribe", format!(r#""uri":{uri}"#)),
            9 => call("resources/unsubscribe", format!(r#""uri":{uri},{meta}"#)),
            10 | 11 => call("logging/setLevel", format!(r#""level": {}"#, self.pick(LEVEL))),
            12 => call("subscriptions/listen", meta),
            13 => {
                let method = ["tasks/get", "tasks/result", "tasks/cancel"][self.dice.next(3)];
                call(method, format!(r#""taskId":{}"#, self.pick(WORDS)))
            }
            14 => call("tasks/list", meta),
            15 => r#"{"method":"notifications/roots/list_changed"}"#.into(),
            16 | 17 => {
                format!(r#"{{"method":"notifications/cancelled","params":{{"requestId": {id} }}}}"#)
            }
            18 => format!(r#"{{"id":{},"result":{{"roots":[1e400]}}}}"#, self.own()),
            19 => {
                let (a, b) = (call("x", String::new()), call("y", meta));
                format!("[{a}, 5 ,{b}]")
            }
            22 => call("notifications/cancelled", format!(r#""requestId":{}"#, self.own())),
            23 => format!(
                r#"{{"method":"{}","params":{{"taskId":{},"uri":{uri}}}}}"#,
                ["tasks/cancel", "resources/unsubscribe", "logging/setLevel"][self.dice.next(3)],
                self.pick(WORDS)
            ),
            24 => call("resources/unsubscribe", format!(r#""uri":[{uri}]"#)),
            25 => format!(
                r#"{{"method":"notifications/progress","params":{{"progressToken":{}}}}}"#,
                self.own()
            ),
            20 => r#"{"method":"x/y","params":{"a":12345678901234567890123}}"#.into(),
            _ => call("x", meta),
        }
    }

    fn server_line(&mut self) -> String {
        let own = self.own();
        let note = |method: &str, params: String| {
            format!(r#"{{"method":"notifications/{method}" , "params":{{{params}}}}}"#)
        };
        let [word, status] = [self.pick(WORDS), self.pick(STATUS)];
        let task = format!(r#"{{"taskId":{word},"status":{status}}}"#);
        let tag = format!(r#""_meta":{{"{META}subscriptionId":{own}}}"#);
        match self.dice.next(30) {
            0..=4 => format!(r#"{{"result":{{"n":1e400, "id":1}},"id":{own}}}"#),
            5 => format!(r#"{{"id":{own},"error":{{"code":-1,"message":"no"}}}}"#),
            6 | 7 => format!(r#"{{"id":{own} ,"result":{{"task":{task}}}}}"#),
            8 => format!(r#"{{"id":{own},"result":{task},"error":null}}"#),
            9 => format!(r#"{{"id":{own},"error":{{"code":-32602}}}}"#),
            10 => format!(
                r#"{{"id":{own},"error":{{"code":-32042,"data":{{"elicitations":[{{"elicitationId":{word}}},3]}}}}}}"#
            ),
            11 => format!(
                r#"{{"id":{own},"result":{{"tools":[{{"name":"read"}} ,{{"name":"write"}}],"tasks":[{task},{{"taskId":"T2"}}, 5]}}}}"#
            ),
            12 => format!(r#"{{"id":{own},"result":{{{tag}}}}}"#),
            13 => format!(r#"{{"id":{},"method":"ping"}}"#, self.pick(IDS)),
            14 | 15 => format!(r#"{{"id":{},"method":"roots/list"}}"#, self.pick(IDS)),
            16 => format!(
                r#"{{"id":{},"method":"elicitation/create","params":{{"elicitationId":{word},"_meta":{{"{META}related-task":{task}}}}}}}"#,
                self.pick(IDS)
            ),
            17 => note("progress", format!(r#""progressToken":{own},"progress":1"#)),
            18 => note("cancelled", format!(r#""requestId":{own}"#)),
            19 => note("cancelled", format!(r#""requestId":{}"#, self.pick(IDS))),
            20 => note(["tools/list_changed", "x"][self.dice.next(2)], tag),
            21 => note("message", format!(r#""level":{},"data":[ ]"#, self.pick(LEVEL))),
            22 | 23 => note("resources/updated", format!(r#""uri":{}"#, self.pick(URIS))),
            24 => note(
                ["tools/list_changed", "prompts/list_changed"][self.dice.next(2)],
                String::new(),
            ),
            25 => note("tasks/status", format!(r#""taskId":{word},"status":{status}"#)),
            26 => note("elicitation/complete", format!(r#""elicitationId":{word}"#)),
            27 => note("vendor", format!(r#""_meta":{{"{META}related-task":{task}}}"#)),
            28 => note("vendor", String::new()),
            _ => format!(r#"[{{"id":{own},"result":1}}, {{"id":7,"method":"ping"}},[]]"#),
        }
    }

    /// Now and then a line is broken, or says a thing twice.
    fn spoilt(&mut self, line: String) -> Vec<u8> {
        const WORDS: &[&[u8]] = &[
            b"null",
            b"\"id\":1,",
            b"{",
            b"}",
            b"]",
            b",",
            b"\"",
            b"\\",
            b"\"params\":{",
            b"\"_meta\":{},",
            b"\"taskId\":\"T1\",",
            b"\"uri\":\"g\",",
            b"\"progressToken\":1,",
            b"1",
            b" ",
            b"\xff",
            b"\"x\"",
        ];
        match self.dice.next(12) {
            0 => {
                let mut line = self.dice.mutate(line.as_bytes(), WORDS);
                line.retain(|byte| !matches!(byte, b'\n' | b'\r'));
                // Halves of letters in keys are read by one and not by the other.
                if line.windows(3).any(|w| matches!(w, [b'\\', b'u', b'd' | b'D'])) {
                    return b"{}".to_vec();
                }
                line
            }
            1 => {
                let at: Vec<usize> = line.match_indices('{').map(|(at, _)| at + 1).collect();
                let at = at.get(self.dice.next(at.len())).copied().unwrap_or(0);
                let word = WORDS[self.dice.next(WORDS.len())];
                [&line.as_bytes()[..at], word, &line.as_bytes()[at..]].concat()
            }
            _ => line.into_bytes(),
        }
    }

    fn compare(&mut self, routed: Routed, expected: Heard) {
        self.heard += routed.to_server.len() + routed.to_ports.len();
        let Routed { to_server, to_ports, to_us, tools_changed } = routed;
        let mut same = tools_changed == expected.tools_changed
            && to_server.len() == expected.server.len()
            && to_ports.len() == expected.ports.len()
            && to_us.len() == expected.us.len();
        same &= to_server.iter().zip(&expected.server).all(|(line, said)| is(line, said));
        let ports = to_ports.iter().zip(&expected.ports);
        same &= ports.clone().all(|((port, line), (other, said))| port == other && is(line, said));
        let us = to_us.iter().zip(&expected.us);
        same &= us.clone().all(|((own, line), (other, said))| own == other && is(line, said));
        let figures = |talk: &Talk| {
            let of = |port: &Port| (talk.mux.in_flight_of(*port), talk.model.in_flight_of(*port));
            let of: Vec<_> = talk.model.ports.iter().map(of).collect();
            let (mux, model) = (&talk.mux, &talk.model);
            let known = (mux.hazards().is_empty(), model.hazards == 0);
            let all = [
                (mux.in_flight(), model.in_flight()),
                (mux.dropped() as usize, model.dropped as usize),
                (mux.may_sleep().into(), model.may_sleep().into()),
                (known.0.into(), known.1.into()),
            ];
            [all.to_vec(), of].concat()
        };
        let figures = figures(self);
        same &= figures.iter().all(|(mux, model)| mux == model);
        if !same {
            let text = |line: &Vec<u8>| String::from_utf8_lossy(line).into_owned();
            let ports: Vec<_> = to_ports.iter().map(|(port, line)| (port, text(line))).collect();
            let server: Vec<_> = to_server.iter().map(text).collect();
            panic!(
                "seed {}\n{}\n\nthe mux:   {server:?} {ports:?} {to_us:?}\nthe model: {expected:?}\n\
                 figures (in flight, dropped, may sleep, safe, of each): {figures:?}\n{:?} {:?}",
                self.seed,
                self.story.join("\n"),
                self.model.company,
                self.model.greeting,
            );
        }
    }
}

/// True if this line is what was to be said.
fn is(line: &[u8], said: &Said) -> bool {
    match said {
        Said::Line(text) => line == text.as_bytes(),
        Said::Ours(value) => serde_json::from_slice::<Value>(line).is_ok_and(|line| line == *value),
        Said::Error(id, code) => {
            let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#);
            // The id may be a number that fits nowhere, so only what follows is read.
            let error =
                line.strip_prefix(start.as_bytes()).and_then(|rest| rest.strip_suffix(b"}"));
            let error: Value =
                error.map_or(Value::Null, |e| serde_json::from_slice(e).unwrap_or_default());
            let said = error["code"].as_i64();
            // What is twice and broken is both, and which is seen first is nobody's concern.
            said == Some(*code)
                || id == "null" && matches!((said, code), (Some(-32700 | -32600), -32700 | -32600))
        }
    }
}
