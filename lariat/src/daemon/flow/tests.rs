use super::*;
use hyper::StatusCode;
use std::future::{pending, ready};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

/// Rests as soon as it may, with this answer to everything. Gives how often something was asked, too.
async fn rested(stream: DuplexStream, answer: impl Fn() -> Answer) -> (End<DuplexStream>, usize) {
    let asked = AtomicUsize::new(0);
    let (_stop, stopped) = watch::channel(false);
    let around = Around { called: ready(()), given_up: pending(), is_told: || true, stopped };
    let answer = |_unread: Request<Incoming>| {
        asked.fetch_add(1, Ordering::Relaxed);
        ready(answer())
    };
    let idle = Idle { stream, unread: Bytes::new(), heard: false };
    let end = converse(idle, answer, around).await;
    (end, asked.into_inner())
}

fn refused() -> Answer {
    let mut answer = Answer::new(Content::Whole(Bytes::from_static(b"no\n")));
    *answer.status_mut() = StatusCode::FORBIDDEN;
    answer
}

/// Whoever is refused before its body is read must not have that taken for its next request.
#[tokio::test]
async fn a_body_that_nobody_read_is_no_request() {
    let inner = "POST /inner HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let length = inner.len();
    let outer = format!("POST /outer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    // The whole of it is there, or a part.
    for there in [length, length - 1, 1, 0] {
        let (mut near, far) = duplex(1 << 16);
        near.write_all(format!("{outer}{}", &inner[..there]).as_bytes()).await.unwrap();
        let (end, asked) = rested(far, refused).await;
        assert_eq!(asked, 1, "{there} bytes");
        match end {
            End::Over => assert!(there < length, "it could have gone on"),
            End::Quiet(idle) => assert_eq!((there, &idle.unread[..]), (length, &b""[..])),
            End::Midway(..) => panic!("nothing is left to be said"),
        }
    }
}

/// What was asked behind it is kept.
#[tokio::test]
async fn the_next_request_is_read_anew() {
    let (mut near, far) = duplex(1 << 16);
    near.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HT").await.unwrap();
    let (end, asked) = rested(far, refused).await;
    let End::Quiet(idle) = end else { panic!("it rests") };
    assert_eq!((asked, &idle.unread[..], idle.heard), (1, &b"GET /b HT"[..], true));
}

/// An answer without an end rests when all of it that there is has been written, and not before: also if
/// one piece has gone through in the same breath in which the next is stuck.
#[tokio::test]
async fn what_is_stuck_does_not_rest() {
    const PIECE: usize = 70_000;
    let (mut near, far) = duplex(100_000);
    near.write_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let (lines, events) = mpsc::channel(4);
    for byte in [b'a', b'b'] {
        lines.try_send(Bytes::from(vec![byte; PIECE])).unwrap();
    }
    let events = Mutex::new(Some(events));
    let answer = || {
        let events = events.lock().unwrap().take().expect("it is asked once");
        Answer::new(Content::Stream(events))
    };
    let mut resting = pin!(rested(far, answer));
    for _ in 0..100 {
        tokio::select! {
            biased;
            _ = &mut resting => panic!("the second piece is not written"),
            () = tokio::task::yield_now() => {}
        }
    }
    let mut heard = Vec::new();
    let (end, _) = loop {
        let mut some = [0; 4096];
        tokio::select! {
            rested = &mut resting => break rested,
            count = near.read(&mut some) => heard.extend_from_slice(&some[..count.unwrap()]),
        }
    };
    assert!(matches!(end, End::Midway(_, Midway { chunked: true, .. })));
    drop(end);
    near.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard.iter().filter(|byte| **byte == b'b').count(), PIECE);
    assert!(heard.ends_with(b"b\r\n"), "a whole piece");
}

/// A request with a body that nobody reads is no beginning of a stream that could rest.
#[tokio::test]
async fn events_for_one_who_says_too_much_do_not_rest() {
    let (mut near, far) = duplex(1 << 16);
    near.write_all(b"GET /events HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        .await
        .unwrap();
    let (_lines, events) = mpsc::channel(4);
    let events = Mutex::new(Some(events));
    let answer = || Answer::new(Content::Stream(events.lock().unwrap().take().expect("once")));
    let mut resting = pin!(rested(far, answer));
    for _ in 0..100 {
        tokio::select! {
            biased;
            (end, _) = &mut resting => {
                assert!(matches!(end, End::Over), "half a request is left");
                return;
            }
            () = tokio::task::yield_now() => {}
        }
    }
}
