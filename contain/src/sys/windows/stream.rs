//! A standard stream of a command. The standard library's own type does not give its handle away.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::windows::io::{AsHandle, AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::System::Console::{GetStdHandle, STD_HANDLE};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// What a command gets as its standard input, output or error.
#[derive(Debug)]
pub struct Stream {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Null,
    Inherit,
    Handle(OwnedHandle),
}

impl Stream {
    /// Nothing to read, and what is written goes nowhere.
    pub fn null() -> Stream {
        Stream { source: Source::Null }
    }

    /// The owner's own stream; nothing, where the owner has none.
    pub fn inherit() -> Stream {
        Stream { source: Source::Inherit }
    }

    /// A handle that a child can inherit, of which the caller's original keeps clear. `own` is the
    /// owner's stream of the same kind.
    pub(crate) fn inheritable(&self, own: STD_HANDLE) -> io::Result<OwnedHandle> {
        match &self.source {
            Source::Handle(handle) => duplicate(handle.as_raw_handle()),
            Source::Inherit => {
                // SAFETY: takes a number. The handle stays the process's own.
                let raw = unsafe { GetStdHandle(own) };
                if raw.is_null() || raw == INVALID_HANDLE_VALUE {
                    return Stream::null().inheritable(own);
                }
                duplicate(raw)
            }
            Source::Null => {
                let null = File::options().read(true).write(true).open("NUL")?;
                duplicate(null.as_handle().as_raw_handle())
            }
        }
    }
}

impl From<OwnedHandle> for Stream {
    fn from(handle: OwnedHandle) -> Self {
        Stream { source: Source::Handle(handle) }
    }
}

impl From<PipeReader> for Stream {
    fn from(end: PipeReader) -> Self {
        OwnedHandle::from(end).into()
    }
}

impl From<PipeWriter> for Stream {
    fn from(end: PipeWriter) -> Self {
        OwnedHandle::from(end).into()
    }
}

impl From<File> for Stream {
    fn from(file: File) -> Self {
        OwnedHandle::from(file).into()
    }
}

fn duplicate(raw: RawHandle) -> io::Result<OwnedHandle> {
    let mut copy = std::ptr::null_mut();
    // SAFETY: `raw` is open (its owner is borrowed, or it is the process's own stream), the pseudo
    // handles need no closing, and the result goes to a handle of ours.
    let done = unsafe {
        let this = GetCurrentProcess();
        DuplicateHandle(this, raw, this, &mut copy, 0, 1, DUPLICATE_SAME_ACCESS)
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new and nobody else owns it.
    Ok(unsafe { OwnedHandle::from_raw_handle(copy) })
}
