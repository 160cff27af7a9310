//! Variables and umask of a server that is started on behalf of another process.

use std::ffi::OsString;
use std::fmt;

/// What a server finds around it, where that is not what its owner finds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Environment {
    /// All variables.
    pub variables: Vec<(OsString, OsString)>,
    /// Which permissions its files do not get. Only where files have such.
    pub umask: u32,
}

impl fmt::Debug for Environment {
    /// Without values: they can be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.variables.iter().map(|(name, _)| name).collect();
        f.debug_struct("Environment").field("names", &names).field("umask", &self.umask).finish()
    }
}
