//! Children that misbehave on purpose, and an independent witness that says what is left of them.
//!
//! A *cell* is a [`Misbehaviour`], a [`Death`] and a [`Moment`]. [`run`] plays one cell against a
//! [`Subject`] (a wrapper, a library's owner program, or nothing at all) and returns a
//! [`Verdict`]: who survived, which bystander was harmed, what hung, which cgroup was left.
//!
//! Any binary that carries the kit calls [`misbehave_if_asked`] first thing in `main` and so is
//! its own bad child, its own host and its own bystander: no helper program to build or ship.
//!
//! This is the oracle. It shares no code with what it judges, and nothing here may depend on it:
//! an oracle with the blind spots of the accused is no oracle.
#![cfg(target_os = "linux")]

mod misbehave;
mod subject;
mod table;
mod trial;
mod verdict;
mod world;

pub use misbehave::misbehave_if_asked;
pub use subject::Subject;
pub use table::{Cell, Death, Misbehaviour, Moment, cells, list};
pub use trial::{run, run_at_every_moment};
pub use verdict::Verdict;
pub use world::bystander::Bystander;
pub use world::witness::Witness;
pub use world::{Process, until};
