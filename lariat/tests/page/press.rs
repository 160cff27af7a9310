//! The end button, pressed by hand.

use crate::kit::{Answer, House};

/// What the page sends to end a session.
pub(crate) fn end(house: &House, session: &str) -> Answer {
    let more = format!("{}Origin: http://{}\r\nLariat-Page: 1\r\n", cookie(house), house.address);
    house.ask("POST", "/v1/page/end", &more, &format!("{{\"session\":\"{session}\"}}"))
}

/// The head of a request from a browser that has followed a link.
pub(crate) fn cookie(house: &House) -> String {
    let link = house.link();
    let path = link.strip_prefix(&format!("http://{}", house.address)).unwrap();
    let answer = house.get(path, "").expect(200);
    format!("Cookie: {}\r\n", answer.headers["set-cookie"].split(';').next().unwrap())
}
