//! The pipe by which the programs of one user speak with each other: who may come, and who is at the
//! other end.
//!
//! All instances of a pipe have one security descriptor, that of the first, for as long as there is
//! any instance. So the first is made here, with a descriptor that lets in one user, and is kept; it
//! is disconnected, so that nobody ever comes by it. Whoever serves makes the others as it likes:
//! an asynchronous runtime has a way of its own, which takes no descriptor and needs none then.

use super::member::Handle;
use crate::title;
use std::fs::File;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr;
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_PIPE_CLOSING_STATE, FILE_PIPE_LOCAL_INFORMATION, FilePipeLocalInformation,
    NtQueryInformationFile,
};
use windows_sys::Win32::Foundation::{HLOCAL, INVALID_HANDLE_VALUE, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW, ConvertSidToStringSidW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, GetSecurityInfo, SDDL_REVISION_1,
    SE_KERNEL_OBJECT,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, GetTokenInformation, OWNER_SECURITY_INFORMATION, PSID,
    SECURITY_ATTRIBUTES, TOKEN_ELEVATION_TYPE, TOKEN_INFORMATION_CLASS, TOKEN_QUERY, TOKEN_USER,
    TokenElevationType, TokenElevationTypeFull, TokenUser,
};
use windows_sys::Win32::Storage::FileSystem::{FILE_FLAG_FIRST_PIPE_INSTANCE, PIPE_ACCESS_DUPLEX};
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;
use windows_sys::Win32::System::Pipes::{
    CreateNamedPipeW, DisconnectNamedPipe, GetNamedPipeClientProcessId, PIPE_REJECT_REMOTE_CLIENTS,
    PIPE_TYPE_BYTE, PIPE_UNLIMITED_INSTANCES,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// A user in its binary form, behind what points to it, has at most this many words.
const WORDS: usize = 256 / size_of::<usize>();

/// No text of the system's is longer than this.
const LONGEST: usize = 1 << 16;

/// The first instance of a pipe, to which nobody is ever connected. While it is there, every instance
/// is for its user alone.
#[derive(Debug)]
pub struct Anchor {
    first: OwnedHandle,
}

impl Anchor {
    /// Makes the pipe, for this process's user alone, and for this machine alone. It must not be there
    /// yet: whoever had made it would have said who may come. Then the error is a permission denied.
    pub fn cast(name: &str) -> io::Result<Anchor> {
        let descriptor = Local::descriptor(&title::descriptor(&user()?, is_elevated()?))?;
        let attributes = SECURITY_ATTRIBUTES {
            nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
            lpSecurityDescriptor: descriptor.0,
            // A server that had the pipe would keep it.
            bInheritHandle: 0,
        };
        let wide = ended(name);
        // SAFETY: the name ends with a zero; it, the attributes and the descriptor that they point to
        // outlive the call.
        let raw = unsafe {
            CreateNamedPipeW(
                wide.as_ptr(),
                PIPE_ACCESS_DUPLEX | FILE_FLAG_FIRST_PIPE_INSTANCE,
                PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS,
                PIPE_UNLIMITED_INSTANCES,
                0,
                0,
                0,
                &attributes,
            )
        };
        if raw == INVALID_HANDLE_VALUE {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is new and nobody else owns it.
        let first = unsafe { OwnedHandle::from_raw_handle(raw) };
        // Only what is connected can be disconnected. If somebody was faster it is them who are sent
        // away, and who try again.
        let _connected = File::options().read(true).write(true).open(name);
        // SAFETY: the handle is that of a pipe's server, and open for the whole call.
        if unsafe { DisconnectNamedPipe(first.as_raw_handle()) } == 0 {
            return Err(io::Error::last_os_error());
        }
        // Not every system heeds the flag that it must be the first (Wine 8 does not).
        if stranger(first.as_handle())?.is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Anchor { first })
    }

    /// Who owns the pipe and who may come, in the system's own notation.
    pub fn descriptor(&self) -> io::Result<String> {
        descriptor(self.first.as_handle())
    }
}

/// The name of the pipe that this process's user has for this word and this directory.
pub fn name(word: &str, place: &Path) -> io::Result<String> {
    Ok(title::name(word, &user()?, &place.to_string_lossy(), is_elevated()?))
}

/// Whether whoever was at the other end has closed it, also while something of theirs waits to be read. False
/// of what is no pipe. Not to be asked while another thread reads: it would wait for that.
pub fn is_closing(pipe: BorrowedHandle<'_>) -> bool {
    // SAFETY: plain numbers, all zeros are a value of either.
    let (mut said, mut found): (IO_STATUS_BLOCK, FILE_PIPE_LOCAL_INFORMATION) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: the handle is open for the whole call, and the structure is of the kind that the class
    // names and as large as it is said to be.
    let status = unsafe {
        NtQueryInformationFile(
            pipe.as_raw_handle(),
            &mut said,
            (&raw mut found).cast(),
            size_of_val(&found) as u32,
            FilePipeLocalInformation,
        )
    };
    status >= 0 && found.NamedPipeState == FILE_PIPE_CLOSING_STATE
}

/// The process that a server's end is connected to.
pub fn client(pipe: BorrowedHandle<'_>) -> io::Result<Handle> {
    let mut pid = 0;
    // SAFETY: the handle is open for the whole call, and the number goes to one of ours.
    if unsafe { GetNamedPipeClientProcessId(pipe.as_raw_handle(), &mut pid) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Handle::open(pid)
}

/// Whose pipe this is if it is another user's, seen from either end. Nobody can make a pipe that is another
/// user's.
pub fn stranger(pipe: BorrowedHandle<'_>) -> io::Result<Option<String>> {
    let (_all, owner) = security(pipe, OWNER_SECURITY_INFORMATION)?;
    let owner = sid_text(owner)?;
    Ok((owner != user()?).then_some(owner))
}

/// Who owns it and who may come, in the system's own notation.
fn descriptor(pipe: BorrowedHandle<'_>) -> io::Result<String> {
    let wanted = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    security(pipe, wanted)?.0.text(wanted)
}

/// Whose process this is, as text: `S-1-5-…`.
fn user() -> io::Result<String> {
    let words = of_token(TokenUser)?;
    // SAFETY: the buffer is aligned for a pointer and begins with what was asked for.
    let user = unsafe { &*words.as_ptr().cast::<TOKEN_USER>() };
    sid_text(user.User.Sid)
}

/// Whether this process has rights that its user's other processes do not have.
fn is_elevated() -> io::Result<bool> {
    let words = of_token(TokenElevationType)?;
    // SAFETY: the buffer begins with the number that was asked for.
    let kind = unsafe { *words.as_ptr().cast::<TOKEN_ELEVATION_TYPE>() };
    Ok(kind == TokenElevationTypeFull)
}

/// What the system knows of this process's user: in words, because some of it begins with a pointer, and where it
/// stays, because that points into it.
fn of_token(class: TOKEN_INFORMATION_CLASS) -> io::Result<Box<[usize; WORDS]>> {
    let mut raw = ptr::null_mut();
    // SAFETY: the pseudo handle needs no closing, and the token goes to a handle of ours.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut raw) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new and nobody else owns it.
    let token = unsafe { OwnedHandle::from_raw_handle(raw) };
    let mut words = Box::new([0; WORDS]);
    let mut length = 0;
    // SAFETY: the handle is open, and the buffer is as large as it is said to be.
    let done = unsafe {
        let (to, room) = (words.as_mut_ptr().cast(), size_of_val(&*words) as u32);
        GetTokenInformation(token.as_raw_handle(), class, to, room, &mut length)
    };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(words) }
}

/// What is known of a pipe's security, and the place in it that says who owns it, if that is wanted.
fn security(pipe: BorrowedHandle<'_>, wanted: u32) -> io::Result<(Local, PSID)> {
    let (mut owner, mut list, mut all) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the handle is open for the whole call; what is not wanted may be null, and the rest goes
    // to pointers of ours.
    let error = unsafe {
        GetSecurityInfo(
            pipe.as_raw_handle(),
            SE_KERNEL_OBJECT,
            wanted,
            &mut owner,
            ptr::null_mut(),
            &mut list,
            ptr::null_mut(),
            &mut all,
        )
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error.cast_signed()));
    }
    Ok((Local(all), owner))
}

