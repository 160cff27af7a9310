//! `lariat run --share` from its host's side: streams of every kind, surroundings, ends, and what
//! happens where there is nothing to join.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host/books.rs"]
mod books;
#[path = "joining/ends.rs"]
mod ends;
#[path = "host/finish.rs"]
mod finish;
#[path = "joining/handed.rs"]
mod handed;
#[path = "joining/kit.rs"]
mod kit;
#[path = "host/place.rs"]
mod place;
#[path = "joining/refused.rs"]
mod refused;
#[path = "joining/streams.rs"]
mod streams;
