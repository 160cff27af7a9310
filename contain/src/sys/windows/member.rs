//! A process on Windows: its number and the moment of its creation, compared through a handle.
//!
//! A number is not handed out again while anybody has a handle, so it is opened first and compared
//! afterwards.

use crate::member::Member;
use std::io;
use std::mem;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::time::Duration;
use windows_sys::Wdk::System::Threading::{NtQueryInformationProcess, ProcessBasicInformation};
use windows_sys::Win32::Foundation::{FILETIME, INVALID_HANDLE_VALUE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
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
        !self.ends_within(Duration::ZERO)
    }

    /// Waits for its end, at most that long. True if it has ended.
    pub fn ends_within(&self, at_most: Duration) -> bool {
        let at_most = u32::try_from(at_most.as_millis()).unwrap_or(u32::MAX - 1);
        // SAFETY: the handle is open for the whole call.
        unsafe { WaitForSingleObject(self.process.as_raw_handle(), at_most) == WAIT_OBJECT_0 }
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

/// Who started this process, if that process has not gone. Its number may be another's by now, which then
/// began after us; and one that has gone still has it while anybody has a handle.
pub fn parent() -> Option<Handle> {
    // SAFETY: takes nothing; the pseudo handle needs no closing and is valid for ever.
    let own = unsafe { BorrowedHandle::borrow_raw(GetCurrentProcess()) };
    let handle = Handle::open(starter(own)?).ok()?;
    (handle.member.start <= Member::current()?.start && handle.is_alive()).then_some(handle)
}

/// The number that the process had which started this one.
fn starter(process: BorrowedHandle<'_>) -> Option<u32> {
    // SAFETY: plain numbers and a pointer that is never followed; all zeros are a value of it.
    let mut basic: PROCESS_BASIC_INFORMATION = unsafe { mem::zeroed() };
    // SAFETY: the handle is open, and the structure is as large as it is said to be.
    let status = unsafe {
        NtQueryInformationProcess(
            process.as_raw_handle(),
            ProcessBasicInformation,
            (&raw mut basic).cast(),
            size_of_val(&basic) as u32,
            std::ptr::null_mut(),
        )
    };
    u32::try_from(basic.InheritedFromUniqueProcessId).ok().filter(|_| status >= 0)
}

/// What a process is and has used, for those who look on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The file name of its program.
    pub name: String,
    /// The number of the process that started it; 0 if that cannot be told. It may be another's by
    /// now.
    pub parent: i32,
    /// Its memory in bytes.
    pub resident: u64,
    /// Its time on the CPU.
    pub time: Duration,
}

/// Looks at a process, unless it has gone or is not ours to look at.
pub fn look(member: Member) -> Option<Seen> {
    let handle = member.open()?;
    let path = handle.path().unwrap_or_default();
    Some(Seen {
        name: path.rsplit('\\').next().unwrap_or_default().to_owned(),
        parent: starter(handle.as_handle()).unwrap_or(0).cast_signed(),
        resident: memory(&handle),
        time: times(handle.as_handle()).map_or(Duration::ZERO, |times| times.used),
    })
}

/// The memory of the process that has this number now, in bytes.
pub fn resident(pid: i32) -> Option<u64> {
    Handle::open(pid.cast_unsigned()).ok().map(|handle| memory(&handle))
}

fn memory(handle: &Handle) -> u64 {
    // SAFETY: plain numbers, all zeros are a value of it.
    let mut counters: PROCESS_MEMORY_COUNTERS = unsafe { mem::zeroed() };
    counters.cb = size_of_val(&counters) as u32;
    // SAFETY: the handle is open, and the structure is as large as it says and as is said here.
    let found = unsafe {
        let process = handle.process.as_raw_handle();
        K32GetProcessMemoryInfo(process, &mut counters, size_of_val(&counters) as u32)
    };
    if found == 0 { 0 } else { counters.WorkingSetSize as u64 }
}

/// The number of every process that there is.
pub(crate) fn everybody() -> io::Result<Vec<u32>> {
    Ok(snapshot()?.into_iter().map(|listed| listed.pid).collect())
}

/// How many threads there are on this machine: at least as many as processes.
pub fn threads() -> Option<usize> {
    Some(snapshot().ok()?.into_iter().map(|listed| listed.threads as usize).sum())
}

/// This process, and everyone whose parents lead to it. Who was started by one that has left is not
/// among them: only the job of a tree knows all of it.
pub fn descendants(root: Member) -> Vec<Member> {
    let everybody = snapshot().unwrap_or_default();
    let mut found: Vec<Member> = root.open().map(|handle| handle.member).into_iter().collect();
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        at += 1;
        let children = everybody.iter().filter(|one| one.parent.cast_signed() == parent.pid);
        let children = children.filter_map(|one| Member::of(one.pid.cast_signed()));
        // A number that was somebody else's is younger than those it seems to have started.
        let children: Vec<Member> = children
            .filter(|child| child.start >= parent.start && !found.contains(child))
            .collect();
        found.extend(children);
    }
    found
}

/// A process, as the list of all of them has it.
struct Listed {
    pid: u32,
    parent: u32,
    threads: u32,
}

/// Every process that there is.
fn snapshot() -> io::Result<Vec<Listed>> {
    // SAFETY: takes numbers and touches no memory of ours.
    let raw = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if raw == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new and nobody else owns it.
    let list = unsafe { OwnedHandle::from_raw_handle(raw) };
    // SAFETY: plain numbers and characters.
    let mut entry: PROCESSENTRY32W = unsafe { mem::zeroed() };
    entry.dwSize = size_of_val(&entry) as u32;
    let mut found = Vec::new();
    // SAFETY: the list is open, and the entry says how large it is.
    let mut more = unsafe { Process32FirstW(list.as_raw_handle(), &mut entry) } != 0;
    while more {
        found.push(Listed {
            pid: entry.th32ProcessID,
            parent: entry.th32ParentProcessID,
            threads: entry.cntThreads,
        });
        // SAFETY: as before.
        more = unsafe { Process32NextW(list.as_raw_handle(), &mut entry) } != 0;
    }
    Ok(found)
}

/// When a process began, and for how long it has been on the CPU.
struct Times {
    created: u64,
    used: Duration,
}

fn created(process: BorrowedHandle<'_>) -> io::Result<u64> {
    times(process).map(|times| times.created)
}

fn times(process: BorrowedHandle<'_>) -> io::Result<Times> {
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
    let steps =
        |time: FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    let used = Duration::from_nanos(steps(kernel).saturating_add(steps(user)).saturating_mul(100));
    Ok(Times { created: steps(created), used })
}
