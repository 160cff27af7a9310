//! What is refused although the key is right: other names, other pages, other methods, too much, too
//! slow.

use crate::kit::{House, Wire};
use crate::place::PATIENCE;
use crate::press::{cookie, end};
use std::io::{ErrorKind, Read};
use std::time::Instant;

#[test]
fn it_answers_to_no_other_name() {
    let house = House::new();
    let port = house.address.rsplit_once(':').unwrap().1;
    let ask = |hosts: &str| {
        let mut wire = house.wire();
        wire.send("GET", "/metrics", &format!("{hosts}{}", house.bearer()), "");
        wire.answer().unwrap()
    };
    for good in [house.address.clone(), format!("localhost:{port}"), format!("LocalHost:{port}")] {
        ask(&format!("Host: {good}\r\n")).expect(200);
    }
    for bad in [
        format!("evil.example:{port}"),
        "127.0.0.1".into(),
        "127.0.0.1:1".into(),
        format!("127.0.0.1.evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("0.0.0.0:{port}"),
        String::new(),
    ] {
        let answer = ask(&format!("Host: {bad}\r\n")).expect(403);
        assert!(answer.text.contains(&house.address), "{answer:?}");
    }
    ask(&format!("Host: {0}\r\nHost: evil.example\r\n", house.address)).expect(403);
    // A target that names somebody is meant for them.
    for (named, status) in [(house.address.as_str(), 200), ("evil.example", 403)] {
        house.get(&format!("http://{named}/metrics"), &house.bearer()).expect(status);
    }
    let mut wire = house.wire();
    wire.raw(format!("GET /metrics HTTP/1.1\r\n{}\r\n", house.bearer()).as_bytes()).unwrap();
    assert!(matches!(wire.answer().unwrap().status, 400 | 403));
}

#[test]
fn another_page_is_refused_with_any_key() {
    let house = House::new();
    let bearer = house.bearer();
    let port: u16 = house.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let others = [
        "http://evil.example".to_owned(),
        "null".into(),
        format!("https://{}", house.address),
        format!("http://127.0.0.1:{}", port ^ 1),
        format!("http://localhost:{port}"),
    ];
    for origin in others {
        for path in ["/", "/metrics", "/v1/page/events"] {
            house.get(path, &format!("{bearer}Origin: {origin}\r\n")).expect(403);
        }
        let more = format!("{bearer}Origin: {origin}\r\nLariat-Page: 1\r\n");
        house.ask("POST", "/v1/page/end", &more, "{\"session\":\"x\"}").expect(403);
    }
    for site in ["cross-site", "same-site"] {
        house.get("/metrics", &format!("{bearer}Sec-Fetch-Site: {site}\r\n")).expect(403);
        let follows = format!("{bearer}Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: navigate\r\n");
        house.get("/", &follows).expect(200);
    }
    house.get("/", &format!("{bearer}Sec-Fetch-Site: none\r\n")).expect(200);
}

#[test]
fn an_end_is_asked_for_by_the_page_alone() {
    let house = House::new();
    let (key, origin) = (cookie(&house), format!("Origin: http://{}\r\n", house.address));
    let body = "{\"session\":\"0123456789abcde\"}";
    let post = |more: &str, body: &str| house.ask("POST", "/v1/page/end", more, body);
    post(&format!("{key}{origin}"), body).expect(403);
    post(&format!("{key}Lariat-Page: 1\r\n"), body).expect(403);
    post(&format!("{origin}Lariat-Page: 1\r\n"), body).expect(401);
    let whole = format!("{key}{origin}Lariat-Page: 1\r\n");
    post(&whole, body).expect(404);
    // The token is for reading.
    let read = post(&format!("{}{origin}Lariat-Page: 1\r\n", house.bearer()), body).expect(403);
    assert!(read.text.contains("for reading"), "{read:?}");
    for unknown in ["../../etc", "", "0123456789ABCDE"] {
        end(&house, unknown).expect(404);
    }
    for nonsense in ["", "[]", "{}", "{\"session\":1}", "{\"session\":\"a\",\"more\":1}", "{"] {
        post(&whole, nonsense).expect(400);
    }
    let get = house.get("/v1/page/end", &whole).expect(405);
    assert_eq!(get.headers["allow"], "POST");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        let mut wire = house.wire();
        wire.send(method, "/", &format!("Host: {}\r\n{key}", house.address), "");
        let (status, headers) = wire.head().unwrap();
        assert_eq!((status, headers["allow"].as_str()), (405, "GET"), "{method}");
    }
    for path in ["/v1/sessions", "/v1/openapi.json", "//", "/app.js/", "/../state/token"] {
        house.get(path, &key).expect(404);
    }
}

#[test]
fn heads_and_bodies_are_bounded() {
    let house = House::new();
    let mut wire = house.wire();
    let long = format!("X: {}\r\n", "x".repeat(70 << 10));
    // The rest of it is not read any more.
    let _cut =
        wire.raw(format!("GET / HTTP/1.1\r\nHost: {}\r\n{long}\r\n", house.address).as_bytes());
    assert!(wire.answer().map_or(true, |answer| answer.status == 431));
    let more = format!("{}Origin: http://{}\r\nLariat-Page: 1\r\n", cookie(&house), house.address);
    house.ask("POST", "/v1/page/end", &more, &"x".repeat(5 << 20)).expect(413);
    house.get("/", &house.bearer()).expect(200);
}

#[test]
fn those_who_say_nothing_leave_room_for_others() {
    let house = House::new();
    let begun = Instant::now();
    let head = format!("GET / HTTP/1.1\r\nHost: {}\r\nX-Slow: ", house.address);
    let mut slow: Vec<Wire> = Vec::new();
    for number in 0..64 {
        slow.push(house.wire());
        let Some(wire) = slow.last_mut() else { continue };
        // Some nothing at all, some half a head, some a whole request and then nothing.
        match number % 3 {
            0 => {}
            1 => {
                // It may have had to make room already.
                let _closed = wire.raw(head.as_bytes());
            }
            _ => {
                wire.raw(format!("{head}x\r\n\r\n").as_bytes()).unwrap();
                let answer = wire.answer().unwrap().expect(401);
                assert_eq!(answer.headers["connection"], "close");
            }
        }
    }
    // Strangers make room, and do not keep the owner out.
    house.get("/", &house.bearer()).expect(200);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    for wire in &mut slow {
        assert!(is_closed(wire));
    }
    assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
    house.get("/", &house.bearer()).expect(200);
}

/// True when the other end has closed, and false if it does not.
fn is_closed(wire: &mut Wire) -> bool {
    match wire.reader.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}
