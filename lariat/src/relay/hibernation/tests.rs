//! How a server sleeps and wakes, one example after the other.

use super::*;

const IDLE: Duration = Duration::from_secs(300);
const INIT: Duration = Duration::from_secs(60);

const INITIALIZE: &str =
    r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
const INTRODUCED: &str = r#"{"id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s"}}}"#;
const UNCHANGING: &str = r#"{"id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s"}}}"#;
const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;
const LIST: &str = r#"{"id":1,"method":"tools/list"}"#;
const CALL: &str = r#"{"id":2,"method":"tools/call"}"#;
const CALLED: &str = r#"{"id":2,"result":{}}"#;
const MODERN: &str = r#"{"id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
const LISTEN: &str = r#"{"id":5,"method":"subscriptions/listen","params":{}}"#;
const LISTENS: &str = r#"{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":5}}}"#;

/// A conversation, and the time in it.
struct Play {
    machine: Hibernation,
    now: Instant,
    signs: Signs,
}

impl Play {
    fn new(policy: Policy) -> Play {
        let now = Instant::now();
        Play { machine: Hibernation::awake(policy, now), now, signs: Signs::default() }
    }

    /// The same, and hands were shaken.
    fn shaken(policy: Policy) -> Play {
        let mut play = Play::new(policy);
        play.speak(&[('>', INITIALIZE), ('<', INTRODUCED), ('>', INITIALIZED)]);
        play
    }

    /// Host (`>`) and server (`<`) say something; the server's lines must reach the host.
    fn speak(&mut self, lines: &[(char, &str)]) {
        for (who, line) in lines {
            match who {
                '>' => self.host(line),
                _ => assert!(self.server(line), "not for the host: {line}"),
            }
        }
    }

    fn host(&mut self, line: &str) {
        self.machine.hear_host(&Sight::Line(format!("{line}\n").as_bytes()), self.now);
    }

    /// True if the host hears it.
    fn server(&mut self, line: &str) -> bool {
        self.machine.hear_server(&Sight::Line(format!("{line}\n").as_bytes()), self.now)
    }

    /// Time passes, in which nobody says anything.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.machine.deadline().filter(|due| *due <= until) {
            self.now = due;
            let signs = self.signs;
            self.machine.tick(due, || signs);
            assert!(self.machine.deadline() > Some(due) || self.machine.deadline().is_none());
        }
        self.now = until;
    }

    /// What is to be done, in short. Not what is only written down.
    fn acts(&mut self) -> Vec<String> {
        let text = |line: Vec<u8>| String::from_utf8(line).unwrap().trim().to_owned();
        std::iter::from_fn(|| self.machine.act())
            .filter_map(|act| match act {
                Act::ToServer(line) => Some(format!("> {}", text(line))),
                Act::ToHost(line) => Some(format!("< {}", text(line))),
                Act::Tell(_) => None,
                other => Some(format!("{other:?}")),
            })
            .collect()
    }

    /// What is worth writing down; all else is forgotten.
    fn told(&mut self) -> Vec<Told> {
        let told = |act| if let Act::Tell(told) = act { Some(told) } else { None };
        std::iter::from_fn(|| self.machine.act()).filter_map(told).collect()
    }

    /// It is silent for long enough, and goes.
    fn sleep(&mut self) {
        self.wait(IDLE);
        assert_eq!(self.acts(), ["Rest { failed: false }"]);
        self.machine.ended("it exited with code 0", self.now);
        assert!(self.machine.is_asleep());
        assert!(self.acts().is_empty());
    }

    /// It starts again and answers the handshake.
    fn wake(&mut self) {
        assert_eq!(self.acts(), ["Start"]);
        self.machine.started(self.now);
        assert_eq!(self.acts(), [format!("> {INITIALIZE}")]);
        assert!(!self.server(INTRODUCED));
    }
}

fn patient() -> Policy {
    Policy {
        idle: Idle::After(IDLE),
        lazy: None,
        init_timeout: Some(INIT),
        call_timeout: None,
        spin_limit: None,
    }
}

