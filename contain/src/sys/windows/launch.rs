//! Starting the command: born in the job, suspended until that has been seen, with three streams
//! and no other handle of ours.

use super::console;
use super::job::Job;
use super::member::Handle;
use crate::error::{Error, SpawnStage};
use crate::quote;
use crate::resolve::{Found, Search, resolve};
use crate::spec::Spec;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::io::{AsHandle, AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
use std::path::Path;
use std::ptr;
use windows_sys::Win32::System::Console::{STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE};
use windows_sys::Win32::System::JobObjects::IsProcessInJob;
use windows_sys::Win32::System::SystemInformation::GetSystemDirectoryW;
use windows_sys::Win32::System::Threading::{
    CREATE_BREAKAWAY_FROM_JOB, CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW, CREATE_SUSPENDED,
    CREATE_UNICODE_ENVIRONMENT, CreateProcessW, DeleteProcThreadAttributeList,
    EXTENDED_STARTUPINFO_PRESENT, InitializeProcThreadAttributeList, LPPROC_THREAD_ATTRIBUTE_LIST,
    PROC_THREAD_ATTRIBUTE_HANDLE_LIST, PROC_THREAD_ATTRIBUTE_JOB_LIST, PROCESS_INFORMATION,
    ResumeThread, STARTF_USESTDHANDLES, STARTUPINFOEXW, TerminateProcess,
    UpdateProcThreadAttribute,
};

/// A command that runs in the job.
pub(crate) struct Launched {
    pub(crate) process: Handle,
    /// Whether it shares our console, so that Ctrl-Break reaches it.
    pub(crate) shares_console: bool,
}

/// Starts the command in the job.
pub(crate) fn launch(spec: &Spec, job: &Job) -> Result<Launched, Error> {
    let shares_console = console::is_attached();
    // Without a console to share, a command would open a window with one.
    let window = if shares_console { 0 } else { CREATE_NO_WINDOW };
    let jobs = [job.as_handle().as_raw_handle()];
    let Born { process, thread, pid } = create(spec, &jobs, CREATE_SUSPENDED | window)?;
    wake(process, &thread, pid, job)
        .map(|process| Launched { process, shares_console })
        .map_err(|e| Error::Spawn(SpawnStage::Job, e))
}

/// Starts a program that nobody holds, with a console of its own that has no window: what it starts
/// can be asked there to leave. It is in none of the jobs that this process is in, if those let it
/// go; false if they do not, and it ends with them.
pub fn detach(spec: Spec) -> Result<bool, Error> {
    let is_kept = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
    match create(&spec, &[], CREATE_NO_WINDOW | CREATE_BREAKAWAY_FROM_JOB) {
        // A job around the one that has let it go may have kept it.
        Ok(born) => Ok(!is_in_a_job(&born.process)),
        Err(Error::Exec(e)) if is_kept(&e) => create(&spec, &[], CREATE_NO_WINDOW).map(|_| false),
        Err(e) => Err(e),
    }
}

fn is_in_a_job(process: &OwnedHandle) -> bool {
    let mut is = 0;
    // SAFETY: the handle is open, no job means any job, and the answer goes to a number of ours.
    let asked = unsafe { IsProcessInJob(process.as_raw_handle(), ptr::null_mut(), &mut is) };
    asked != 0 && is != 0
}

/// A process that has just been made, and its first thread.
struct Born {
    process: OwnedHandle,
    thread: OwnedHandle,
    pid: u32,
}

fn create(spec: &Spec, jobs: &[RawHandle], flags: u32) -> Result<Born, Error> {
    let (program, mut line) = command_line(spec)?;
    let environment = spec.env.as_deref().map(environment).transpose().map_err(Error::Exec)?;
    let directory = spec.cwd.as_deref().map(|cwd| ended(cwd.as_os_str())).transpose()?;
    let stdio = |e| Error::Spawn(SpawnStage::Stdio, e);
    let streams = [
        spec.stdin.inheritable(STD_INPUT_HANDLE).map_err(stdio)?,
        spec.stdout.inheritable(STD_OUTPUT_HANDLE).map_err(stdio)?,
        spec.stderr.inheritable(STD_ERROR_HANDLE).map_err(stdio)?,
    ];
    let handles = streams.each_ref().map(AsRawHandle::as_raw_handle);
    let mut attributes =
        Attributes::new(jobs, &handles).map_err(|e| Error::Spawn(SpawnStage::Job, e))?;
    // SAFETY: plain numbers and pointers, for which zero means that nothing is wanted.
    let mut startup: STARTUPINFOEXW = unsafe { std::mem::zeroed() };
    startup.StartupInfo.cb = size_of::<STARTUPINFOEXW>() as u32;
    startup.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
    [
        startup.StartupInfo.hStdInput,
        startup.StartupInfo.hStdOutput,
        startup.StartupInfo.hStdError,
    ] = handles;
    startup.lpAttributeList = attributes.list();
    let flags = flags
        | CREATE_NEW_PROCESS_GROUP
        | CREATE_UNICODE_ENVIRONMENT
        | EXTENDED_STARTUPINFO_PRESENT;
    // SAFETY: plain numbers and handles, for which zero means none.
    let mut born: PROCESS_INFORMATION = unsafe { std::mem::zeroed() };
    // SAFETY: the texts end with a zero (the environment with two) and the line may be written to;
    // they, the streams and the jobs outlive the call, and so does the list of attributes, which
    // the startup information is followed by, as its flag says.
    let created = unsafe {
        CreateProcessW(
            program.as_ptr(),
            line.as_mut_ptr(),
            ptr::null(),
            ptr::null(),
            1,
            flags,
            environment.as_ref().map_or(ptr::null(), |block| block.as_ptr().cast()),
            directory.as_ref().map_or(ptr::null(), |path| path.as_ptr()),
            (&raw const startup).cast(),
            &mut born,
        )
    };
    if created == 0 {
        return Err(Error::Exec(io::Error::last_os_error()));
    }
    // SAFETY: both handles are new and nobody else owns them.
    let (process, thread) = unsafe {
        (OwnedHandle::from_raw_handle(born.hProcess), OwnedHandle::from_raw_handle(born.hThread))
    };
    Ok(Born { process, thread, pid: born.dwProcessId })
}

/// Lets the command run, now that it is known to be held.
fn wake(process: OwnedHandle, thread: &OwnedHandle, pid: u32, job: &Job) -> io::Result<Handle> {
    if !job.contains(process.as_handle()) {
        // SAFETY: the handle is open, and the process has never run. In the job it would end with it.
        let _ended = unsafe { TerminateProcess(process.as_raw_handle(), 1) };
        return Err(io::Error::other("the command was not born in its job"));
    }
    let handle = Handle::of(process, pid)?;
    // SAFETY: the handle is that of a thread, and open for the whole call.
    if unsafe { ResumeThread(thread.as_raw_handle()) } == u32::MAX {
        return Err(io::Error::last_os_error());
    }
    Ok(handle)
}

/// What to execute, and the line that it gets, both ended by a zero.
fn command_line(spec: &Spec) -> Result<(Vec<u16>, Vec<u16>), Error> {
    let variable = |name: &str| {
        let named = |key: &OsStr| key.eq_ignore_ascii_case(name);
        let of_spec = |env: &Vec<(OsString, OsString)>| {
            env.iter().rfind(|(key, _)| named(key)).map(|(_, value)| wide(value))
        };
        let own = || std::env::vars_os().find(|(key, _)| named(key)).map(|(_, value)| wide(&value));
        spec.env.as_ref().map_or_else(own, of_spec)
    };
    let (path, extensions) = (variable("PATH").unwrap_or_default(), variable("PATHEXT"));
    let directory = std::path::absolute(spec.cwd.as_deref().unwrap_or(Path::new(".")));
    let directory = wide(directory.map_err(Error::Exec)?.as_os_str());
    let search = Search { path: &path, extensions: extensions.as_deref(), directory: &directory };
    let is_file = |path: &[u16]| Path::new(&OsString::from_wide(path)).is_file();
    let not_found = || Error::Exec(io::Error::from(io::ErrorKind::NotFound));
    let found = resolve(&wide(&spec.program), &search, is_file).ok_or_else(not_found)?;
    let args: Vec<Vec<u16>> = spec.args.iter().map(|arg| wide(arg)).collect();
    let refused = |why| Error::Exec(io::Error::new(io::ErrorKind::InvalidInput, why));
    let (mut program, mut line) = match found {
        Found::Program(path) => {
            let line = quote::plain(&path, &args).map_err(refused)?;
            (path, line)
        }
        Found::Script(path) => {
            let shell = shell().map_err(|e| Error::Spawn(SpawnStage::System, e))?;
            let line = quote::script(&shell, &path, &args).map_err(refused)?;
            (shell, line)
        }
    };
    program.push(0);
    line.push(0);
    Ok((program, line))
}

/// `cmd.exe` where the system has it, whatever the environment says.
fn shell() -> io::Result<Vec<u16>> {
    let mut path = vec![0_u16; 260];
    // SAFETY: the buffer has as many units as it is said to have.
    let length = unsafe { GetSystemDirectoryW(path.as_mut_ptr(), path.len() as u32) } as usize;
    if length == 0 || length > path.len() {
        return Err(io::Error::last_os_error());
    }
    path.truncate(length);
    path.extend(r"\cmd.exe".encode_utf16());
    Ok(path)
}

/// A block of variables: each ended by a zero, the whole by another, in the order of their names
/// without regard to case, and each name once.
fn environment(variables: &[(OsString, OsString)]) -> io::Result<Vec<u16>> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mut sorted = BTreeMap::new();
    for (name, value) in variables {
        let (key, mut line) = (name.to_string_lossy().to_uppercase(), wide(name));
        // The system's own variables for the directory on each drive begin with an equals sign.
        if line.is_empty() || line[1..].contains(&u16::from(b'=')) {
            return Err(invalid("a variable of the environment has no proper name"));
        }
        line.push(u16::from(b'='));
        line.extend(value.encode_wide());
        if line.contains(&0) {
            return Err(invalid("a variable of the environment has a zero in it"));
        }
        line.push(0);
        sorted.insert(key, line);
    }
    // A block without variables is two zeros as well.
    let end = if sorted.is_empty() { vec![0, 0] } else { vec![0] };
    Ok(sorted.into_values().flatten().chain(end).collect())
}

