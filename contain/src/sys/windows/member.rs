//! A process on Windows: its number and the moment of its creation, compared through a handle.
//!
//! A number is not handed out again while anybody has a handle, so it is opened first and compared
//! afterwards.

use crate::member::Member;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use windows_sys::Wdk::System::Threading::{NtQueryInformationProcess, ProcessBasicInformation};
use windows_sys::Win32::Foundation::{FILETIME, INVALID_HANDLE_VALUE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessTimes, OpenProcess, PROCESS_BASIC_INFORMATION, PROCESS_NAME_WIN32,
    PROCESS_QUERY_INFORMATION, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE,
    QueryFullProcessImageNameW, WaitForSingleObject,
};

/// A process that cannot become another one: its number is kept while the handle is open.
#[derive(Debug)]
pub struct Handle {
    process: OwnedHandle,
    member: Member,
}

impl Handle {
    /// The process that has this number now.
    pub(crate) fn open(pid: u32) -> io::Result<Handle> {
        // The first is more than is needed on Windows, and what Wine wants to say who is in a job.
        let rights = [PROCESS_QUERY_INFORMATION, PROCESS_QUERY_LIMITED_INFORMATION];
        let raw = rights.into_iter().map(|right| {
            // SAFETY: takes numbers and touches no memory of ours.
            unsafe { OpenProcess(right | PROCESS_SYNCHRONIZE, 0, pid) }
        });
        let Some(raw) = raw.into_iter().find(|raw| !raw.is_null()) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: the handle is new and nobody else owns it.
        Handle::of(unsafe { OwnedHandle::from_raw_handle(raw) }, pid)
    }

    /// A process of which we have a handle already.
    pub(crate) fn of(process: OwnedHandle, pid: u32) -> io::Result<Handle> {
        let start = created(process.as_handle())?;
        Ok(Handle { process, member: Member { pid: pid.cast_signed(), start } })
    }

    /// Who it is.
    pub fn member(&self) -> Member {
        self.member
    }

    /// Whether it runs. The handle itself can be waited for, too.
    pub fn is_alive(&self) -> bool {
        // SAFETY: the handle is open for the whole call, which does not wait.
        unsafe { WaitForSingleObject(self.process.as_raw_handle(), 0) != WAIT_OBJECT_0 }
    }

    fn path(&self) -> Option<String> {
        let mut text = [0_u16; 1024];
        let mut length = text.len() as u32;
        // SAFETY: the handle is open, and the buffer has as many units as it is said to have.
        let found = unsafe {
            let process = self.process.as_raw_handle();
            QueryFullProcessImageNameW(process, PROCESS_NAME_WIN32, text.as_mut_ptr(), &mut length)
        };
        (found != 0).then(|| String::from_utf16_lossy(&text[..length as usize]))
    }
}

impl AsHandle for Handle {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.process.as_handle()
    }
}

impl Member {
    /// The process that has this number now, dead or alive, if there is one.
    pub fn of(pid: i32) -> Option<Member> {
        Handle::open(pid.cast_unsigned()).ok().map(|handle| handle.member)
    }

    /// This process.
    pub fn current() -> Option<Member> {
        Member::of(std::process::id().cast_signed())
    }

    /// True while the same process is there.
    pub fn is_alive(&self) -> bool {
        self.open().is_some_and(|handle| handle.is_alive())
    }

    /// A handle of this very process, or `None` if it has gone or is not ours to look at.
    pub fn open(&self) -> Option<Handle> {
        Handle::open(self.pid.cast_unsigned()).ok().filter(|handle| handle.member == *self)
    }
}

/// The file name of a process's program. Never its arguments: those can hold secrets.
pub fn name(member: Member) -> Option<String> {
    let path = member.open()?.path()?;
    path.rsplit('\\').next().map(str::to_owned)
}

/// Who started this process, if that process has not gone: its number may be another's by now,
/// which then began after us.
pub fn parent() -> Option<Handle> {
    // SAFETY: plain numbers and a pointer that is never followed; all zeros are a value of it.
    let mut basic: PROCESS_BASIC_INFORMATION = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is as large as it is said to be; the pseudo handle needs no closing.
    let status = unsafe {
        NtQueryInformationProcess(
            GetCurrentProcess(),
            ProcessBasicInformation,
            (&raw mut basic).cast(),
            size_of_val(&basic) as u32,
            std::ptr::null_mut(),
        )
    };
    let pid = u32::try_from(basic.InheritedFromUniqueProcessId).ok().filter(|_| status >= 0)?;
    let handle = Handle::open(pid).ok()?;
    (handle.member.start <= Member::current()?.start).then_some(handle)
}

/// The number of every process that there is.
pub(crate) fn everybody() -> io::Result<Vec<u32>> {
    // SAFETY: takes numbers and touches no memory of ours.
    let raw = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if raw == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new and nobody else owns it.
    let list = unsafe { OwnedHandle::from_raw_handle(raw) };
    // SAFETY: plain numbers and characters.
    let mut entry: PROCESSENTRY32W = unsafe { std::mem::zeroed() };
    entry.dwSize = size_of_val(&entry) as u32;
    let mut found = Vec::new();
    // SAFETY: the list is open, and the entry says how large it is.
    let mut more = unsafe { Process32FirstW(list.as_raw_handle(), &mut entry) } != 0;
    while more {
        found.push(entry.th32ProcessID);
        // SAFETY: as before.
        more = unsafe { Process32NextW(list.as_raw_handle(), &mut entry) } != 0;
    }
    Ok(found)
}

fn created(process: BorrowedHandle<'_>) -> io::Result<u64> {
    let zero = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
    let [mut created, mut exited, mut kernel, mut user] = [zero; 4];
    // SAFETY: the handle is open, and each pointer is to a structure of the kind that is written.
    let done = unsafe {
        let process = process.as_raw_handle();
        GetProcessTimes(process, &mut created, &mut exited, &mut kernel, &mut user)
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime))
}
