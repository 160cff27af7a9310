//! The daemon, driven from outside: the real binary, HTTP written by hand, and every answer held
//! against the document that it serves.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "daemon/ends.rs"]
mod ends;
#[path = "daemon/face.rs"]
mod face;
#[path = "host/finish.rs"]
mod finish;
#[path = "daemon/http.rs"]
mod http;
#[path = "daemon/kit.rs"]
mod kit;
#[path = "daemon/life.rs"]
mod life;
#[path = "host/place.rs"]
mod place;
#[path = "daemon/refused.rs"]
mod refused;
#[path = "daemon/schema.rs"]
mod schema;
