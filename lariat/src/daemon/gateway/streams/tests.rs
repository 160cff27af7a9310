use super::*;
use crate::dice::{self, Dice};
use std::time::Instant;

fn ask(id: &str) -> Ask<'_> {
    Ask { id, token: None }
}

fn line(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn answer(id: &str) -> Bytes {
    line(&format!(r#"{{"id":{id},"result":{{}}}}"#))
}

/// All that a reader has now.
fn read(streams: &mut Streams, reader: &Reader) -> Vec<String> {
    let mut found = Vec::new();
    while let Next::Event(_, line) = streams.next(reader) {
        found.push(String::from_utf8(line.to_vec()).unwrap());
    }
    found
}

#[test]
fn an_answer_goes_where_it_was_asked_and_ends_the_stream() {
    let mut streams = Streams::new();
    let one = streams.open(&[ask("1")], false).unwrap();
    let other = streams.open(&[ask("\"1\"")], false).unwrap();
    assert_eq!(streams.open(&[ask("2"), ask("1")], false).unwrap_err(), Twice);
    streams.deliver(answer("\"1\""));
    assert_eq!(streams.next(&one), Next::Wait);
    assert_eq!(streams.next(&other), Next::Event(1, answer("\"1\"")));
    assert_eq!(streams.next(&other), Next::Over);
    streams.deliver(answer("1"));
    assert_eq!(read(&mut streams, &one).len(), 1);
    assert_eq!(streams.next(&one), Next::Over);
    streams.deliver(answer("1"));
    assert_eq!(streams.dropped, 1, "nobody asked");
    // The one that was refused has left nothing.
    streams.open(&[ask("2")], false).unwrap();
}

/// Who opens many streams and reads none of them does not have all of it kept somewhere else.
#[test]
fn what_is_on_its_way_counts_until_more_is_asked_for() {
    let mut streams = Streams::new();
    let long = |id: &str| {
        let text = "x".repeat(MOST_BYTES);
        line(&format!(r#"{{"id":{id},"result":"{text}"}}"#))
    };
    let [one, other] = ["1", "2"].map(|id| streams.open(&[ask(id)], false).unwrap());
    streams.deliver(long("1"));
    assert!(matches!(streams.next(&one), Next::Event(1, _)));
    assert!(!streams.is_full(), "one that is alone may be as long as it is");
    streams.deliver(long("2"));
    assert!(matches!(streams.next(&other), Next::Event(1, _)));
    streams.shed(false);
    assert!(streams.is_full(), "nobody has read either of them");
    assert_eq!(streams.next(&one), Next::Over);
    streams.make_room();
    assert!(!streams.is_full());
    // Whoever left in the middle of it may come back for all of it.
    streams.detach(&other);
    let again = streams.attach(other.stream, Some(0)).unwrap();
    assert!(matches!(streams.next(&again), Next::Event(1, _)));
}

#[test]
fn what_belongs_to_a_request_is_beside_its_answer() {
    let mut streams = Streams::new();
    let (progress, log, question) = (
        line(r#"{"method":"notifications/progress","params":{"progressToken":"t","progress":1}}"#),
        line(r#"{"method":"notifications/message","params":{}}"#),
        line(r#"{"id":9,"method":"sampling/createMessage"}"#),
    );
    let one = streams.open(&[Ask { id: "1", token: Some("\"t\"") }], false).unwrap();
    let own = streams.attach(OWN, None).unwrap();
    for message in [&progress, &log, &question] {
        streams.deliver(message.clone());
    }
    assert_eq!(read(&mut streams, &one).len(), 3);
    // With two in flight nobody knows which one it is about; progress says so itself.
    let two = streams.open(&[ask("2")], false).unwrap();
    for message in [&progress, &log, &question] {
        streams.deliver(message.clone());
    }
    assert_eq!(read(&mut streams, &one).len(), 1);
    assert_eq!(read(&mut streams, &two).len(), 0);
    assert_eq!(read(&mut streams, &own).len(), 2);
    // A server that asks is heard by somebody, if anybody listens at all.
    streams.detach(&own);
    streams.deliver(question.clone());
    assert_eq!(read(&mut streams, &two).len(), 1);
}

#[test]
fn what_nobody_listens_for_waits() {
    let mut streams = Streams::new();
    let change = line(r#"{"method":"notifications/tools/list_changed"}"#);
    streams.deliver(change.clone());
    let plain = streams.open(&[ask("1")], true).unwrap();
    streams.deliver(line(r#"{"method":"notifications/message"}"#));
    assert_eq!(streams.next(&plain), Next::Wait, "it takes nothing but its answer");
    let own = streams.attach(OWN, None).unwrap();
    assert!(streams.is_read());
    assert_eq!(read(&mut streams, &own).len(), 2);
    // Although a request is in flight.
    let _one = streams.open(&[ask("2")], false).unwrap();
    streams.deliver(change);
    assert_eq!(read(&mut streams, &own).len(), 1);
}

#[test]
fn who_comes_back_gets_what_it_missed_on_that_stream() {
    let mut streams = Streams::new();
    let message = |n: u32| line(&format!(r#"{{"method":"m","params":{n}}}"#));
    let one = streams.open(&[ask("1")], false).unwrap();
    streams.deliver(message(1));
    streams.deliver(message(2));
    assert_eq!(read(&mut streams, &one).len(), 2);
    streams.detach(&one);
    streams.deliver(answer("1"));
    let again = streams.attach(one.stream, Some(1)).unwrap();
    assert_eq!(streams.next(&one), Next::Over, "the one before leaves");
    assert_eq!(streams.next(&again), Next::Event(2, message(2)));
    assert_eq!(streams.next(&again), Next::Event(3, answer("1")));
    assert_eq!(streams.next(&again), Next::Over);
    streams.detach(&again);
    assert!(streams.attach(one.stream, Some(3)).is_some());
    assert!(streams.attach(one.stream, Some(4)).is_none(), "never sent");
    assert!(streams.attach(77, Some(0)).is_none(), "never opened");
}

#[test]
fn what_was_read_is_forgotten_first_and_who_does_not_read_loses_its_stream() {
    let mut streams = Streams::new();
    let own = streams.attach(OWN, None).unwrap();
    let one = streams.open(&[ask("1")], false).unwrap();
    streams.deliver(answer("1"));
    assert_eq!(read(&mut streams, &one).len(), 1);
    streams.detach(&one);
    let long = line(&format!(r#"{{"method":"m","params":"{}"}}"#, "x".repeat(MOST_BYTES / 2)));
    streams.deliver(long.clone());
    assert!(!streams.is_full());
    streams.deliver(long.clone());
    assert!(streams.attach(one.stream, Some(0)).is_none(), "forgotten for them");
    assert!(streams.is_full(), "nothing else was read");
    streams.shed(false);
    assert!(streams.is_full(), "somebody reads, and may be slow");
    streams.shed(true);
    assert!(!streams.is_full());
    assert_eq!(streams.next(&own), Next::Over);
    assert!(streams.attach(OWN, Some(0)).is_none(), "it would miss something");
    let own = streams.attach(OWN, None).unwrap();
    assert_eq!(read(&mut streams, &own).len(), 1, "what is left");
    streams.detach(&own);
    for _ in 0..2 * MOST_EVENTS {
        streams.deliver(line(r#"{"method":"notifications/resources/updated"}"#));
        streams.shed(false);
        assert!(!streams.is_full(), "nobody reads");
    }
}

#[test]
fn a_batch_is_answered_on_one_stream() {
    let mut streams = Streams::new();
    let both = streams.open(&[ask("1"), ask("2"), ask("3")], false).unwrap();
    streams.deliver(line(r#"[{"id":2,"result":1}, 7,{"id":1,"result":2}]"#));
    assert_eq!(read(&mut streams, &both).len(), 2);
    assert_eq!((streams.next(&both), streams.dropped), (Next::Wait, 1));
    streams.cancel("3");
    assert_eq!(streams.next(&both), Next::Over);
    let rest = streams.open(&[ask("4")], false).unwrap();
    streams.end();
    assert_eq!(streams.next(&rest), Next::Over);
}

/// Whatever a server says and whoever reads, what is kept stays within its bounds.
#[test]
fn nonsense_and_chance_stay_within_bounds() {
    let lines = [
        r#"{"id":1,"result":{}}"#,
        r#"{"id":2,"error":{}}"#,
        r#"{"method":"notifications/progress","params":{"progressToken":1}}"#,
        r#"{"method":"notifications/tools/list_changed"}"#,
        r#"{"id":9,"method":"ping"}"#,
        r#"[{"id":3,"result":1},{"id":4,"result":1}]"#,
    ];
    let words: [&[u8]; 4] = [b"{", b"null", b"\"id\":", b"["];
    let mut dice = Dice(0x0bad_5eed);
    let mut streams = Streams::new();
    let mut readers: Vec<Reader> = Vec::new();
    let (end, mut turn) = (dice::enough(0), 0);
    while turn < 20_000 || Instant::now() < end {
        turn += 1;
        match dice.next(6) {
            0 => {
                let (id, token) = (dice.next(5).to_string(), dice.next(2).to_string());
                let ask = Ask { id: &id, token: Some(&token) };
                readers.extend(streams.open(&[ask], dice.next(3) == 0).ok());
            }
            1 => readers.extend(streams.attach(dice.next(turn / 6 + 1) as u64, None)),
            2 if !readers.is_empty() => {
                let at = dice.next(readers.len());
                streams.detach(&readers.swap_remove(at));
            }
            3 if !readers.is_empty() => {
                let at = dice.next(readers.len());
                streams.next(&readers[at]);
            }
            4 => streams.cancel(&dice.next(5).to_string()),
            _ => {
                let line = lines[dice.next(lines.len())].as_bytes();
                streams.deliver(dice.mutate(line, &words).into());
                streams.deliver(Bytes::copy_from_slice(line));
                streams.shed(dice.next(9) == 0);
            }
        }
        readers.truncate(64);
        let kept: usize = streams.streams.values().map(|it| it.events.len()).sum();
        let bytes: usize =
            streams.streams.values().flat_map(|it| &it.events).map(|it| it.line.len()).sum();
        assert_eq!((kept, bytes), (streams.events, streams.bytes));
        assert!(streams.pending.len() <= 5 && streams.tokens.len() <= 2);
    }
    streams.shed(true);
    assert!(!streams.is_full());
}
