//! What lets somebody in by TCP, where the kernel does not say who is there: a token in a file,
//! links that work once, and the cookies that browsers get for them.

use super::machine;
use super::web::Access;
use crate::journal::plain;
use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a link works.
pub(super) const LINK_LIFE: Duration = Duration::from_secs(60);

/// Links that wait to be followed, and browsers that are let in. The oldest makes room.
const MOST: usize = 64;

/// Random bytes in a secret.
const STRENGTH: usize = 32;

/// A token of less than this can be guessed.
const SHORTEST: usize = 16;

/// No request could carry a longer one.
const LONGEST: u64 = 4096;

/// Who is let in.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` to let everybody in.
    token: Option<Secret>,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    links: VecDeque<(Secret, Instant)>,
    cookies: VecDeque<Secret>,
}

/// Text that nobody is to see.
#[derive(Clone)]
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    fn random() -> io::Result<Secret> {
        machine::random::<STRENGTH>().map(Secret)
    }

    /// Takes as long for a good guess as for a bad one.
    fn is(&self, guess: &str) -> bool {
        let (own, guess) = (self.0.as_bytes(), guess.as_bytes());
        let differ = |at: usize, byte: &u8| byte ^ guess.get(at).copied().unwrap_or(!byte);
        let sum =
            own.iter().enumerate().fold(0, |sum, (at, byte)| black_box(sum | differ(at, byte)));
        own.len() == guess.len() && sum == 0
    }
}

impl Keys {
    /// The token is made if there is none.
    pub(super) fn open(access: &Access) -> io::Result<Keys> {
        let token = match access {
            Access::Token(path) => Some(token(path)?),
            Access::Anyone => None,
        };
        Ok(Keys { token, rings: Mutex::default() })
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        // Nothing in here can be left half done by a panic.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody needs to show anything.
    pub(super) fn admits_anyone(&self) -> bool {
        self.token.is_none()
    }

    /// True if this is the token.
    pub(super) fn is_token(&self, guess: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.is(guess))
    }

    /// True if a browser was given this.
    pub(super) fn is_cookie(&self, guess: &str) -> bool {
        // All of them are compared, whichever it is.
        self.rings().cookies.iter().fold(false, |found, cookie| found | cookie.is(guess))
    }

    /// What a link needs to work, once.
    pub(super) fn link(&self, now: Instant) -> io::Result<String> {
        let secret = Secret::random()?;
        let links = &mut self.rings().links;
        links.retain(|(_, until)| *until > now);
        keep(links, (secret.clone(), now + LINK_LIFE));
        Ok(secret.0)
    }

    /// The cookie for a link that works; it does not again.
    pub(super) fn follow(&self, guess: &str, now: Instant) -> Option<String> {
        let mut rings = self.rings();
        rings.links.retain(|(_, until)| *until > now);
        let found = rings.links.iter().position(|(link, _)| link.is(guess))?;
        let cookie = Secret::random().ok()?;
        rings.links.remove(found);
        keep(&mut rings.cookies, cookie.clone());
        Some(cookie.0)
    }
}

fn keep<T>(ring: &mut VecDeque<T>, one: T) {
    ring.push_back(one);
    if ring.len() > MOST {
        ring.pop_front();
    }
}

/// A plain file's text, as far as a token can reach.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    plain(OpenOptions::new().read(true), path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// What the file says, or what is in it from now on.
fn token(path: &Path) -> io::Result<Secret> {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret = Secret::random()?;
            // Under another name until it is whole: somebody may be waiting for it.
            let draft = path.with_extension(format!("{}.new", std::process::id()));
            let mut options = OpenOptions::new();
            let made = machine::private(options.write(true).create_new(true)).open(&draft);
            made?.write_all(format!("{}\n", secret.0).as_bytes())?;
            let linked = fs::hard_link(&draft, path);
            fs::remove_file(&draft)?;
            match linked {
                Ok(()) => return Ok(secret),
                // Another one was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path)?,
                Err(error) => return Err(error),
            }
        }
        Err(error) => return Err(error),
    };
    let is_long = text.len() as u64 > LONGEST;
    let text = text.trim();
    if is_long || text.len() < SHORTEST || !text.chars().all(|c| c.is_ascii_graphic()) {
        let what =
            format!("a token is one word of {SHORTEST} to {LONGEST} visible ASCII characters");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Secret(text.into()))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn keys() -> Keys {
        Keys { token: Some(Secret("0123456789abcdef".into())), rings: Mutex::default() }
    }

    #[test]
    fn a_link_works_once_and_not_for_long() {
        let (keys, now) = (keys(), Instant::now());
        let link = keys.link(now).unwrap();
        assert_eq!(keys.follow("0", now), None);
        let cookie = keys.follow(&link, now).unwrap();
        assert_ne!(cookie, link);
        assert!(keys.is_cookie(&cookie) && !keys.is_cookie(&link) && !keys.is_token(&cookie));
        assert_eq!(keys.follow(&link, now), None);
        let late = keys.link(now).unwrap();
        assert_eq!(keys.follow(&late, now + LINK_LIFE), None);
    }

    #[test]
    fn nobody_keeps_more_than_there_may_be() {
        let (keys, now) = (keys(), Instant::now());
        let first = keys.link(now).unwrap();
        for _ in 0..MOST {
            let link = keys.link(now).unwrap();
            keys.follow(&link, now).unwrap();
            keys.link(now).unwrap();
        }
        assert_eq!(keys.follow(&first, now), None);
        assert!(keys.rings().cookies.len() <= MOST && keys.rings().links.len() <= MOST);
    }

    #[test]
    fn only_the_token_is_the_token() {
        let keys = keys();
        assert!(keys.is_token("0123456789abcdef"));
        for guess in ["", "0123456789abcde", "0123456789abcdeff", "0123456789abcdeg"] {
            assert!(!keys.is_token(guess), "{guess}");
        }
        assert!(!keys.is_cookie("") && !format!("{keys:?}").contains("0123"));
    }

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        let dir = std::env::temp_dir().join(format!("lariat-keys-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("token");
        let made = token(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(made.0.len() == 2 * STRENGTH && token(&path).unwrap().is(&made.0));
        let long = "x".repeat(LONGEST as usize + 1);
        for bad in ["", &long, "short\n", "two words that are long\n", "\u{1b}[31m-0123456789\n"] {
            fs::write(&path, bad).unwrap();
            assert_eq!(token(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bad:?}");
        }
        fs::remove_file(&path).unwrap();
        // Nobody waits for what a pipe may say.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(token(&path).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
