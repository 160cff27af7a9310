//! Whose session it is that a command in a script opens: whoever started the command.

use lariat::contain::process::{self, Parent};

/// The process that started this one, if it has not gone. What `for /f` in a batch file starts a
/// command with leaves at once; there --owner-pid says who is meant.
pub(super) fn find() -> Option<i32> {
    match process::parent() {
        Parent::There(parent) if parent.is_alive() => Some(parent.member().pid),
        Parent::There(_) | Parent::Gone | Parent::Unknown => None,
    }
}
