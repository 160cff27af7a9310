//! How much a daemon admits.

/// How much there may be of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Servers in one session.
    pub servers_per_session: usize,
    /// Sessions at once.
    pub sessions: usize,
    /// Servers of all sessions.
    pub servers: usize,
    /// Processes of one session, counted when something is to be started in it.
    pub processes_per_session: usize,
    /// Processes of all servers, counted when something is to be started.
    pub processes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            servers_per_session: 32,
            sessions: 1024,
            servers: 4096,
            processes_per_session: 2_000,
            processes: 20_000,
        }
    }
}
