//! Something to be woken by while waiting for a tree.

use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::ptr;
use std::sync::Arc;
use windows_sys::Win32::System::Threading::{CreateEventW, SetEvent};

/// Rung by any thread, heard by whoever gives it to [`Tree::wait`](crate::Tree::wait). One ring is
/// one wake, however often it was rung in between.
#[derive(Debug, Clone)]
pub struct Bell {
    event: Arc<OwnedHandle>,
}

impl Bell {
    /// A bell that nobody has rung.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: all pointers may be null: no name, and a handle that is not inherited.
        let event = unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) };
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is new and nobody else owns it.
        let event = unsafe { OwnedHandle::from_raw_handle(event) };
        Ok(Bell { event: Arc::new(event) })
    }

    /// Wakes whoever waits, or the next to do so.
    pub fn ring(&self) {
        // SAFETY: the handle is an event and open for the whole call.
        let _rung = unsafe { SetEvent(self.event.as_raw_handle()) };
    }
}

impl AsHandle for Bell {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.event.as_handle()
    }
}
