//! Who is let in: who has the token, or a cookie from a link that works once.

use crate::kit::House;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Everything that needs a key.
const CLOSED: [&str; 4] = ["/", "/app.js", "/v1/page/events", "/metrics"];

#[test]
fn nobody_is_let_in_without_a_key() {
    let house = House::new();
    let token = house.token();
    let wrong = format!("Authorization: Bearer {}0\r\n", &token[..token.len() - 1]);
    let keyless = ["", "Authorization: Bearer\r\n", "Authorization: Basic Og==\r\n", &wrong];
    let cookies =
        [format!("Cookie: lariat={token}\r\n"), format!("Cookie: {}={token}\r\n", name(&house))];
    for path in CLOSED {
        for more in keyless.iter().copied().chain(cookies.iter().map(String::as_str)) {
            let answer = house.get(path, more).expect(401);
            assert!(answer.text.contains("lariat open"), "{path}: {answer:?}");
            assert!(answer.headers["www-authenticate"].starts_with("Bearer"));
            assert!(!answer.text.contains(&token[..8]));
        }
    }
    let page = house.get("/", "").expect(401);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    house.get("/style.css", "").expect(200);
}

#[test]
fn the_token_is_in_a_file_for_its_owner_alone_and_stays() {
    let house = House::new();
    let meta = fs::metadata(house.place.path("state/token")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(house.token().len(), 64);
    for scheme in ["Bearer", "bearer"] {
        let more = format!("Authorization: {scheme} {}\r\n", house.token());
        assert!(house.get("/", &more).expect(200).text.contains("<title>Lariat</title>"));
    }
    let script = house.get("/app.js", &house.bearer()).expect(200);
    assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
}

#[test]
fn a_link_works_once_and_gives_a_cookie_that_only_this_page_gets() {
    let house = House::new();
    let link = house.link();
    let path = link.strip_prefix(&format!("http://{}", house.address)).unwrap();
    assert!(path.starts_with("/open?once="), "{link}");
    // A browser that looks ahead does not use it up.
    house.get(path, "Sec-Purpose: prefetch;prerender\r\n").expect(503);
    let answer = house.get(path, "").expect(200);
    let cookie = &answer.headers["set-cookie"];
    let (pair, rest) = cookie.split_once(';').unwrap();
    assert!(pair.starts_with(&format!("{}=", name(&house))), "{cookie}");
    assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
    assert!(answer.text.contains("url=/"), "{answer:?}");
    for path in ["/", "/app.js", "/metrics"] {
        house.get(path, &format!("Cookie: other=1; {pair}\r\n")).expect(200);
    }
    let again = house.get(path, "").expect(401);
    assert!(again.text.contains("has been used") && !again.headers.contains_key("set-cookie"));
    // In the same browser it leads to the page all the same.
    house.get(path, &format!("Cookie: {pair}\r\n")).expect(200);
    for bad in ["/open", "/open?once=", "/open?once=0000", "/open?once=%00&x"] {
        assert!(house.get(bad, "").expect(401).text.contains("lariat open"));
    }
}

#[test]
fn every_answer_says_what_a_browser_may_do_with_it() {
    let house = House::new();
    let bearer = house.bearer();
    let answers = [
        house.get("/", &bearer).expect(200),
        house.get("/", "").expect(401),
        house.get("/open", "").expect(401),
        house.get("/nowhere", &bearer).expect(404),
        house.get("/metrics", &bearer).expect(200),
        house.get("/", "Origin: http://evil.example\r\n").expect(403),
    ];
    for answer in answers {
        let policy = &answer.headers["content-security-policy"];
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(rule), "{rule}: {policy}");
        }
        assert!(!policy.contains("-inline") && !policy.contains("-eval"), "{policy}");
        assert_eq!(answer.headers["cache-control"], "no-store");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
}

fn name(house: &House) -> String {
    format!("lariat-{}", house.address.rsplit_once(':').unwrap().1)
}
