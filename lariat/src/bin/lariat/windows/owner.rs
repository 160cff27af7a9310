//! Whose session it is that a command in a script opens: whoever started the command.

use lariat::contain::process;

/// The process that started this one, if it has not gone. What `for /f` in a batch file starts a
/// command with leaves at once; there --owner-pid says who is meant.
pub(super) fn find() -> Option<i32> {
    process::parent().map(|parent| parent.member().pid)
}
