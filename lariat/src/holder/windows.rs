//! No holder is needed on Windows: whoever wants a server holds its job itself.

/// Returns at once. A host that runs elsewhere as well begins its `main` with it, because it may become
/// a holder there.
pub fn main_if_asked() {}
