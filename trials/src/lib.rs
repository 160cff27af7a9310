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
#![cfg(any(target_os = "linux", windows))]

mod named;
mod speech;
mod verdict;

#[cfg(target_os = "linux")]
mod misbehave;
#[cfg(target_os = "linux")]
mod subject;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod trial;
#[cfg(target_os = "linux")]
mod world;

#[cfg(windows)]
mod windows;

pub use verdict::Verdict;

#[cfg(windows)]
pub use windows::{
    misbehave::misbehave_if_asked,
    subject::{Around, Subject},
    table::{Cell, Death, Misbehaviour, Moment, cells, list},
    trial::{run, run_in_turn},
    witness::Witness,
    world::{Process, until},
};
#[cfg(target_os = "linux")]
pub use {
    misbehave::misbehave_if_asked,
    subject::Subject,
    table::{Cell, Death, Misbehaviour, Moment, cells, list},
    trial::{run, run_at_every_moment, run_at_some_moments},
    world::bystander::Bystander,
    world::grip::{Lease, Traced},
    world::witness::Witness,
    world::{Process, Watch, until},
};