fn error(id: u32, why: &str) -> String {
    let error =
        json!({ "code": crate::mcp::reply::NO_SERVER, "message": format!("lariat: {why}") });
    format!("< {{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
}

/// The error for whoever has waited for a server that does not come.
fn gone(id: u32, why: &str) -> String {
    error(id, &format!("the server could not be started: {why}"))
}

#[test]
fn a_silent_server_sleeps_and_a_call_wakes_it() {
    let mut play = Play::shaken(patient());
    play.wait(IDLE - Duration::from_secs(1));
    assert!(play.acts().is_empty());
    play.sleep();
    play.host(CALL);
    play.wake();
    assert_eq!(play.acts(), [format!("> {INITIALIZED}"), format!("> {CALL}")]);
    assert!(play.machine.host_is_heard() && play.server(CALLED));
}

#[test]
fn whoever_waits_is_not_left_alone() {
    let asks = r#"{"id":"s","method":"roots/list"}"#;
    let answers = r#"{"id":"s","result":{}}"#;
    for (open, close) in [(('>', CALL), ('<', CALLED)), (('<', asks), ('>', answers))] {
        let mut play = Play::shaken(patient());
        play.speak(&[open]);
        assert_eq!(play.machine.deadline(), None);
        play.wait(10 * IDLE);
        assert!(play.acts().is_empty());
        play.speak(&[close]);
        play.sleep();
    }
}

#[test]
fn a_task_is_given_its_time() {
    let made = r#"{"id":2,"result":{"task":{"taskId":"t","status":"working","ttl":450000}}}"#;
    let mut play = Play::shaken(patient());
    play.speak(&[('>', CALL), ('<', made)]);
    play.wait(Duration::from_secs(449));
    assert!(play.acts().is_empty());
    play.speak(&[('>', r#"{"id":3,"method":"tools/call"}"#)]);
    // Its time is over, but somebody waits: nothing is due.
    play.wait(Duration::from_secs(10));
    assert_eq!(play.machine.deadline(), None);
    play.speak(&[('<', r#"{"id":3,"result":{}}"#)]);
    play.sleep();
}

#[test]
fn with_auto_something_must_speak_for_it() {
    let mut play = Play::shaken(Policy { idle: Idle::Auto(IDLE), ..patient() });
    play.wait(3 * IDLE);
    assert!(play.acts().is_empty());
    play.signs.host_orphaned = true;
    play.sleep();
}

#[test]
fn pings_and_what_is_known_do_not_wake() {
    let mut play = Play::shaken(patient());
    play.speak(&[('>', LIST), ('<', r#"{"id":1,"result":{"tools":[]}}"#)]);
    play.sleep();
    play.host(r#"{"id":7,"method":"ping"}"#);
    play.host(r#"{"id":8,"method":"tools/list"}"#);
    play.host(r#"{"method":"notifications/roots/list_changed"}"#);
    let pong = r#"< {"jsonrpc":"2.0","id":7,"result":{}}"#;
    assert_eq!(play.acts(), [pong, r#"< {"id":8,"result":{"tools":[]}}"#]);
    assert!(play.machine.is_asleep());
}

#[test]
fn what_is_said_meanwhile_keeps_its_order() {
    let mut play = Play::shaken(patient());
    play.wait(IDLE);
    assert_eq!(play.acts(), ["Rest { failed: false }"]);
    // On its way out: it is not heard any more, and nobody is told.
    assert!(!play.server(r#"{"method":"notifications/message"}"#));
    let ping = r#"{"id":3,"method":"ping"}"#;
    play.host(CALL);
    play.host(ping);
    assert_eq!(play.acts(), [r#"< {"jsonrpc":"2.0","id":3,"result":{}}"#], "anybody can say that");
    play.machine.ended("it exited with code 0", play.now);
    let note = r#"{"method":"notifications/note"}"#;
    play.host(note);
    play.wake();
    let all = [INITIALIZED, CALL, note].map(|line| format!("> {line}"));
    assert_eq!(play.acts(), all);
}

#[test]
fn a_server_that_comes_back_may_ask_whether_we_are_there() {
    let mut play = Play::shaken(patient());
    play.sleep();
    play.host(CALL);
    assert_eq!(play.acts(), ["Start"]);
    play.machine.started(play.now);
    assert!(!play.server(r#"{"id":"p","method":"ping"}"#));
    let pong = r#"> {"jsonrpc":"2.0","id":"p","result":{}}"#;
    assert_eq!(play.acts(), [format!("> {INITIALIZE}"), pong.into()]);
}

#[test]
fn a_wake_that_fails_is_said_and_tried_again_later() {
    let mut play = Play::shaken(patient());
    play.sleep();
    let mut pause = Duration::ZERO;
    for id in 2..14 {
        play.host(r#"{"method":"notifications/note"}"#);
        play.host(&format!(r#"{{"id":{id},"method":"tools/call"}}"#));
        if let Some(almost) = pause.checked_sub(Duration::from_millis(1)) {
            play.wait(almost);
            assert!(play.acts().is_empty(), "not before {pause:?}");
            play.wait(Duration::from_millis(1));
        }
        assert_eq!(play.acts(), ["Start"], "{id}");
        play.machine.ended("no such file", play.now);
        assert_eq!(play.acts(), [gone(id, "no such file")]);
        pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
    assert_eq!(pause, LONGEST_PAUSE);
    // Once it is back, the next time is a first time again.
    play.host(CALL);
    play.wait(pause);
    play.wake();
    assert_eq!((play.machine.failures, play.machine.not_before), (0, None));
}

#[test]
fn a_server_that_does_not_come_back_is_not_waited_for() {
    let refuses = r#"{"id":0,"error":{"code":1}}"#;
    for (answer, why) in [
        (Some(refuses), "it refused the handshake that it had accepted before"),
        (None, "it did not answer initialize in time"),
    ] {
        let mut play = Play::shaken(patient());
        play.sleep();
        play.host(CALL);
        assert_eq!(play.acts(), ["Start"]);
        play.machine.started(play.now);
        assert_eq!(play.acts(), [format!("> {INITIALIZE}")]);
        match answer {
            Some(line) => assert!(!play.server(line)),
            None => play.wait(INIT),
        }
        assert_eq!(play.acts(), [gone(2, why), "Rest { failed: true }".into()]);
        assert!(!play.server(INTRODUCED), "too late");
        play.machine.ended("it was ended by SIGKILL", play.now);
        assert!(play.machine.is_asleep());
        play.host(r#"{"id":3,"method":"tools/call"}"#);
        play.wait(FIRST_PAUSE);
        play.wake();
    }
}

#[test]
fn a_list_that_differs_is_told_where_that_was_promised() {
    for (introduced, promised) in [(INTRODUCED, true), (UNCHANGING, false)] {
        for (tools, differs) in [("[]", false), ("[1]", true)] {
            let mut play = Play::new(patient());
            play.speak(&[('>', INITIALIZE), ('<', introduced), ('>', INITIALIZED)]);
            play.speak(&[('>', LIST), ('<', r#"{"id":1,"result":{"tools":[]}}"#)]);
            play.sleep();
            play.host(CALL);
            assert_eq!(play.acts(), ["Start"]);
            play.machine.started(play.now);
            assert!(!play.server(introduced));
            let ours = r#"> {"jsonrpc":"2.0","id":"lariat:1","method":"tools/list"}"#;
            assert_eq!(play.acts()[2..], [format!("> {CALL}"), ours.into()]);
            // It says so by itself when it begins; we are about to see.
            let changed = r#"{"method":"notifications/tools/list_changed"}"#;
            assert!(!play.server(changed));
            assert!(play.server(CALLED));
            let listed = format!(r#"{{"id":"lariat:1","result":{{"tools":{tools}}}}}"#);
            assert!(!play.server(&listed));
            let told = play.acts().iter().any(|act| act.contains("tools/list_changed"));
            assert_eq!(told, promised && differs);
            assert!(play.machine.server_is_heard() && play.server(changed));
        }
    }
}

#[test]
fn another_introduction_is_written_down() {
    let mut play = Play::shaken(patient());
    play.sleep();
    play.host(CALL);
    assert_eq!(play.acts(), ["Start"]);
    play.machine.started(play.now);
    assert!(!play.server(&INTRODUCED.replace(r#""s""#, r#""t""#)));
    assert!(play.told().contains(&Told::Differs("name".into())));
}

#[test]
fn what_we_ask_ourselves_reaches_nobody_however_late() {
    let policy = Policy { idle: Idle::Auto(Duration::from_secs(10)), ..patient() };
    let mut play = Play::shaken(policy);
    play.speak(&[('>', LIST), ('<', r#"{"id":1,"result":{"tools":[]}}"#)]);
    play.signs.superseded = true;
    play.wait(Duration::from_secs(10));
    play.machine.ended("it exited with code 0", play.now);
    play.acts();
    play.host(CALL);
    play.wake();
    assert!(play.server(CALLED));
    play.signs.superseded = false;
    play.wait(OWN_PATIENCE - Duration::from_secs(1));
    assert_eq!(play.machine.looked, play.now - (OWN_PATIENCE - Duration::from_secs(1)));
    play.wait(Duration::from_secs(1));
    assert_eq!(play.machine.looked, play.now, "who does not answer is not waited for");
    play.acts();
    assert!(play.server(r#"{"method":"notifications/tools/list_changed"}"#));
    assert!(!play.server(r#"{"id":"lariat:1","result":{"tools":[]}}"#));
}

#[test]
fn a_call_that_takes_too_long_is_answered_once() {
    let policy = Policy { call_timeout: Some(Duration::from_secs(5)), ..patient() };
    for answers_late in [true, false] {
        let mut play = Play::new(policy);
        play.speak(&[('>', INITIALIZE)]);
        play.wait(Duration::from_secs(6));
        assert!(play.acts().is_empty(), "a greeting has a time of its own");
        play.speak(&[('<', INTRODUCED), ('>', INITIALIZED), ('>', CALL)]);
        play.wait(Duration::from_secs(5));
        let acts = play.acts();
        assert_eq!(acts[0], error(2, "no answer within 5 s (--call-timeout)"));
        assert!(acts[1].starts_with("> ") && acts[1].contains("notifications/cancelled"));
        assert_eq!(acts.len(), 2);
        if answers_late {
            assert!(!play.server(CALLED), "the host has its answer");
            assert!(play.machine.server_is_heard());
        }
        // One who heeds the word says nothing more; that is no reason to stay.
        play.sleep();
    }
}

#[test]
fn a_server_that_does_not_introduce_itself_ends_the_session() {
    let mut play = Play::new(patient());
    play.host(INITIALIZE);
    play.wait(INIT);
    let why = "the server did not answer within 60 s (--init-timeout)";
    assert_eq!(play.acts(), [error(0, why), "End(InitTimeout)".into()]);
    assert!(!play.server(INTRODUCED), "the host has its answer");
}

#[test]
fn whoever_is_cut_off_is_told_once() {
    let mut play = Play::shaken(patient());
    play.speak(&[('>', CALL)]);
    play.machine.cut_off("too much memory");
    assert_eq!(play.acts(), [error(2, "too much memory")]);
    assert!(!play.server(CALLED), "the host has its answer");
}

#[test]
fn who_watches_is_interrupted_only_by_a_successor() {
    let subscribe = r#"{"id":3,"method":"resources/subscribe","params":{"uri":"a"}}"#;
    let level = r#"{"id":4,"method":"logging/setLevel","params":{"level":"info"}}"#;
    let mut play = Play::shaken(patient());
    play.speak(&[('>', subscribe), ('<', r#"{"id":3,"result":{}}"#)]);
    play.speak(&[('>', level), ('<', r#"{"id":4,"result":{}}"#)]);
    play.signs.host_orphaned = true;
    play.wait(3 * IDLE);
    assert!(play.acts().is_empty());
    play.signs.superseded = true;
    play.sleep();
    play.host(CALL);
    play.wake();
    let again = [
        INITIALIZED,
        &level.replace(":4,", r#":"lariat:1","#),
        &subscribe.replace(":3,", r#":"lariat:2","#),
        CALL,
    ];
    let mut expected: Vec<String> = again.iter().map(|line| format!("> {line}")).collect();
    // It may have changed while nobody watched.
    let updated = json!({
        "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": "a" },
    });
    expected.push(format!("< {updated}"));
    assert_eq!(play.acts(), expected);
    assert!(!play.server(r#"{"id":"lariat:1","result":{}}"#));
    assert!(!play.server(r#"{"id":"lariat:2","result":{}}"#));
}

/// A modern server that sleeps though somebody listens.
fn listening() -> Play {
    let mut play = Play::new(Policy { idle: Idle::Auto(IDLE), ..patient() });
    play.speak(&[('>', MODERN), ('<', r#"{"id":1,"result":{}}"#)]);
    play.speak(&[('>', LISTEN), ('<', LISTENS)]);
    play.wait(3 * IDLE);
    assert!(play.acts().is_empty());
    play.signs.superseded = true;
    play.sleep();
    play
}

#[test]
fn a_listen_is_begun_again_and_acknowledged_once() {
    let mut play = listening();
    play.host(CALL);
    assert_eq!(play.acts(), ["Start"]);
    play.machine.started(play.now);
    assert_eq!(play.acts(), [format!("> {LISTEN}"), format!("> {CALL}")]);
    assert!(!play.server(LISTENS), "the host knows");
    assert!(play.machine.server_is_heard() && play.server(CALLED));
}

#[test]
fn a_listen_that_was_taken_back_is_not_begun_again() {
    let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":5}}"#;
    let mut asleep = listening();
    asleep.host(cancel);
    assert!(asleep.machine.is_asleep() && asleep.acts().is_empty());
    // The same, but the word is lost with a wake that fails.
    let mut waking = listening();
    waking.host(r#"{"id":3,"method":"tools/call"}"#);
    waking.host(cancel);
    assert_eq!(waking.acts(), ["Start"]);
    waking.machine.ended("no such file", waking.now);
    assert_eq!(waking.acts(), [gone(3, "no such file")]);
    for mut play in [asleep, waking] {
        play.host(CALL);
        play.wait(FIRST_PAUSE);
        assert_eq!(play.acts(), ["Start"]);
        play.machine.started(play.now);
        assert_eq!(play.acts(), [format!("> {CALL}")]);
    }
}

#[test]
fn a_host_that_closes_is_served_to_the_end() {
    let mut awake = Play::shaken(patient());
    awake.machine.host_closed();
    assert_eq!(awake.acts(), ["CloseInput"]);
    awake.wait(3 * IDLE);
    assert!(awake.acts().is_empty(), "it ends anyway");

    let mut asleep = Play::shaken(patient());
    asleep.sleep();
    asleep.machine.host_closed();
    assert_eq!(asleep.acts(), ["End(HostClosed)"]);

    let mut waking = Play::shaken(patient());
    waking.sleep();
    waking.host(CALL);
    waking.machine.host_closed();
    assert_eq!(waking.acts(), ["Start", "Hurry"], "and its time runs");
    waking.machine.started(waking.now);
    assert_eq!(waking.acts(), [format!("> {INITIALIZE}")]);
    assert!(!waking.server(INTRODUCED));
    let rest = [format!("> {INITIALIZED}"), format!("> {CALL}"), "CloseInput".into()];
    assert_eq!(waking.acts(), rest);

    let mut failing = Play::shaken(patient());
    failing.sleep();
    failing.host(CALL);
    failing.machine.host_closed();
    assert_eq!(failing.acts(), ["Start", "Hurry"]);
    failing.machine.ended("no such file", failing.now);
    assert_eq!(failing.acts(), [gone(2, "no such file"), "End(HostClosed)".into()]);
}

#[test]
fn what_is_known_is_enough_to_begin_with() {
    let mut known = Play::shaken(patient());
    let known = std::mem::take(known.machine.talk.known_mut());
    let mut play = Play::new(patient());
    play.machine = Hibernation::asleep(patient(), known, play.now);
    play.host(INITIALIZE);
    play.host(INITIALIZED);
    assert_eq!(play.acts(), [format!("< {INTRODUCED}")]);
    play.host(CALL);
    play.wake();
    assert_eq!(play.acts(), [format!("> {INITIALIZED}"), format!("> {CALL}")]);
}

#[test]
fn a_ping_is_answered_while_it_wakes() {
    let mut play = Play::shaken(patient());
    play.sleep();
    play.host(CALL);
    assert_eq!(play.acts(), ["Start"]);
    play.host(r#"{"jsonrpc":"2.0","id":99,"method":"ping"}"#);
    assert_eq!(play.acts(), [r#"< {"jsonrpc":"2.0","id":99,"result":{}}"#]);
}

#[test]
fn whoever_waits_for_a_wake_is_cut_off_too() {
    let mut play = Play::shaken(patient());
    play.sleep();
    play.host(CALL);
    assert_eq!(play.acts(), ["Start"]);
    play.machine.cut_off("too much");
    let said = play.acts();
    assert!(said.len() == 1 && said[0].contains("too much"), "{said:?}");
}
