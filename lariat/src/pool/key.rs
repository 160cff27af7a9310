//! What must be the same for two clients to have one process.

use super::{Server, Want};
use crate::spec::Share;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// What a shell counts for itself. Everything else in the environment may matter to a server, and
/// much of it is secret.
const OF_THE_SHELL: [&str; 3] = ["_", "SHLVL", "OLDPWD"];

/// Two that are equal want the same of the same program, for the same person.
#[derive(Debug, Clone)]
pub(super) struct Key {
    server: Arc<Server>,
    principal: Arc<str>,
    share: Share,
    program: Program,
}

/// Which program that is, if it can be told.
pub(super) type Program = Option<Identity>;

/// Which file a program is, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    path: PathBuf,
    file: (u64, u64, u64, i64, i64),
}

impl Key {
    pub(super) fn of(want: &Want) -> Key {
        Key {
            program: Identity::of(&want.server),
            server: want.server.clone(),
            principal: want.principal.clone(),
            share: want.share,
        }
    }

    #[cfg(feature = "cli")]
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Everything beside the server.
    #[cfg(feature = "cli")]
    pub(super) fn rest(&self) -> (&str, Share, &Program) {
        (&self.principal, self.share, &self.program)
    }

    /// The same from its parts.
    #[cfg(feature = "cli")]
    pub(super) fn again(
        server: Arc<Server>,
        principal: Arc<str>,
        share: Share,
        program: Program,
    ) -> Key {
        Key { server, principal, share, program }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let same_server =
            Arc::ptr_eq(&self.server, &other.server) || is_same(&self.server, &other.server);
        same_server
            && self.principal == other.principal
            && self.share == other.share
            && self.program == other.program
    }
}

/// True if both are the same, whatever they are called.
fn is_same(one: &Server, other: &Server) -> bool {
    let umask = |server: &Server| server.environment.as_ref().map(|around| around.umask);
    one.spec == other.spec
        && umask(one) == umask(other)
        && variables(one).eq(variables(other))
        && one.environment.is_some() == other.environment.is_some()
}

/// What is around a server, in the order in which it is given: an order that differs is a difference.
fn variables(server: &Server) -> impl Iterator<Item = &(OsString, OsString)> {
    let all = server.environment.iter().flat_map(|around| &around.variables);
    all.filter(|(name, _)| !OF_THE_SHELL.iter().any(|own| name == own))
}

impl Identity {
    fn of(server: &Server) -> Option<Identity> {
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
