//! The world as the witness sees it: processes by identity, waiting, and nothing it was told.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::time::{Duration, Instant};
use windows_sys::Wdk::System::Threading::{NtQueryInformationProcess, ProcessBasicInformation};
use windows_sys::Win32::Foundation::{
    FILETIME, INVALID_HANDLE_VALUE, UNICODE_STRING, WAIT_TIMEOUT,
};
use windows_sys::Win32::System::Diagnostics::Debug::ReadProcessMemory;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
    TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::SystemInformation::GetSystemTimeAsFileTime;
use windows_sys::Win32::System::Threading::{
    GetProcessHandleCount, GetProcessTimes, OpenProcess, OpenThread, PROCESS_BASIC_INFORMATION,
    PROCESS_QUERY_INFORMATION, PROCESS_SYNCHRONIZE, PROCESS_TERMINATE, PROCESS_VM_READ,
    ResumeThread, THREAD_SUSPEND_RESUME, TerminateProcess, WaitForSingleObject,
};

/// Waits until the condition holds, looking often; says whether it did before the deadline. It is
/// looked at once more when the time is over.
#[expect(clippy::disallowed_methods, reason = "this is what others use instead of sleeping")]
pub fn until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if condition() {
            return true;
        }
        let left = deadline.saturating_sub(began.elapsed());
        if left.is_zero() {
            return condition();
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// One process by identity: a number alone names a stranger once it is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was created, in steps of 100 ns since 1601.
    pub created: u64,
}

impl Process {
    /// The process that has this number now, dead or alive, if there is one.
    #[must_use]
    pub fn now(pid: u32) -> Option<Self> {
        let handle = open(pid, PROCESS_QUERY_INFORMATION)?;
        Some(Self { pid, created: created(&handle)? })
    }

    /// A handle of this very process.
    fn open(self, rights: u32) -> Option<OwnedHandle> {
        let handle = open(self.pid, rights | PROCESS_QUERY_INFORMATION)?;
        (created(&handle)? == self.created).then_some(handle)
    }

    /// The process that has this number now, if it has not ended.
    fn alive(pid: u32) -> Option<Self> {
        let handle = open(pid, PROCESS_QUERY_INFORMATION | PROCESS_SYNCHRONIZE)?;
        Some(Self { pid, created: created(&handle)? }).filter(|_| runs(&handle))
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self.open(PROCESS_SYNCHRONIZE).is_some_and(|handle| runs(&handle))
    }

    /// How many threads and how many handles it has.
    #[must_use]
    pub fn footprint(self) -> [usize; 2] {
        let threads =
            everybody().iter().find(|one| one.process == self).map_or(0, |one| one.threads);
        let mut handles = 0;
        let process = self.open(PROCESS_QUERY_INFORMATION);
        // SAFETY: the handle is open, and the number goes to one of ours.
        let _known = process
            .map(|process| unsafe { GetProcessHandleCount(process.as_raw_handle(), &mut handles) });
        [threads, handles as usize]
    }

    /// Ends this very process and no other.
    pub(crate) fn end(self) {
        if let Some(handle) = self.open(PROCESS_TERMINATE) {
            // SAFETY: the handle is open for the whole call.
            unsafe { TerminateProcess(handle.as_raw_handle(), 9) };
        }
    }

    /// Lets it run, if it was created suspended. True if it can run now.
    #[must_use]
    pub fn resume(self) -> bool {
        // Its number is its own for as long as this is open.
        let Some(_kept) = self.open(PROCESS_QUERY_INFORMATION) else { return false };
        let resumed = threads_of(self.pid).into_iter().filter(|thread| {
            // SAFETY: the handle is open for the whole call.
            unsafe { ResumeThread(thread.as_raw_handle()) != u32::MAX }
        });
        resumed.count() > 0
    }

    /// How long ago it was created.
    pub(crate) fn age(self) -> Duration {
        let mut now = ZERO;
        // SAFETY: the time goes to a structure of ours.
        unsafe { GetSystemTimeAsFileTime(&mut now) };
        let steps = number(now).saturating_sub(self.created);
        Duration::from_micros(steps / 10)
    }

    /// Its command line, if it can be read: a process that is only just being made has none.
    pub(crate) fn command_line(self) -> Option<String> {
        let handle = self.open(PROCESS_VM_READ)?;
        // SAFETY: plain numbers and a pointer that is never followed here.
        let mut basic: PROCESS_BASIC_INFORMATION = unsafe { std::mem::zeroed() };
        // SAFETY: the handle is open, and the structure as large as is said.
        let status = unsafe {
            NtQueryInformationProcess(
                handle.as_raw_handle(),
                ProcessBasicInformation,
                (&raw mut basic).cast(),
                size_of_val(&basic) as u32,
                std::ptr::null_mut(),
            )
        };
        let environment_block = basic.PebBaseAddress as usize;
        if status < 0 || environment_block == 0 {
            return None;
        }
        let mut pointer = [0_u8; 8];
        read(&handle, environment_block + PARAMETERS, &mut pointer)?;
        let parameters = usize::from_ne_bytes(pointer);
        let mut text = [0_u8; size_of::<UNICODE_STRING>()];
        read(&handle, parameters.checked_add(COMMAND_LINE)?, &mut text)?;
        let length = usize::from(u16::from_ne_bytes([text[0], text[1]]));
        let at = usize::from_ne_bytes(text[8..16].try_into().ok()?);
        let mut bytes = vec![0_u8; length];
        read(&handle, at, &mut bytes)?;
        let units: Vec<u16> =
            bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
        Some(String::from_utf16_lossy(&units))
    }
}

