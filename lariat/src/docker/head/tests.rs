//! Facts about heads and chunks, and mutations of real ones.

use super::*;
use crate::dice::Dice;

const PLAIN: &[u8] = b"GET /v1.44/containers/json?all=1 HTTP/1.1\r\nHost: docker\r\n\
    User-Agent: Docker-Client/27.0 (linux)\r\n\r\n";
const CREATE: &[u8] = b"POST /v1.44/containers/create?name=x HTTP/1.1\r\nHost: docker\r\n\
    content-LENGTH: 12\r\nX-Odd:   two  spaces \r\nContent-Type: application/json\r\n\r\n";
const PIPED: &[u8] = b"POST /containers/create HTTP/1.1\r\nHost: d\r\n\
    Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nTrailer: X-Sum\r\nX-A: 1\r\n\r\n";
const ATTACH: &[u8] = b"POST /containers/x/attach?stream=1 HTTP/1.1\r\nHost: docker\r\n\
    Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n";
const OLD: &[u8] = b"HEAD /_ping HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 201 Created\r\nApi-Version: 1.44\r\n\
    Content-Type: application/json\r\nContent-Length: 88\r\n\r\n";
const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Transfer-Encoding: chunked\r\n\r\n";
const TUNNEL: &[u8] = b"HTTP/1.1 101 UPGRADED\r\n\
    Content-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
const OLD_TUNNEL: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: application/vnd.docker.multiplexed-stream\r\n\r\n";
const CHUNKED: &[u8] = b"5\r\nhello\r\n00a;x=\"y\"\r\n, worlds!!\r\n0\r\nX-Sum: 1\r\nB: 2\r\n\r\n";

fn read(bytes: &[u8]) -> Request {
    request(bytes).unwrap().unwrap()
}

/// A head with these lines besides the first.
fn head(version: &str, lines: &str) -> Vec<u8> {
    format!("POST /x HTTP/{version}\r\n{lines}\r\n").into_bytes()
}

fn refused(version: &str, lines: &str) -> bool {
    matches!(request(&head(version, lines)), Err(Bad::Malformed(_)))
}

#[test]
fn a_request_says_what_follows() {
    let plain = read(PLAIN);
    assert_eq!(plain.method, "GET");
    assert_eq!(plain.target, "/v1.44/containers/json?all=1");
    assert_eq!((plain.length, plain.close), (PLAIN.len(), false));
    assert_eq!(plain.body, Body::Empty);
    assert!(plain.body.is_done());

    assert_eq!(read(CREATE).body, Body::Length(12));
    assert_eq!(read(PIPED).body, Body::Chunked(Chunks::default()));
    assert!(read(PIPED).expects_continue);
    assert!(!read(OLD).close, "kept alive on demand");
    assert!(read(&head("1.0", "")).close);
    assert!(read(&head("1.1", "Connection: x\r\nConnection: a ,CLOSE\r\n")).close);
    assert!(!read(&head("1.0", "Expect: 100-continue\r\nContent-Length: 1\r\n")).expects_continue);
}

#[test]
fn a_head_is_found_whatever_follows_and_not_before_its_end() {
    for text in [PLAIN, CREATE, PIPED, ATTACH, OLD] {
        for end in 0..text.len() {
            assert_eq!(request(&text[..end]), Ok(None));
        }
        assert_eq!(read(&[text, b"{\"a\": 1}\n\n"].concat()), read(text));
    }
}

