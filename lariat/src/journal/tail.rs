//! Reading a journal while others write to it: its last lines, and whatever comes, across rotation.
//!
//! A journal that is full is renamed to `NAME.1` and begun anew. Whoever follows it keeps the renamed
//! file for a moment, because a writer may just have been about to append to it, and then goes on
//! with the new one. So no line is lost and none is read twice, unless the file is filled and
//! renamed three times between two looks: the one that was read before, the one that is `NAME.1` now
//! and the new one are read, and only what was between the first two is gone.

use super::{plain, predecessor};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a renamed file is still read: longer than any writer needs for one line.
const LATE: Duration = Duration::from_secs(1);

/// How long to wait at most where the kernel says nothing of files.
const LOOK: Duration = Duration::from_millis(250);

/// How often a look that was overtaken by a rotation begins anew.
const ROUNDS: usize = 8;

/// A journal that is being followed.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    current: Option<Open>,
    /// The one before, and until when it is read.
    renamed: Option<(Open, Instant)>,
    watch: Option<OwnedFd>,
}

#[derive(Debug)]
struct Open {
    file: File,
    inode: u64,
}

impl Open {
    /// `None` if there is none, which is not the same as one that cannot be read now: that one must
    /// not be taken for a new one later.
    fn at(path: &Path) -> io::Result<Option<Open>> {
        let file = match plain(File::options().read(true), path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let inode = file.metadata()?.ino();
        Ok(Some(Open { file, inode }))
    }

    /// Everything up to the end; from the beginning if somebody has emptied it.
    fn rest(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        if self.file.stream_position()? > self.file.metadata()?.len() {
            // Somebody has cut it: begin again.
            self.file.rewind()?;
        }
        self.file.read_to_end(into).map(drop)
    }
}

impl Tail {
    /// Opens a journal, which need not be there yet, and returns its last lines.
    pub fn open(path: &Path, lines: usize) -> io::Result<(Tail, Vec<u8>)> {
        // Before anything is read, so that whatever comes after that is heard.
        let watch = watch(path);
        let (tail, text) = Tail::unwatched(path)?;
        Ok((Tail { watch, ..tail }, last_lines(&text, lines).to_vec()))
    }

    /// The same with all lines that there are, for somebody who comes by now and then and does not
    /// wait: nobody would hear what the kernel says.
    pub(crate) fn unwatched(path: &Path) -> io::Result<(Tail, Vec<u8>)> {
        let mut tail = Tail { path: path.into(), current: None, renamed: None, watch: None };
        let mut text = Vec::new();
        for _ in 0..ROUNDS {
            tail.current = Open::at(path)?;
            let before = Open::at(&predecessor(path))?;
            let inode = tail.current.as_ref().map(|open| open.inode);
            // Renamed between the two: look again.
            if before.as_ref().is_some_and(|open| Some(open.inode) == inode) {
                continue;
            }
            // It may have been renamed just now.
            tail.renamed = before.map(|open| (open, Instant::now() + LATE));
            if let Some((before, _)) = &mut tail.renamed {
                before.rest(&mut text)?;
            }
            if let Some(current) = &mut tail.current {
                current.rest(&mut text)?;
            }
            break;
        }
        Ok((tail, text))
    }

    /// What has come since. Empty if nothing has.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.read_into(&mut text).map(|()| text)
    }

    /// The same, with what was read before something could not be: it is not read again.
    pub(crate) fn read_into(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        if let Some((open, until)) = &mut self.renamed {
            open.rest(text)?;
            if Instant::now() >= *until {
                self.renamed = None;
            }
        }
        for _ in 0..ROUNDS {
            if let Some(current) = &mut self.current {
                current.rest(text)?;
            }
            let Some(next) = Open::at(&self.path)? else { break };
            let inode = next.inode;
            let Some(current) = &mut self.current else {
                self.current.insert(next).rest(text)?;
                break;
            };
            if inode == current.inode {
                break;
            }
            // Whoever was about to write to the old one when it was renamed has written by now, or
            // is read later.
            current.rest(text)?;
            let between = Open::at(&predecessor(&self.path))?
                .filter(|between| between.inode != current.inode && between.inode != inode);
            let is_new = between.is_some();
            let before = self.current.replace(next);
            self.renamed = between.or(before).map(|open| (open, Instant::now() + LATE));
            if let Some((between, _)) = self.renamed.as_mut().filter(|_| is_new) {
                between.rest(text)?;
            }
        }
        Ok(())
    }

    /// Waits until there may be more, or until nobody reads `reader` any more: then false.
    pub fn wait(&self, reader: BorrowedFd<'_>) -> bool {
        let mut fds = vec![PollFd::from_borrowed_fd(reader, PollFlags::empty())];
        fds.extend(self.watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
        // A renamed file is read until its time has come, whether or not anybody says so.
        let soon = self.watch.is_none() || self.renamed.is_some();
        contain::wait(&mut fds, soon.then(|| Instant::now() + LOOK));
        let left = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if let Some(watch) = &self.watch {
            // What has happened is seen in the files themselves.
            let mut buffer = [0u8; 4096];
            while rustix::io::read(watch, &mut buffer).is_ok_and(|length| length > 0) {}
        }
        !left
    }
}

/// Hears of every change in the journal's directory. None where the kernel has no more watches.
fn watch(path: &Path) -> Option<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let dir = path.parent().filter(|dir| fs::metadata(dir).is_ok())?;
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    inotify::add_watch(watch.as_fd(), dir, what).ok()?;
    Some(watch)
}

