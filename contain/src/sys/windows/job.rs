//! The job: a set of processes that the kernel keeps, into which every child of a member is born.
//!
//! It has no name and its handle is never inherited: whoever else had one would keep the tree alive
//! after its owner's death. Breaking away is not allowed, so the set is closed downwards.

use super::member::{Handle, everybody};
use crate::member::Member;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;
use windows_sys::Win32::Foundation::{ERROR_MORE_DATA, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::IO::{CreateIoCompletionPort, GetQueuedCompletionStatus};
use windows_sys::Win32::System::JobObjects::{
    CreateJobObjectW, IsProcessInJob, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_ASSOCIATE_COMPLETION_PORT, JOBOBJECT_BASIC_ACCOUNTING_INFORMATION,
    JOBOBJECT_BASIC_PROCESS_ID_LIST, JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JOBOBJECTINFOCLASS,
    JobObjectAssociateCompletionPortInformation, JobObjectBasicAccountingInformation,
    JobObjectBasicProcessIdList, JobObjectExtendedLimitInformation, QueryInformationJobObject,
    SetInformationJobObject, TerminateJobObject,
};

/// The exit code of whoever is ended with the job: what a shell says of a process that was killed.
pub(crate) const KILLED: u32 = 137;

/// How many members there can be before a list of them is given up: no machine has as many.
const MOST: usize = 1 << 22;

/// The word of the list at which the numbers begin, behind two counts.
const FIRST: usize =
    std::mem::offset_of!(JOBOBJECT_BASIC_PROCESS_ID_LIST, ProcessIdList) / size_of::<usize>();

#[derive(Debug)]
pub(crate) struct Job {
    job: OwnedHandle,
    /// Where the kernel says what happens in the job, from when somebody first listens: what is never
    /// heard would pile up. It is heard, and then the job is looked at: no message is promised to arrive.
    port: OnceLock<Option<OwnedHandle>>,
}

/// How many processes there were and are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) total: u32,
    pub(crate) active: u32,
}

impl Job {
    pub(crate) fn new() -> io::Result<Job> {
        // SAFETY: both pointers may be null: no name, and a handle that is not inherited.
        let job = owned(unsafe { CreateJobObjectW(ptr::null(), ptr::null()) })?;
        let new = Job { job, port: OnceLock::new() };
        // SAFETY: plain numbers, for which zero means that there is no limit.
        let mut limits: JOBOBJECT_EXTENDED_LIMIT_INFORMATION = unsafe { std::mem::zeroed() };
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        new.set(JobObjectExtendedLimitInformation, &limits)?;
        Ok(new)
    }