#[test]
fn what_two_readers_could_take_differently_is_refused() {
    assert!(refused("1.1", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"));
    assert!(refused("1.1", "Content-Length: 5\r\ncontent-length: 6\r\n"));
    assert!(refused("1.1", "Content-Length: 5\r\ncontent-length: 05\r\n"));
    assert_eq!(
        read(&head("1.1", "Content-Length: 5\r\nCONTENT-LENGTH:5\r\n")).body,
        Body::Length(5)
    );
    for length in ["", "+5", "-5", "5, 5", "5 5", "0x5", "5.0", "٥", "9223372036854775808"] {
        assert!(refused("1.1", &format!("Content-Length: {length}\r\n")), "{length}");
    }
    assert!(!refused("1.1", "Content-Length: 9223372036854775807\r\n"));
    for coding in ["identity", "gzip, chunked", "chunked, chunked", "xchunked", "", "chunked;q=1"] {
        assert!(refused("1.1", &format!("Transfer-Encoding: {coding}\r\n")), "{coding}");
    }
    assert!(refused("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"));
    assert!(refused("1.0", "Transfer-Encoding: chunked\r\n"));
    assert!(!refused("1.1", "Transfer-Encoding: Chunked\r\n"));
    assert!(refused("1.1", "A: 1\r\n folded\r\n"));
    assert!(refused("1.1", " A: 1\r\n"));
    assert!(refused("1.1", "Content-Length : 5\r\n"));
    assert!(refused("1.1", ": 5\r\n"));
    assert!(refused("1.1", "A: 1\rContent-Length: 5\r\n"));
    assert!(refused("1.1", "A: 1\nB: 2\r\n"), "a bare newline");
    assert!(refused("1.1", "A: \0\r\n"));
    for version in ["0.9", "1.2", "2.0", "1.1 ", "1", "11"] {
        assert!(refused(version, ""), "{version}");
    }
    for text in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
    ] {
        assert!(matches!(request(text), Err(Bad::Malformed(_))), "{text:?}");
    }
}

#[test]
fn a_head_is_bounded() {
    let long = |n: usize| head("1.1", &format!("A: {}\r\n", "x".repeat(n)));
    let most = LONGEST_HEAD - long(0).len();
    assert_eq!(read(&long(most)).length, LONGEST_HEAD);
    assert_eq!(request(&long(most + 1)), Err(Bad::TooLarge));
    let endless = vec![b'x'; LONGEST_HEAD];
    assert_eq!(request(&endless[1..]), Ok(None));
    assert_eq!(request(&endless), Err(Bad::TooLarge));
    assert!(request(&head("1.1", &"A: 1\r\n".repeat(MOST_HEADERS))).is_ok());
    assert_eq!(request(&head("1.1", &"A: 1\r\n".repeat(MOST_HEADERS + 1))), Err(Bad::TooLarge));
}

#[test]
fn a_response_says_what_follows() {
    let read = |bytes: &[u8], method| response(bytes, method).unwrap().unwrap();
    let line = |line: &str| format!("HTTP/1.1 {line}\r\nContent-Length: 5\r\n\r\n").into_bytes();
    assert_eq!(read(ANSWER, "POST").body, Body::Length(88));
    assert_eq!(read(ANSWER, "HEAD").body, Body::Empty);
    assert_eq!(read(EVENTS, "GET").body, Body::Chunked(Chunks::default()));
    assert!(!read(EVENTS, "GET").close);
    for code in ["100 Continue", "102", "204 No Content", "304 Not Modified"] {
        assert_eq!(read(&line(code), "GET").body, Body::Empty, "{code}");
    }
    assert_eq!(read(&line("200 Established"), "CONNECT").body, Body::UntilClose);
    let open = read(b"HTTP/1.1 200 OK\r\n\r\n", "GET");
    assert_eq!((open.body.clone(), open.close, open.hijacked()), (Body::UntilClose, true, false));
    assert!(response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "GET").is_err());
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(response(both.as_bytes(), "GET").is_err());
    assert_eq!(response(&ANSWER[..ANSWER.len() - 1], "GET"), Ok(None));
}

#[test]
fn a_tunnel_is_told_from_a_long_answer() {
    let hijacked = |bytes: &[u8]| response(bytes, "POST").unwrap().unwrap().hijacked();
    assert!(hijacked(TUNNEL));
    assert!(hijacked(OLD_TUNNEL));
    assert!(!hijacked(EVENTS));
    let logs = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\
        Content-Type: application/vnd.docker.raw-stream\r\n\r\n";
    assert!(!hijacked(logs.as_bytes()), "it has an end of its own");
}

#[test]
fn a_new_length_leaves_all_other_lines() {
    let new = with_length(PIPED, &read(PIPED), 42);
    let expected = "POST /containers/create HTTP/1.1\r\nHost: d\r\nX-A: 1\r\n\
        Content-Length: 42\r\n\r\n";
    assert_eq!(String::from_utf8(new).unwrap(), expected);
    let new = with_length(&[CREATE, b"{body}"].concat(), &read(CREATE), 7);
    let expected = "POST /v1.44/containers/create?name=x HTTP/1.1\r\nHost: docker\r\n\
        X-Odd:   two  spaces \r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n";
    assert_eq!(String::from_utf8(new).unwrap(), expected);
}

#[test]
fn a_body_ends_where_it_says() {
    let mut body = Body::Length(5);
    assert_eq!(body.take(b"abc"), Ok(3));
    assert!(!body.is_done());
    assert_eq!(body.take(b"defg"), Ok(2));
    assert!(body.is_done());
    assert_eq!(body.take(b"more"), Ok(0));
    assert_eq!(Body::Empty.take(b"x"), Ok(0));
    assert_eq!(Body::UntilClose.take(b"x"), Ok(1));
    assert!(!Body::UntilClose.is_done());
    assert_eq!(Body::Length(u64::MAX).take(b"x"), Ok(1));
}

