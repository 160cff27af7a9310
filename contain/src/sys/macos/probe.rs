//! What this machine allows and what that guarantees, in words.

use super::{Backend, process};
use crate::choice::Choice;
use crate::error::{Error, SpawnStage};
use std::io;

/// What was chosen and why.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The backend to use.
    pub backend: Backend,
    /// Why a better one is not in use, if that is so.
    pub why_not_better: Option<String>,
    /// What the backend guarantees.
    pub guarantee: &'static str,
}

/// Looks at this machine and chooses.
pub fn probe(choice: Choice) -> Result<Machine, Error> {
    let backend = match choice {
        Choice::Auto => Backend::Session,
        Choice::Named(backend) => backend,
    };
    process::picture(None, |_| {})
        .map_err(|e: io::Error| Error::Spawn(SpawnStage::Processes, e))?;
    Ok(Machine {
        backend,
        why_not_better: Some("macOS offers nothing that holds a tree whole".into()),
        guarantee: backend.guarantee(),
    })
}
