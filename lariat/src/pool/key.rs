//! What must be the same for two clients to have one process.

#[cfg(target_os = "linux")]
mod program;
#[cfg(windows)]
#[path = "key/windows.rs"]
mod program;

pub(super) use program::Program;

use super::{Server, Want};
use crate::spec::Share;
use program::Identity;
use std::ffi::OsString;
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

impl Key {
    pub(super) fn of(want: &Want) -> Key {
        Key {
            program: Identity::of(&want.server),
            server: want.server.clone(),
            principal: want.principal.clone(),
            share: want.share,
        }
    }

    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Everything beside the server.
    #[cfg(all(target_os = "linux", feature = "cli"))]
    pub(super) fn rest(&self) -> (&str, Share, &Program) {
        (&self.principal, self.share, &self.program)
    }

    /// The same from its parts.
    #[cfg(all(target_os = "linux", feature = "cli"))]
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
