//! The environment a command starts with: the one this process was given, but for a few variables.
//!
//! The entries are passed on as they are, byte for byte and in their order, also those that are no
//! `NAME=value`: a command must not see that somebody stood between it and its host.

use std::ffi::{CStr, CString, NulError, OsString};
use std::os::unix::ffi::OsStrExt;

unsafe extern "C" {
    static mut environ: *const *const libc::c_char;
}

/// An array that exec takes.
#[derive(Debug)]
pub(crate) struct Environment {
    pointers: Vec<*const libc::c_char>,
    /// What the last pointers point at.
    _added: Vec<CString>,
}

impl Environment {
    /// Ours, with these variables set or, where there is no value, taken out.
    pub(crate) fn changed(
        changes: &[(OsString, Option<OsString>)],
    ) -> Result<Environment, NulError> {
        let mut pointers = Vec::new();
        // SAFETY: the process has one thread here (the holder checks it) and nothing in it changes
        // its environment, so the array and its strings stay as they are until exec.
        let mut next = unsafe { environ };
        // SAFETY: `environ` is null or an array of pointers that ends with a null.
        while let Some(entry) = unsafe { next.as_ref() }.copied().filter(|e| !e.is_null()) {
            // SAFETY: an entry is a null-terminated string.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let is_named = |(name, _): &(OsString, _)| {
                text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
            };
            if !changes.iter().any(is_named) {
                pointers.push(entry);
            }
            // SAFETY: the null that ends the array has not been reached.
            next = unsafe { next.add(1) };
        }
        let added = changes.iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
        });
        let added = added.collect::<Result<Vec<CString>, NulError>>()?;
        pointers.extend(added.iter().map(|entry| entry.as_ptr()));
        pointers.push(std::ptr::null());
        Ok(Environment { pointers, _added: added })
    }

    /// Valid as long as this is.
    pub(crate) fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}
