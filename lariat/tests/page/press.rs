//! The end button, pressed by hand.

use crate::kit::{Answer, House};

/// What the page sends to end a session.
pub(crate) fn end(house: &House, session: &str) -> Answer {
    let more = format!("{}Origin: http://{}\r\nLariat-Page: 1\r\n", house.bearer(), house.address);
    house.ask("POST", "/v1/page/end", &more, &format!("{{\"session\":\"{session}\"}}"))
}