fn wide(text: &OsStr) -> Vec<u16> {
    text.encode_wide().collect()
}

/// A text for the system, ended by a zero.
fn ended(text: &OsStr) -> Result<Vec<u16>, Error> {
    let mut text = wide(text);
    if text.contains(&0) {
        let why = "the working directory has a zero in its name";
        return Err(Error::Exec(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    text.push(0);
    Ok(text)
}

/// The job that a process is born into and the handles that it inherits. Both are only pointed to.
struct Attributes<'a> {
    /// In words, because the list wants to be aligned like a pointer.
    list: Vec<usize>,
    _pointed_to: PhantomData<&'a RawHandle>,
}

impl<'a> Attributes<'a> {
    fn new(jobs: &'a [RawHandle], handles: &'a [RawHandle]) -> io::Result<Attributes<'a>> {
        let mut size = 0;
        // SAFETY: without a list the call only says how large it has to be.
        unsafe { InitializeProcThreadAttributeList(ptr::null_mut(), 2, 0, &mut size) };
        let mut list = vec![0_usize; size.div_ceil(size_of::<usize>())];
        // SAFETY: the list is as large as the call has just said.
        if unsafe { InitializeProcThreadAttributeList(list.as_mut_ptr().cast(), 2, 0, &mut size) }
            == 0
        {
            return Err(io::Error::last_os_error());
        }
        let mut attributes = Attributes { list, _pointed_to: PhantomData };
        if !jobs.is_empty() {
            attributes.set(PROC_THREAD_ATTRIBUTE_JOB_LIST, jobs)?;
        }
        attributes.set(PROC_THREAD_ATTRIBUTE_HANDLE_LIST, handles)?;
        Ok(attributes)
    }

    fn set(&mut self, attribute: u32, handles: &'a [RawHandle]) -> io::Result<()> {
        let value: *const c_void = handles.as_ptr().cast();
        // SAFETY: the list was initialised for two attributes, both of which are arrays of handles,
        // and the array outlives it by the lifetime.
        let done = unsafe {
            UpdateProcThreadAttribute(
                self.list(),
                0,
                attribute as usize,
                value,
                size_of_val(handles),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn list(&mut self) -> LPPROC_THREAD_ATTRIBUTE_LIST {
        self.list.as_mut_ptr().cast()
    }
}

impl Drop for Attributes<'_> {
    fn drop(&mut self) {
        // SAFETY: the list was initialised in `new`, and nobody uses it any more.
        unsafe { DeleteProcThreadAttributeList(self.list()) };
    }
}
