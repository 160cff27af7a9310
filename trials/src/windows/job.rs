//! Jobs as hosts make them, for what is tried to be in.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::process::Child;
use std::ptr;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT, JOB_OBJECT_LIMIT_BREAKAWAY_OK,
    JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectExtendedLimitInformation, SetInformationJobObject,
};

/// Nobody leaves it.
pub(crate) const CLOSED: JOB_OBJECT_LIMIT = 0;
/// Whoever asks may leave it.
pub(crate) const OPEN: JOB_OBJECT_LIMIT = JOB_OBJECT_LIMIT_BREAKAWAY_OK;
/// Every child is born outside.
pub(crate) const SILENT: JOB_OBJECT_LIMIT = JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK;

/// A job that never ends anybody: whatever survives in it survives.
#[derive(Debug)]
pub(crate) struct Job(OwnedHandle);

impl Job {
    pub(crate) fn new(flags: JOB_OBJECT_LIMIT) -> io::Result<Job> {
        // SAFETY: both pointers may be null: no name, and a handle that is not inherited.
        let raw = unsafe { CreateJobObjectW(ptr::null(), ptr::null()) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is new and nobody else owns it.
        let job = Job(unsafe { OwnedHandle::from_raw_handle(raw) });
        // SAFETY: plain numbers, for which zero means that there is no limit.
        let mut limits: JOBOBJECT_EXTENDED_LIMIT_INFORMATION = unsafe { std::mem::zeroed() };
        limits.BasicLimitInformation.LimitFlags = flags;
        // SAFETY: the structure is of the kind that the class names, and as large as is said.
        let done = unsafe {
            SetInformationJobObject(
                job.0.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                (&raw const limits).cast(),
                size_of_val(&limits) as u32,
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(job) }
    }

    pub(crate) fn take(&self, child: &Child) -> io::Result<()> {
        // SAFETY: both handles are open for the whole call.
        let done =
            unsafe { AssignProcessToJobObject(self.0.as_raw_handle(), child.as_raw_handle()) };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
