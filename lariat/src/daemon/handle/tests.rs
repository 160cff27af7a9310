//! Headers are read as HTTP has them, and a slow reader of events is told what it missed.

use super::*;
use hyper::header::{HeaderName, HeaderValue};
use std::time::Duration;
use tokio::time::timeout;

fn headers(of: &[(HeaderName, &'static str)]) -> HeaderMap {
    of.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
}

fn event(number: u32) -> Event {
    Event {
        time: String::new(),
        session: crate::id::SessionId::of(contain::Mark::random().unwrap()),
        server: None,
        event: "ready",
        why: Some(number.to_string().into()),
        receipt: None,
    }
}

#[test]
fn a_lease_is_by_connection_or_not_said() {
    let name = HeaderName::from_static(api::LEASE);
    let wants = |of: &[(HeaderName, &'static str)]| {
        let mut all = HeaderMap::new();
        for (name, value) in of {
            all.append(name.clone(), HeaderValue::from_static(value));
        }
        wants_connection_lease(&all).map_err(|problem| problem.status)
    };
    assert_eq!(wants(&[]), Ok(false));
    assert_eq!(wants(&[(name.clone(), "connection")]), Ok(true));
    assert_eq!(wants(&[(name.clone(), "Connection")]), Ok(true));
    assert_eq!(wants(&[(name.clone(), "forever")]), Err(422));
    assert_eq!(wants(&[(name.clone(), "")]), Err(422));
    assert_eq!(wants(&[(name.clone(), "connection"), (name, "connection")]), Err(422));
}

#[test]
fn an_upgrade_takes_two_headers() {
    let (connection, upgrade) = (header::CONNECTION, header::UPGRADE);
    let both = [(connection.clone(), "keep-alive, Upgrade"), (upgrade.clone(), "MCP")];
    assert!(wants_mcp(&headers(&both)));
    assert!(!wants_mcp(&headers(&both[..1])) && !wants_mcp(&headers(&both[1..])));
    assert!(!wants_mcp(&headers(&[(connection, "upgrade"), (upgrade, "websocket")])));
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_reader_is_told_what_it_missed() {
    let events = broadcast::Sender::new(4);
    let (lines, mut reader) = mpsc::channel(1);
    let stopped = watch::Sender::new(false);
    let telling = tokio::spawn(tell(events.subscribe(), lines, stopped.subscribe()));
    for n in 0..100 {
        events.send(event(n)).unwrap();
    }
    stopped.send_replace(true);
    let mut heard = String::new();
    while let Some(line) = timeout(Duration::from_secs(10), reader.recv()).await.unwrap() {
        heard += std::str::from_utf8(&line).unwrap();
    }
    assert!(heard.contains(r#""event":"missed""#) && heard.contains(r#""count":96"#), "{heard}");
    let last: Vec<String> = (96..100).map(|n| format!(r#""why":"{n}""#)).collect();
    assert!(last.iter().all(|why| heard.contains(why)) && heard.lines().count() == 5, "{heard}");
    telling.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_reader_that_leaves_is_not_waited_for() {
    let events = broadcast::Sender::<Event>::new(4);
    let (lines, reader) = mpsc::channel(1);
    let stopped = watch::Sender::new(false);
    let telling = tokio::spawn(tell(events.subscribe(), lines, stopped.subscribe()));
    drop(reader);
    timeout(Duration::from_secs(10), telling).await.unwrap().unwrap();
}
