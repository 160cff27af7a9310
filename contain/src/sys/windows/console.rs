//! The console: whether a command would open a window, and the one way to ask it to leave.

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent, GetConsoleProcessList,
};

/// Whether this process has a console, which its children would share.
pub(crate) fn is_attached() -> bool {
    let mut first = [0; 1];
    // SAFETY: the array has room for as many numbers as it is said to have. Nothing more than how
    // many there are is wanted.
    unsafe { GetConsoleProcessList(first.as_mut_ptr(), 1) != 0 }
}

/// Sends Ctrl-Break to a process group that shares our console; false if it cannot be sent.
///
/// The caller holds a handle of the group's first process, so its number means that group and no
/// other.
pub(crate) fn interrupt(group: u32) -> bool {
    // SAFETY: takes two numbers and touches no memory of ours.
    group != 0 && unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, group) != 0 }
}