    /// Has the kernel say what happens from now on.
    fn hear(&self) -> io::Result<OwnedHandle> {
        // SAFETY: a new port, of no file; the arguments are those that the call wants for it.
        let port =
            owned(unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, ptr::null_mut(), 0, 1) })?;
        let told = JOBOBJECT_ASSOCIATE_COMPLETION_PORT {
            CompletionKey: ptr::null_mut(),
            CompletionPort: port.as_raw_handle(),
        };
        self.set(JobObjectAssociateCompletionPortInformation, &told)?;
        Ok(port)
    }

    fn set<T>(&self, class: JOBOBJECTINFOCLASS, value: &T) -> io::Result<()> {
        let value: *const T = value;
        // SAFETY: the value is of the kind that its class names (the two callers above), and as
        // large as it is said to be.
        let done = unsafe {
            let job = self.job.as_raw_handle();
            SetInformationJobObject(job, class, value.cast(), size_of::<T>() as u32)
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// How many members there were and are, by the kernel's own count.
    pub(crate) fn count(&self) -> io::Result<Count> {
        // SAFETY: plain numbers, all zeros are a value of it.
        let mut found: JOBOBJECT_BASIC_ACCOUNTING_INFORMATION = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is of the kind that the class names, and as large as it is said to
        // be; the length that is returned is not wanted.
        let done = unsafe {
            QueryInformationJobObject(
                self.job.as_raw_handle(),
                JobObjectBasicAccountingInformation,
                (&raw mut found).cast(),
                size_of_val(&found) as u32,
                ptr::null_mut(),
            )
        };
        if done == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Count { total: found.TotalProcesses, active: found.ActiveProcesses })
    }

    /// Everyone who is in the job now.
    pub(crate) fn members(&self) -> io::Result<Vec<Member>> {
        let member = |pid| {
            let handle = Handle::open(pid).ok()?;
            // Between the list and the handle the number can have become a stranger's.
            self.contains(handle.as_handle()).then(|| handle.member())
        };
        let members: Vec<Member> = self.numbers()?.into_iter().filter_map(member).collect();
        if members.len() >= self.count()?.active as usize {
            return Ok(members);
        }
        // Not every system lists the members of a job (Wine 8 does not); each says of a process
        // whether it is one.
        Ok(everybody()?.into_iter().filter_map(member).collect())
    }

    /// The numbers of everyone who is in the job now, also of those who may not be looked at.
    pub(crate) fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut words = vec![0_usize; 64];
        loop {
            // SAFETY: the buffer is as large as it is said to be, and aligned for the words that
            // the list is made of.
            let done = unsafe {
                QueryInformationJobObject(
                    self.job.as_raw_handle(),
                    JobObjectBasicProcessIdList,
                    words.as_mut_ptr().cast(),
                    size_of_val(words.as_slice()) as u32,
                    ptr::null_mut(),
                )
            };
            let error = io::Error::last_os_error();
            if done == 0 && error.raw_os_error() != Some(ERROR_MORE_DATA as i32) {
                return Err(error);
            }
            // SAFETY: the buffer is larger than the list's head and aligned for it, and every bit
            // pattern is a value of its numbers.
            let head = unsafe { &*words.as_ptr().cast::<JOBOBJECT_BASIC_PROCESS_ID_LIST>() };
            let assigned = head.NumberOfAssignedProcesses as usize;
            let listed = head.NumberOfProcessIdsInList as usize;
            let complete = done != 0 && listed >= assigned;
            if complete || words.len() > MOST {
                let numbers = words.iter().skip(FIRST).take(listed);
                return Ok(numbers.map(|pid| *pid as u32).collect());
            }
            words = vec![0; words.len() * 4];
        }
    }

    /// Whether that process is a member.
    pub(crate) fn contains(&self, process: BorrowedHandle<'_>) -> bool {
        let mut is = 0;
        // SAFETY: both handles are open, and the answer goes to a number of ours.
        let asked =
            unsafe { IsProcessInJob(process.as_raw_handle(), self.job.as_raw_handle(), &mut is) };
        asked != 0 && is != 0
    }

    /// Ends every member.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        // SAFETY: the handle is a job and open for the whole call.
        let done = unsafe { TerminateJobObject(self.job.as_raw_handle(), KILLED) };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until the kernel has something to say about the job, at most that long.
    pub(crate) fn listen(&self, at_most: Duration) {
        // Without one the wait is only shorter than it might be.
        let Some(port) = self.port.get_or_init(|| self.hear().ok()) else {
            std::thread::park_timeout(at_most);
            return;
        };
        let mut at_most = u32::try_from(at_most.as_millis()).unwrap_or(u32::MAX - 1);
        let (mut message, mut key, mut about) = (0, 0, ptr::null_mut());
        // SAFETY: the port is open, and each pointer is to a value of ours of the right kind. The
        // last one is set to a process's number, which is no address and never followed.
        while unsafe {
            let port = port.as_raw_handle();
            GetQueuedCompletionStatus(port, &mut message, &mut key, &mut about, at_most)
        } != 0
        {
            // Whatever else was said is heard with it: one look answers all.
            at_most = 0;
        }
    }
}

impl AsHandle for Job {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.job.as_handle()
    }
}

fn owned(raw: std::os::windows::io::RawHandle) -> io::Result<OwnedHandle> {
    if raw.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the callers have just been given this handle, and nobody else owns it.
    Ok(unsafe { OwnedHandle::from_raw_handle(raw) })
}
