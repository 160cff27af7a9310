//! One number that a process shows to whoever looks, for as long as it lives.
//!
//! Writing it costs no system call, so it may change with every message; reading it costs the writer
//! nothing. It is a page of memory behind a descriptor, not a file: it needs no room on a disk, its
//! size is sealed so that nobody can pull it away from below the writer, and it goes with the process.

use crate::member::Member;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells a gauge from anything else that a descriptor may be.
const MAGIC: u64 = u64::from_le_bytes(*b"lariat-g");

/// The magic and the number.
const SIZE: usize = 16;

/// A number that others may read.
#[derive(Debug)]
pub struct Gauge {
    memory: OwnedFd,
    cells: *mut AtomicU64,
}

// SAFETY: the pointer is to memory that this value alone unmaps and that is only reached through
// atomics.
unsafe impl Send for Gauge {}
// SAFETY: as above.
unsafe impl Sync for Gauge {}

impl Gauge {
    /// Makes one that shows nothing yet; `None` where the kernel has no such memory for us.
    pub fn new() -> Option<Gauge> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create(c"lariat-gauge", flags).ok()?;
        rustix::fs::ftruncate(&memory, SIZE as u64).ok()?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).ok()?;
        let gauge = Gauge::over(memory)?;
        gauge.cell(0).store(MAGIC.to_le(), Ordering::Relaxed);
        Some(gauge)
    }

    /// The one that this descriptor was before this process became another program. `None` if it was
    /// none.
    pub fn again(memory: OwnedFd) -> Option<Gauge> {
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        let is_fixed = rustix::fs::fcntl_get_seals(&memory).ok()?.contains(fixed);
        let size = rustix::fs::fstat(&memory).ok()?.st_size;
        (is_fixed && size == SIZE as i64).then_some(())?;
        Gauge::over(memory).filter(|gauge| gauge.cell(0).load(Ordering::Relaxed) == MAGIC.to_le())
    }

    /// Maps memory whose size is fixed.
    fn over(memory: OwnedFd) -> Option<Gauge> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of our own file, at an address that the kernel chooses. The file
        // cannot shrink any more, so no access to the first bytes of the page can fail.
        let cells = unsafe {
            let fd = memory.as_fd().as_raw_fd();
            libc::mmap(std::ptr::null_mut(), SIZE, access, libc::MAP_SHARED, fd, 0)
        };
        (cells != libc::MAP_FAILED).then(|| Gauge { memory, cells: cells.cast() })
    }

    /// By which descriptor others find it.
    pub fn number(&self) -> i32 {
        self.memory.as_raw_fd()
    }

    /// Shows this number.
    pub fn set(&self, number: u64) {
        self.cell(1).store(number.to_le(), Ordering::Relaxed);
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < SIZE / size_of::<AtomicU64>());
        // SAFETY: the mapping is a page, aligned as pages are, readable and writable, and there until
        // this value is dropped.
        unsafe { &*self.cells.add(at) }
    }

    /// Reads the gauge that a process has at this descriptor; `None` if it has none there, has gone,
    /// or is not ours to look at.
    pub fn read(of: Member, number: i32) -> Option<u64> {
        let path = format!("/proc/{}/fd/{number}", of.pid);
        // Looked at before it is opened: to open somebody's pipe can be heard at the other end.
        let looks = rustix::fs::stat(path.as_str()).ok()?;
        if looks.st_size != SIZE as i64 || looks.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path.as_str(), flags, Mode::empty()).ok()?;
        let mut bytes = [0; SIZE];
        if rustix::io::read(&file, &mut bytes).ok()? != SIZE {
            return None;
        }
        let cell = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        (cell(0)? == MAGIC).then_some(())?;
        cell(8)
    }
}

/// Whoever is given a copy shows the same number.
impl AsFd for Gauge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.cells.cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn others_read_what_was_set_last() {
        let gauge = Gauge::new().unwrap();
        let me = Member::current().unwrap();
        assert_eq!(Gauge::read(me, gauge.number()), Some(0));
        gauge.set(7);
        gauge.set(u64::MAX - 1);
        assert_eq!(Gauge::read(me, gauge.number()), Some(u64::MAX - 1));
        let file = File::open(format!("/proc/self/fd/{}", gauge.number())).unwrap();
        assert!(file.set_len(0).is_err(), "it can be pulled away");
    }

    #[test]
    fn another_program_goes_on_with_it() {
        let gauge = Gauge::new().unwrap();
        gauge.set(7);
        let again = Gauge::again(gauge.as_fd().try_clone_to_owned().unwrap()).unwrap();
        again.set(8);
        assert_eq!(Gauge::read(Member::current().unwrap(), gauge.number()), Some(8));
        let other = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Gauge::again(other).is_none());
        assert!(Gauge::again(File::open("/proc/self/exe").unwrap().into()).is_none());
    }

    #[test]
    fn what_is_no_gauge_is_not_read() {
        let me = Member::current().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[1; SIZE]).unwrap();
        assert_eq!(Gauge::read(me, reader.as_raw_fd()), None);
        let exe = File::open("/proc/self/exe").unwrap();
        assert_eq!(Gauge::read(me, exe.as_raw_fd()), None);
        assert_eq!(Gauge::read(me, 9999), None);
        // Of the same size, and not one of ours.
        let other = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&other, &[1; SIZE]).unwrap();
        assert_eq!(Gauge::read(me, other.as_raw_fd()), None);
    }
}
