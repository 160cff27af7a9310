//! All config files at once: what is in them, what they would become, and making it so.

use super::file::{Read, Trouble};
use super::found::{self, Found, Surroundings};
use super::plan::{self, Outcome, Plan, Reading, Want};
use super::table::{Host, Scope};
use super::tree::Broken;
use std::path::{Path, PathBuf};

/// One file, and what it would become.
pub(crate) struct Work {
    pub(crate) found: Found,
    pub(crate) plan: Result<(Read, Plan), Problem>,
}

/// Why a file is left alone.
pub(crate) enum Problem {
    Unreadable(Trouble),
    Broken(Broken),
}

/// Reads every file and plans what is wanted. Nothing is changed yet.
pub(crate) fn survey(around: &Surroundings, hosts: &[&'static Host], want: &Want) -> Vec<Work> {
    let files = found::files(around, hosts).into_iter();
    files.map(|found| Work { plan: look(&found, want), found }).collect()
}

fn look(found: &Found, want: &Want) -> Result<(Read, Plan), Problem> {
    let read = Read::of(&found.path).map_err(Problem::Unreadable)?;
    let reading =
        Reading { format: found.place.format, maps: found.place.maps, command: found.host.command };
    let mut plan = plan::plan(reading, &read.text, want).map_err(Problem::Broken)?;
    if found.scope() == Scope::System {
        // Whoever is responsible for all users of a machine decides about their servers.
        plan.text.clone_from(&read.text);
        for fate in &mut plan.servers {
            fate.outcome = Outcome::Skipped("its file belongs to the administrator".into());
        }
    }
    Ok((read, plan))
}

impl Work {
    /// How many servers would change.
    pub(crate) fn changes(&self) -> usize {
        self.plan.as_ref().map_or(0, |(_, plan)| plan.changes())
    }

    /// Writes what was planned. Gives the path of the backup.
    pub(crate) fn write(&self, backups: &Path) -> Result<Option<PathBuf>, Trouble> {
        match &self.plan {
            Ok((read, plan)) if plan.changes() > 0 => read.replace(&plan.text, backups).map(Some),
            Ok(_) | Err(_) => Ok(None),
        }
    }
}