/// Where, in a process of 64 bits, the parameters are pointed to, and where in them its command
/// line is.
const PARAMETERS: usize = 0x20;
const COMMAND_LINE: usize = 0x70;

/// A line of the list of processes.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) process: Process,
    pub(crate) parent: u32,
    pub(crate) name: String,
    threads: usize,
}

/// Everybody who is alive now.
pub(crate) fn everybody() -> Vec<Listed> {
    // SAFETY: takes numbers and touches no memory of ours.
    let raw = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if raw == INVALID_HANDLE_VALUE {
        return Vec::new();
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
        let end = entry.szExeFile.iter().position(|unit| *unit == 0);
        let name = String::from_utf16_lossy(&entry.szExeFile[..end.unwrap_or(0)]);
        let process = Process::alive(entry.th32ProcessID);
        found.extend(process.map(|process| Listed {
            process,
            parent: entry.th32ParentProcessID,
            name,
            threads: entry.cntThreads as usize,
        }));
        // SAFETY: as above.
        more = unsafe { Process32NextW(list.as_raw_handle(), &mut entry) } != 0;
    }
    found
}

/// The threads of the process with this number, to be suspended and resumed.
fn threads_of(pid: u32) -> Vec<OwnedHandle> {
    // SAFETY: takes numbers and touches no memory of ours.
    let raw = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0) };
    if raw == INVALID_HANDLE_VALUE {
        return Vec::new();
    }
    // SAFETY: the handle is new and nobody else owns it.
    let list = unsafe { OwnedHandle::from_raw_handle(raw) };
    // SAFETY: plain numbers.
    let mut entry: THREADENTRY32 = unsafe { std::mem::zeroed() };
    entry.dwSize = size_of_val(&entry) as u32;
    let mut found = Vec::new();
    // SAFETY: the list is open, and the entry says how large it is.
    let mut more = unsafe { Thread32First(list.as_raw_handle(), &mut entry) } != 0;
    while more {
        if entry.th32OwnerProcessID == pid {
            // SAFETY: takes numbers and touches no memory of ours.
            let thread = unsafe { OpenThread(THREAD_SUSPEND_RESUME, 0, entry.th32ThreadID) };
            if !thread.is_null() {
                // SAFETY: the handle is new and nobody else owns it.
                found.push(unsafe { OwnedHandle::from_raw_handle(thread) });
            }
        }
        // SAFETY: as above.
        more = unsafe { Thread32Next(list.as_raw_handle(), &mut entry) } != 0;
    }
    found
}

fn read(process: &OwnedHandle, at: usize, into: &mut [u8]) -> Option<()> {
    let mut got = 0;
    let buffer = into.as_mut_ptr();
    // SAFETY: the handle is open and the buffer as large as is said; the address is another
    // process's, and the system says whether there is anything.
    let done = unsafe {
        let process = process.as_raw_handle();
        ReadProcessMemory(process, at as *const _, buffer.cast(), into.len(), &mut got)
    };
    (done != 0 && got == into.len()).then_some(())
}

fn open(pid: u32, rights: u32) -> Option<OwnedHandle> {
    // SAFETY: takes numbers and touches no memory of ours.
    let raw = unsafe { OpenProcess(rights, 0, pid) };
    // SAFETY: the handle is new and nobody else owns it.
    (!raw.is_null()).then(|| unsafe { OwnedHandle::from_raw_handle(raw) })
}

fn runs(process: &OwnedHandle) -> bool {
    // SAFETY: the handle is open for the whole call, which does not wait.
    unsafe { WaitForSingleObject(process.as_raw_handle(), 0) == WAIT_TIMEOUT }
}

const ZERO: FILETIME = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };

fn number(time: FILETIME) -> u64 {
    u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)
}

fn created(process: &OwnedHandle) -> Option<u64> {
    let [mut created, mut exited, mut kernel, mut user] = [ZERO; 4];
    // SAFETY: the handle is open, and each pointer is to a structure of ours.
    let done = unsafe {
        let process = process.as_raw_handle();
        GetProcessTimes(process, &mut created, &mut exited, &mut kernel, &mut user)
    };
    (done != 0).then(|| number(created))
}

/// An error in words, for a verdict.
pub(crate) fn problem(what: &str) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{what}: {error}")
}