/// The last so many lines. What has no end yet is one of them.
fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    if lines == 0 {
        return &[];
    }
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.nth(lines - 1).map_or(text, |(at, _)| &text[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::super::{Journal, make_private_dir};
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_pipe_is_no_journal_and_keeps_nobody_waiting() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = Dir::new("pipe");
        let path = dir.0.join("a.log");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(Journal::open(&path, 100).is_err());
        assert!(Tail::open(&path, 9).is_err());
    }

    #[test]
    fn the_last_lines() {
        let text = b"a\nb\n\nc\n";
        for (lines, kept) in [(0, &b""[..]), (1, b"c\n"), (2, b"\nc\n"), (3, b"b\n\nc\n")] {
            assert_eq!(last_lines(text, lines), kept, "{lines}");
        }
        assert_eq!(last_lines(text, 9), text);
        assert_eq!(last_lines(b"a\nunended", 1), b"unended");
        assert_eq!(last_lines(b"", 3), b"");
    }

    /// A directory that goes when the test does.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let name = format!("lariat-tail-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            make_private_dir(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn every_line_is_read_once_while_two_write_and_rename() {
        const EACH: usize = 3000;
        let dir = Dir::new("storm");
        let path = dir.0.join("a.log");
        let mut first = Journal::open(&path, 40_000).unwrap();
        first.append(b"before\n").unwrap();
        let (mut tail, head) = Tail::open(&path, 10).unwrap();
        assert_eq!(head, b"before\n");
        let done = AtomicBool::new(false);
        let text = std::thread::scope(|scope| {
            let writers: Vec<_> = ["one", "two"]
                .map(|who| {
                    let path = &path;
                    scope.spawn(move || {
                        let mut journal = Journal::open(path, 40_000).unwrap();
                        for n in 0..EACH {
                            journal.append(format!("{who} {n}\n").as_bytes()).unwrap();
                        }
                    })
                })
                .into();
            let done = &done;
            let reader = scope.spawn(move || {
                let mut text = Vec::new();
                loop {
                    let finished = done.load(Ordering::Acquire);
                    let more = tail.read().unwrap();
                    if finished && more.is_empty() {
                        return text;
                    }
                    text.extend(more);
                }
            });
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            // In any case, or the reader would wait for a writer that has failed.
            done.store(true, Ordering::Release);
            let text = reader.join().unwrap();
            written.into_iter().for_each(Result::unwrap);
            text
        });
        let text = String::from_utf8(text).unwrap();
        for who in ["one", "two"] {
            let mut lines: Vec<usize> =
                text.lines().filter_map(|l| l.strip_prefix(who)?.trim().parse().ok()).collect();
            lines.sort_unstable();
            assert_eq!(lines, (0..EACH).collect::<Vec<_>>(), "lines of {who}");
        }
        assert!(predecessor(&path).exists(), "never renamed: this proves nothing");
    }

    #[test]
    fn two_rotations_between_two_looks_lose_nothing() {
        let dir = Dir::new("twice");
        let path = dir.0.join("a.log");
        let write = |text: &str| fs::write(&path, text).unwrap();
        let turn = || fs::rename(&path, predecessor(&path)).unwrap();
        write("1\n");
        turn();
        let mut late = File::options().append(true).open(predecessor(&path)).unwrap();
        write("2\n");
        let (mut tail, head) = Tail::open(&path, 10).unwrap();
        assert_eq!(head, b"1\n2\n");
        // Somebody was about to write when the first was renamed.
        late.write_all(b"late\n").unwrap();
        assert_eq!(tail.read().unwrap(), b"late\n");
        turn();
        write("3\n");
        turn();
        write("4\n");
        assert_eq!(tail.read().unwrap(), b"3\n4\n");
        let mut late = File::options().append(true).open(predecessor(&path)).unwrap();
        late.write_all(b"late\n").unwrap();
        assert_eq!(tail.read().unwrap(), b"late\n");
        // Cut by hand: from the beginning again.
        write("");
        assert_eq!(tail.read().unwrap(), b"");
        write("5\n");
        assert_eq!(tail.read().unwrap(), b"5\n");
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let dir = Dir::new("unreadable");
        let path = dir.0.join("a.log");
        // Nobody can follow it, root neither.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(Tail::open(&path, 10).is_err());
    }

    #[test]
    fn a_journal_that_comes_later_is_read_from_its_beginning() {
        let dir = Dir::new("later");
        let path = dir.0.join("a.log");
        let (mut tail, head) = Tail::open(&path, 10).unwrap();
        assert_eq!((head, tail.read().unwrap()), (vec![], vec![]));
        Journal::open(&path, 100).unwrap().append(b"first\n").unwrap();
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(tail.wait(writer.as_fd()));
        assert_eq!(tail.read().unwrap(), b"first\n");
    }

    #[test]
    fn nobody_waits_for_a_reader_that_has_left() {
        let dir = Dir::new("left");
        let (tail, _) = Tail::open(&dir.0.join("a.log"), 10).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(!tail.wait(writer.as_fd()));
    }
}
