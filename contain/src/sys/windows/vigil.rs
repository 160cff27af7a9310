//! Being told that a process has ended, without a thread that waits for each.

use super::member::Handle;
use std::fmt;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::ptr;
use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Threading::{
    INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEONLYONCE,
};

type Told = Box<dyn Fn() + Send + Sync>;

/// Somebody who is told, once, when a process has ended, unless this is dropped first.
pub struct Vigil {
    wait: HANDLE,
    process: Handle,
    /// In a box of its own: the system has the address of what is in there.
    _told: Box<Told>,
}

// SAFETY: the wait is the system's, which any thread may end; what is called may be called by any.
unsafe impl Send for Vigil {}
// SAFETY: nothing can be done with a shared one but ask which process it is.
unsafe impl Sync for Vigil {}

impl Vigil {
    /// Has it told by a thread of the system's. It must not drop this, which waits for it.
    pub fn keep(process: Handle, told: impl Fn() + Send + Sync + 'static) -> io::Result<Vigil> {
        let told: Box<Told> = Box::new(Box::new(told));
        let mut wait = ptr::null_mut();
        // SAFETY: the process's handle and what is called stay where they are until the wait has been
        // ended, in `drop`.
        let done = unsafe {
            RegisterWaitForSingleObject(
                &mut wait,
                process.as_handle().as_raw_handle(),
                Some(ended),
                (&raw const *told).cast(),
                INFINITE,
                WT_EXECUTEONLYONCE,
            )
        };
        if done == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Vigil { wait, process, _told: told })
    }

    /// Who it is about.
    pub fn process(&self) -> &Handle {
        &self.process
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        // SAFETY: the wait is ours and is ended once. With this event the call returns when nobody is
        // being told any more, so what is called can go.
        let _ended = unsafe { UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE) };
    }
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil").field("process", &self.process).finish_non_exhaustive()
    }
}

unsafe extern "system" fn ended(told: *mut std::ffi::c_void, _timed_out: bool) {
    // SAFETY: it is what `keep` gave along, which is there until the wait has been ended.
    let told = unsafe { &*told.cast_const().cast::<Told>() };
    told();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Member;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    fn child() -> (std::process::Child, Handle) {
        let mut command = Command::new("cmd");
        command.args(["/c", "pause"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let handle = Member::of(child.id().cast_signed()).unwrap().open().unwrap();
        (child, handle)
    }

    #[test]
    fn the_end_of_a_process_is_told_once() {
        let (mut child, handle) = child();
        let (tell, told) = mpsc::channel();
        let vigil = Vigil::keep(handle, move || tell.send(()).unwrap()).unwrap();
        assert!(vigil.process().is_alive());
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        child.kill().unwrap();
        told.recv_timeout(Duration::from_secs(30)).unwrap();
        drop(vigil);
        assert_eq!(told.recv(), Err(mpsc::RecvError), "who tells has gone");
        child.wait().unwrap();
    }

    #[test]
    fn who_has_ended_already_is_told_of_too() {
        let (mut child, handle) = child();
        child.kill().unwrap();
        child.wait().unwrap();
        let (tell, told) = mpsc::channel();
        let _vigil = Vigil::keep(handle, move || tell.send(()).unwrap()).unwrap();
        told.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn nothing_is_told_to_who_left_before() {
        let (mut child, handle) = child();
        let (tell, told) = mpsc::channel::<()>();
        drop(Vigil::keep(handle, move || tell.send(()).unwrap()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(told.recv(), Err(mpsc::RecvError));
    }
}
