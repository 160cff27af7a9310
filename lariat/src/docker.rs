//! Containers: what a session starts through Docker carries its label, and ends with it.
//!
//! The engine is the ledger: nothing is remembered here but where to look.

pub mod connect;
#[cfg(test)]
mod dice;
pub mod endpoint;
pub mod head;
