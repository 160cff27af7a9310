//! What was seen in one cell.

use std::fmt;

/// What one cell left behind. Empty lists are good news.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Verdict {
    /// Processes of the session (wrapper and guardian included) alive when patience ran out:
    /// pid, name, state and age of each.
    pub survivors: Vec<String>,
    /// Bystanders (and the host, where it was to live) that were signalled, stopped or ended.
    pub harmed: Vec<String>,
    /// What did not answer in time, such as the handshake.
    pub hung: Option<String>,
    /// Why the cell proves nothing: the misbehaviour was expected and did not happen.
    pub unbuilt: Option<String>,
    /// Cgroups in which members were seen and which still exist.
    pub left_cgroups: Vec<String>,
    /// What became of the cell's directory, if somebody still wrote there when all was over.
    pub cluttered: Option<String>,
    /// Why the misbehaviour is impossible on this machine, such as a refusing kernel.
    pub skipped: Option<String>,
    /// The wrapper's exit code; 128+n for a signal. Unknown if the host was killed.
    pub wrapper_exit: Option<i32>,
    /// Milliseconds from the death until the last process was gone.
    pub gone_ms: Option<u64>,
    /// The most processes of the server's own tree seen at once.
    pub peak: usize,
}

impl Verdict {
    /// Whether the promise held: all gone, nobody else touched, nothing hung, nothing left.
    ///
    /// A skipped cell passes; look at [`skipped`](Self::skipped) to count it apart.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.survivors.is_empty()
            && self.harmed.is_empty()
            && self.hung.is_none()
            && self.unbuilt.is_none()
            && self.left_cgroups.is_empty()
            && self.cluttered.is_none()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (what, who) in [
            ("survived", &self.survivors),
            ("harmed", &self.harmed),
            ("left cgroup", &self.left_cgroups),
        ] {
            // A wide tree has two hundred survivors; ten of them tell the story.
            parts.extend(who.iter().take(10).map(|one| format!("{what}: {one}")));
            if who.len() > 10 {
                parts.push(format!("{what}: and {} more", who.len() - 10));
            }
        }
        let notes = [
            ("hung", &self.hung),
            ("unbuilt", &self.unbuilt),
            ("cluttered", &self.cluttered),
            ("skipped", &self.skipped),
        ];
        for (what, why) in notes {
            parts.extend(why.iter().map(|why| format!("{what}: {why}")));
        }
        if parts.is_empty() {
            parts.push("nothing left, nobody harmed".to_owned());
        }
        if let Some(ms) = self.gone_ms {
            parts.push(format!("gone after {ms} ms"));
        }
        parts.push(format!("{} at most", self.peak));
        f.write_str(&parts.join("; "))
    }
}
