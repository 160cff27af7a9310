//! Giving back what only the start needed.
//!
//! Starting touches most of the program: parsing, books, forking. Waiting touches a few pages. A
//! wrapper waits for hours, so once it waits it lets the kernel unmap its code; what is needed again
//! comes back from the page cache.

use std::fs;

/// Unmaps the pages of this program's own code. They are reread when they are needed.
pub fn give_back_code() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (start, length) in maps.lines().filter_map(parse_code) {
        // SAFETY: the range is a whole mapping of this process that is executable, not writable and
        // backed by a file, so no page of it differs from the file: dropping one only means that it
        // is read again. Relocated data is in other, non-executable mappings.
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
}

/// Start and length of a mapping of code that is backed by a file.
fn parse_code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp";
    let is_file = fields.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (is_code && is_file && start < end).then_some((start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_given_back() {
        let code = "5581000-5583000 r-xp 00001000 fe:00 12 /usr/bin/lariat";
        assert_eq!(parse_code(code), Some((0x5581000, 0x2000)));
        for other in [
            "5581000-5583000 r--p 00001000 fe:00 12 /usr/bin/lariat",
            "5581000-5583000 rwxp 00001000 fe:00 12 /usr/bin/lariat",
            "7ffe000-7fff000 r-xp 00000000 00:00 0 [vdso]",
            "7ffe000-7fff000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(parse_code(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_runs_on_afterwards() {
        give_back_code();
        assert_eq!(format!("{:?}", [1, 2]), "[1, 2]");
    }
}
