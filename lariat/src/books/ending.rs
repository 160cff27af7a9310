//! Asking for the end of a session that somebody else holds.

use super::{Books, Page, Place};
use crate::id::SessionId;
use contain::Member;
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

impl Books {
    /// Asks whoever holds this session to end it, as a user who knows its pid would. By identity: a
    /// number that has come to mean somebody else is left alone. False if nobody holds it here.
    pub fn ask_to_end(&self, session: &SessionId) -> Result<bool, Errno> {
        let path = self.sessions().join(format!("{session}.json"));
        let Ok(meta) = File::open(&path).and_then(|file| file.metadata()) else {
            return Ok(false);
        };
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Ok(false);
        }
        let page = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Page>(&text).ok());
        match page.filter(|page| page.place == Place::here()) {
            Some(Page { wrapper: (pid, start), .. }) => Member { pid, start }.signal(Signal::TERM),
            None => Ok(false),
        }
    }
}
