//! What is asked of the machine as a whole.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::windows::io::AsRawHandle;
use std::ptr;
use windows_sys::Win32::Security::Cryptography::{
    BCRYPT_USE_SYSTEM_PREFERRED_RNG, BCryptGenRandom,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, GetFileInformationByHandle,
};
use windows_sys::Win32::System::SystemInformation::{
    ComputerNamePhysicalDnsHostname, GetComputerNameExW,
};

/// Fills this with bytes that nobody can guess.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    // SAFETY: the buffer is as long as it is said to be. Without an algorithm the system's own is
    // meant, as the flag says.
    let status = unsafe {
        BCryptGenRandom(
            ptr::null_mut(),
            bytes.as_mut_ptr(),
            length,
            BCRYPT_USE_SYSTEM_PREFERRED_RNG,
        )
    };
    if status >= 0 { Ok(()) } else { Err(io::Error::other(format!("status {status:#x}"))) }
}

/// What the machine is called.
pub fn name() -> Option<String> {
    let mut text = [0_u16; 256];
    let mut length = text.len() as u32;
    // SAFETY: the buffer has as many units as it is said to have.
    let done = unsafe {
        GetComputerNameExW(ComputerNamePhysicalDnsHostname, text.as_mut_ptr(), &mut length)
    };
    (done != 0).then(|| String::from_utf16_lossy(&text[..length as usize]))
}

/// What the file system calls a file, whatever its name is: the same for as long as the file is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    volume: u32,
    index: u64,
}

/// The one of this file.
pub fn file_id(file: &File) -> io::Result<FileId> {
    let mut about = MaybeUninit::<BY_HANDLE_FILE_INFORMATION>::uninit();
    // SAFETY: the handle is open as long as `file` is, and there is room for what is written.
    if unsafe { GetFileInformationByHandle(file.as_raw_handle(), about.as_mut_ptr()) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has filled this in.
    let about = unsafe { about.assume_init() };
    let index = u64::from(about.nFileIndexHigh) << 32 | u64::from(about.nFileIndexLow);
    Ok(FileId { volume: about.dwVolumeSerialNumber, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_the_same() {
        let mut words = [[0; 16]; 2];
        words.iter_mut().for_each(|word| random(word).unwrap());
        assert_ne!(words[0], words[1]);
        assert_ne!(words[0], [0; 16]);
    }

    #[test]
    fn the_machine_has_a_name() {
        assert!(!name().unwrap().is_empty());
    }
}