fn sid_text(sid: PSID) -> io::Result<String> {
    let mut text = ptr::null_mut();
    // SAFETY: the callers have just been given it, inside of a buffer that is still there; the text
    // goes to a pointer of ours.
    if unsafe { ConvertSidToStringSidW(sid, &mut text) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Local(text.cast()).read())
}

fn ended(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Something that the system has allocated for us.
struct Local(HLOCAL);

impl Local {
    /// A security descriptor from its text.
    fn descriptor(text: &str) -> io::Result<Local> {
        let (text, mut made) = (ended(text), ptr::null_mut());
        // SAFETY: the text ends with a zero, and the result goes to a pointer of ours. Its size is
        // not wanted.
        let done = unsafe {
            let size = ptr::null_mut();
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &mut made,
                size,
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(Local(made)) }
    }

    /// The text of a security descriptor.
    fn text(&self, wanted: u32) -> io::Result<String> {
        let mut text = ptr::null_mut();
        // SAFETY: this is a descriptor (the callers made or were given one), and the text goes to a
        // pointer of ours. Its length is not wanted.
        let done = unsafe {
            ConvertSecurityDescriptorToStringSecurityDescriptorW(
                self.0,
                SDDL_REVISION_1,
                wanted,
                &mut text,
                ptr::null_mut(),
            )
        };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(Local(text.cast()).read()) }
    }

    /// The text that this is.
    fn read(&self) -> String {
        let first = self.0.cast::<u16>();
        // SAFETY: the callers have it from the system as a text that ends with a zero, which is looked
        // at up to there.
        let units = unsafe {
            let length = (0..LONGEST).take_while(|at| *first.add(*at) != 0).count();
            std::slice::from_raw_parts(first, length)
        };
        String::from_utf16_lossy(units)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the system allocated it for us in this way, and nobody points into it any more.
        let _null = unsafe { LocalFree(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Member;
    use windows_sys::Win32::Foundation::{
        ERROR_PIPE_BUSY, GetHandleInformation, HANDLE_FLAG_INHERIT,
    };

    fn pipe(word: &str) -> String {
        let place = format!("{}-{word}", std::process::id());
        name("lariat-test", Path::new(&place)).unwrap()
    }

    /// One more instance, as a runtime makes it that knows nothing of descriptors.
    fn another(name: &str) -> File {
        let wide = ended(name);
        // SAFETY: the name ends with a zero and outlives the call; the attributes may be null.
        let raw = unsafe {
            CreateNamedPipeW(
                wide.as_ptr(),
                PIPE_ACCESS_DUPLEX,
                PIPE_TYPE_BYTE | PIPE_REJECT_REMOTE_CLIENTS,
                PIPE_UNLIMITED_INSTANCES,
                4096,
                4096,
                0,
                ptr::null(),
            )
        };
        assert_ne!(raw, INVALID_HANDLE_VALUE, "{}", io::Error::last_os_error());
        // SAFETY: the handle is new and nobody else owns it.
        unsafe { File::from_raw_handle(raw) }
    }

    fn come(name: &str) -> io::Result<File> {
        File::options().read(true).write(true).open(name)
    }

    #[test]
    fn nobody_comes_by_the_first_instance() {
        let name = pipe("first");
        assert_eq!(come(&name).unwrap_err().kind(), io::ErrorKind::NotFound);
        let anchor = Anchor::cast(&name).unwrap();
        assert_eq!(come(&name).unwrap_err().raw_os_error(), Some(ERROR_PIPE_BUSY as i32));
        drop(anchor);
        assert_eq!(come(&name).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn every_instance_is_for_its_user_alone() {
        let name = pipe("user");
        let anchor = Anchor::cast(&name).unwrap();
        let wanted = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
        let is_elevated = is_elevated().unwrap();
        let meant = Local::descriptor(&title::descriptor(&user().unwrap(), is_elevated)).unwrap();
        let meant = meant.text(wanted).unwrap();
        assert_eq!(anchor.descriptor().unwrap(), meant);
        let server = another(&name);
        assert_eq!(descriptor(server.as_handle()).unwrap(), meant);
        let client = come(&name).unwrap();
        assert_eq!(descriptor(client.as_handle()).unwrap(), meant);
        assert_eq!(stranger(client.as_handle()).unwrap(), None);
    }

    #[test]
    fn a_server_knows_its_client() {
        let name = pipe("client");
        let _anchor = Anchor::cast(&name).unwrap();
        let server = another(&name);
        let _come = come(&name).unwrap();
        let client = client(server.as_handle()).unwrap();
        assert_eq!(Some(client.member()), Member::current());
    }

    #[test]
    fn no_child_inherits_it() {
        let anchor = Anchor::cast(&pipe("inherit")).unwrap();
        let mut flags = u32::MAX;
        // SAFETY: the handle is open, and the flags go to a number of ours.
        let done = unsafe { GetHandleInformation(anchor.first.as_raw_handle(), &mut flags) };
        assert_eq!((done, flags & HANDLE_FLAG_INHERIT), (1, 0));
    }

    #[test]
    fn there_is_one_first_instance() {
        let name = pipe("squatter");
        let anchor = Anchor::cast(&name).unwrap();
        // Wine 8 lets another be the first as well. Whoever fails here has a better one: say so in
        // docs/design/containment.md, and drop the exception.
        let is_wine = std::env::vars_os().any(|(name, _)| name == "WINEPREFIX");
        let again = Anchor::cast(&name).map(drop).map_err(|e| e.kind());
        assert_eq!(again, if is_wine { Ok(()) } else { Err(io::ErrorKind::PermissionDenied) });
        drop(anchor);
        Anchor::cast(&name).unwrap();
    }
}
