//! Containers on Windows: there are none that we could hold, so far.

/// Where an engine would be looked for.
pub mod endpoint {
    /// What the surroundings say of an engine. There is no such value here: an engine on Windows is
    /// behind a named pipe and its containers are in another machine, of which we know nothing yet.
    #[derive(Debug, Clone)]
    pub enum Surroundings {}
}
