//! Containers: what a session starts through Docker carries its label, and ends with it.
//!
//! The session's processes get a socket of their own as `DOCKER_HOST`. Behind it a proxy passes
//! everything to the real engine and puts the session's label on what is created. In the end whatever
//! carries the label is removed. The engine is the ledger: nothing is remembered here but where to
//! look, and whether there is anything to look for.
//!
//! ```text
//! endpoint, connect         where the real engine is, and reaching it
//! head, label               where HTTP messages end, and what is put into creates (both pure)
//! admission, tunnel < exchange < proxy < door   from one create to the wrapper's loop
//! tally, client < sweep     what is removed in the end
//! direct, podman            commands that are docker or podman themselves
//! ```

pub mod admission;
pub(crate) mod client;
pub mod connect;
pub mod direct;
pub mod door;
pub mod endpoint;
mod exchange;
pub mod head;
pub mod label;
pub mod podman;
pub mod proxy;
pub mod sweep;
pub mod tally;
mod tunnel;
pub mod version;
