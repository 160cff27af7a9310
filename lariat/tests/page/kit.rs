//! A daemon with its page, wrapped servers beside it, and just enough HTTP to ask by hand.

use crate::place::{PATIENCE, Place};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use trials::until;

/// A daemon in the foreground, with what it said when it listened.
pub(crate) struct House {
    pub(crate) place: Place,
    pub(crate) address: String,
    child: Child,
}

impl House {
    /// With its page at any port.
    pub(crate) fn new() -> House {
        House::with(Place::new(), &["--http", "127.0.0.1:0"])
    }

    /// With these options, of which one opens the page.
    pub(crate) fn with(place: Place, options: &[&str]) -> House {
        let mut command = place.lariat("daemon");
        command.args(["--grace", "200ms", "--term-grace", "200ms", "--containers", "leave"]);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.starts_with("listening on /"), "{first}");
        let address = if options.contains(&"--http") {
            let page = lines.next().unwrap().unwrap();
            page.strip_prefix("page at http://").unwrap().trim_end_matches('/').to_owned()
        } else {
            String::new()
        };
        House { place, address, child }
    }

    pub(crate) fn token(&self) -> String {
        fs::read_to_string(self.place.path("state/token")).unwrap().trim().to_owned()
    }

    /// The head of a request that has the token.
    pub(crate) fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token())
    }

    /// The link that `lariat open` prints.
    pub(crate) fn link(&self) -> String {
        let output = self.place.lariat("open").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub(crate) fn wire(&self) -> Wire {
        Wire::new(&self.address)
    }

    /// One request on a connection of its own, from the right host.
    pub(crate) fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let mut wire = self.wire();
        wire.send(method, path, &format!("Host: {}\r\n{more}", self.address), body);
        wire.answer().unwrap()
    }

    pub(crate) fn get(&self, path: &str, more: &str) -> Answer {
        self.ask("GET", path, more, "")
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // It may have ended as the test wished.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
        until(PATIENCE, || {
            let pages = fs::read_dir(self.place.path("state/sessions"));
            pages.is_ok_and(|mut pages| pages.next().is_none())
        });
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

/// One connection.
pub(crate) struct Wire {
    pub(crate) reader: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn new(address: &str) -> Wire {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        Wire { reader: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, more: &str, body: &str) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n{more}\r\n");
        self.raw(format!("{head}{body}").as_bytes()).unwrap();
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// The next answer that has an end.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let (status, headers) = self.head()?;
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut text = vec![0; length];
        self.reader.read_exact(&mut text)?;
        Ok(Answer { status, headers, text: String::from_utf8(text).unwrap() })
    }

    pub(crate) fn head(&mut self) -> io::Result<(u16, BTreeMap<String, String>)> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = status.parse().unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        Ok((status, headers))
    }

    /// The next line without its end.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// A wrapped server that has said its first line. It ends when this is dropped.
pub(crate) struct Wrapped {
    pub(crate) child: Child,
    /// Kept: a host that does not read any more has ended the session.
    _stdout: BufReader<ChildStdout>,
}

impl Wrapped {
    /// Beside what it does `before`, it does nothing.
    pub(crate) fn start(place: &Place, name: &str, before: &str) -> Wrapped {
        let mut run = place.lariat("run");
        run.args(["--name", name, "--containers", "leave", "--grace", "100ms", "--"]);
        // Named in the command too: the same one too often is a storm.
        run.args(["sh", "-c", &format!("{before} echo up; exec cat"), name]);
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let wrapped = Wrapped { child, _stdout: stdout };
        assert_eq!(line, "up\n");
        wrapped
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !until(PATIENCE, || self.child.try_wait().unwrap().is_some()) {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
    }
}
