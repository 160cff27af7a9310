//! Which program a server is, on Windows.

use crate::pool::Server;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Which program that is, if it can be told.
pub(in crate::pool) type Program = Option<Identity>;

/// Which file a program is, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pool) struct Identity {
    path: PathBuf,
    file: (u64, SystemTime),
}

impl Identity {
    /// Of a program that is named by its path. One that is looked up is the same wherever the
    /// environment is, which is compared as well.
    pub(super) fn of(server: &Server) -> Option<Identity> {
        let command = Path::new(server.spec.command.as_deref()?);
        let path = match &server.spec.cwd {
            Some(dir) => dir.join(command),
            None => command.into(),
        };
        let is_path = command.components().nth(1).is_some();
        let file = std::fs::metadata(&path).ok().filter(|file| is_path && file.is_file())?;
        Some(Identity { path, file: (file.len(), file.modified().ok()?) })
    }
}