#[test]
fn chunks_end_where_they_say() {
    assert_eq!(dechunk(CHUNKED).unwrap(), b"hello, worlds!!");
    assert_eq!(dechunk(b"0\r\n\r\n").unwrap(), b"");
    let mut body = Body::Chunked(Chunks::default());
    assert_eq!(body.take(&[CHUNKED, b"GET /"].concat()), Ok(CHUNKED.len()));
    assert!(body.is_done());
    for end in 0..CHUNKED.len() {
        assert!(dechunk(&CHUNKED[..end]).is_err());
    }
    assert!(dechunk(b"0\r\n\r\n\r\n").is_err());
}

#[test]
fn chunks_are_read_strictly() {
    for raw in [
        "\r\n\r\n",
        ";x\r\n\r\n",
        "+0\r\n\r\n",
        "0x0\r\n\r\n",
        " 0\r\n\r\n",
        "0 \r\n\r\n",
        "-1\r\n\r\n",
        "0\n\r\n",
        "0\r\n\n",
        "0;a\n\r\n",
        "0;\ra\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "0\r\nA: 1\nB: 2\r\n\r\n",
        "0\r\nA: 1\r\n B: 2\r\n\r\n",
        "0\r\nA: \0\r\n\r\n",
    ] {
        assert!(matches!(dechunk(raw.as_bytes()), Err(Bad::Malformed(_))), "{raw:?}");
    }
    let take = |raw: &str| Chunks::default().take(raw.as_bytes());
    assert!(take("7fffffffffffffff\r\n").is_ok());
    assert!(take("8000000000000000\r\n").is_err());
    assert!(take("ffffffffffffffff\r\n").is_err());
    assert!(take("10000000000000000\r\n").is_err());
    assert!(take("00000000000000000\r\n").is_err(), "more digits than the engine reads");
    assert_eq!(take(&format!("0;{}", "x".repeat(5000))), Err(Bad::TooLarge));
    assert_eq!(take(&format!("0\r\n{}", "A: b\r\n".repeat(1100))), Err(Bad::TooLarge));
}

/// Everything a body takes, and how it ends, in pieces of this size.
fn taken(mut body: Body, bytes: &[u8], size: usize) -> Result<(usize, bool), Bad> {
    let mut total = 0;
    for piece in bytes.chunks(size) {
        let taken = body.take(piece)?;
        assert!(taken <= piece.len());
        total += taken;
        if taken < piece.len() {
            assert!(body.is_done());
            break;
        }
    }
    Ok((total, body.is_done()))
}

#[test]
fn mutated_heads_never_surprise() {
    let corpus = [PLAIN, CREATE, PIPED, ATTACH, OLD, ANSWER, EVENTS, TUNNEL, OLD_TUNNEL];
    let words: [&[u8]; 12] = [
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b":",
        b"Content-Length: 3\r\n",
        b"\r\n\r\n",
        b"\t",
        b"\0",
        b"Transfer-Encoding: chunked\r\n",
        b"HTTP/1.0",
        b",",
    ];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..60_000 {
        let text = dice.mutate(corpus[round % corpus.len()], &words);
        if let Ok(Some(found)) = response(&text, "GET") {
            assert!(found.length <= text.len());
        }
        let Ok(Some(found)) = request(&text) else { continue };
        let (head, rest) = text.split_at(found.length);
        assert!(head.ends_with(b"\r\n\r\n"));
        assert_eq!(request(head), Ok(Some(found.clone())), "what follows does not matter");
        assert!(matches!(request(&head[..head.len() - 1]), Ok(None)));
        assert_eq!(taken(found.body.clone(), rest, 1), taken(found.body.clone(), rest, 4096));
        let new = read(&with_length(&text, &found, 5));
        assert_eq!(new.body, Body::Length(5));
        assert!(!new.expects_continue);
        assert_eq!(new.close, found.close);
        assert_eq!((new.method, new.target), (found.method, found.target));
    }
}

#[test]
fn mutated_chunks_never_surprise() {
    let words: [&[u8]; 8] =
        [b"\r\n", b"\n", b"0\r\n\r\n", b"ffffffffffffffff", b";", b"1\r\n", b" ", b"A: b\r\n"];
    let mut dice = Dice(0xd1b5_4a32_d192_ed03);
    for _ in 0..60_000 {
        let text = dice.mutate(CHUNKED, &words);
        let body = Body::Chunked(Chunks::default());
        let whole = taken(body.clone(), &text, text.len().max(1));
        assert_eq!(whole, taken(body.clone(), &text, 1));
        assert_eq!(whole, taken(body, &text, 3));
        assert_eq!(whole == Ok((text.len(), true)), dechunk(&text).is_ok());
        if let Ok((length, true)) = whole {
            assert!(dechunk(&text[..length]).is_ok());
        }
    }
}
