//! The kit on Windows: other misbehaviours, other deaths, the same question.

pub(crate) mod job;
pub(crate) mod misbehave;
pub(crate) mod subject;
pub(crate) mod table;
pub(crate) mod trial;
pub(crate) mod witness;
pub(crate) mod world;
