//! Which program a server is.

use crate::pool::Server;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// Which program that is, if it can be told.
pub(in crate::pool) type Program = Option<Identity>;

/// Which file a program is, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pool) struct Identity {
    path: PathBuf,
    file: (u64, u64, u64, i64, i64),
}

impl Identity {
    pub(super) fn of(server: &Server) -> Option<Identity> {
        let command = server.spec.command.as_deref().filter(|_| server.spec.image.is_none())?;
        let dir = server.spec.cwd.clone().unwrap_or_default();
        if command.contains('/') {
            return Identity::at(dir.join(command));
        }
        let path = match (server.spec.env.get("PATH"), &server.environment) {
            (Some(path), _) => Some(OsString::from(path)),
            (None, Some(around)) => {
                let found = around.variables.iter().find(|(name, _)| name == "PATH");
                found.map(|(_, path)| path.clone())
            }
            // Ours, which is the same for all that come this way.
            (None, None) => return None,
        };
        let path = path.unwrap_or_else(|| OsStr::new("/bin:/usr/bin").to_owned());
        std::env::split_paths(&path).find_map(|place| Identity::at(dir.join(place).join(command)))
    }

    fn at(path: PathBuf) -> Option<Identity> {
        let is_program = |meta: &Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        let meta = std::fs::metadata(&path).ok().filter(is_program)?;
        let file = (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
        Some(Identity { path, file })
    }
}
