//! Containers: what a session starts through Docker carries its label, and ends with it.
//!
//! The engine is the ledger: nothing is remembered here but where to look.

pub mod connect;
pub mod endpoint;
