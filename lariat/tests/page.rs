//! The page by TCP, asked by hand: who is let in, what is refused, and what it says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "page/enter.rs"]
mod enter;
#[path = "page/face.rs"]
mod face;
#[path = "host/finish.rs"]
mod finish;
#[path = "page/kit.rs"]
mod kit;
#[path = "page/live.rs"]
mod live;
#[path = "host/place.rs"]
mod place;
#[path = "page/press.rs"]
mod press;
#[path = "page/refused.rs"]
mod refused;
#[path = "page/same.rs"]
mod same;
