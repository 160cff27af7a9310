//! Just enough HTTP to ask a daemon, by hand: an oracle that shares code with the accused is none.

use crate::place::PATIENCE;
use crate::schema;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// One connection. It closes when this is dropped.
pub(crate) struct Wire {
    reader: BufReader<UnixStream>,
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
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The body, if the status is this one.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// The sentence, if it was refused with this status.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> String {
        let problem = self.expect(status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], status);
        let detail = problem["detail"].as_str().unwrap().to_owned();
        assert!(detail.ends_with(['.', '…']) && detail.len() < 2000, "no sentence: {detail}");
        detail
    }
}

impl Wire {
    pub(crate) fn new(socket: &Path) -> Wire {
        Wire::over(UnixStream::connect(socket).unwrap())
    }

    pub(crate) fn over(stream: UnixStream) -> Wire {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire { reader: BufReader::new(stream) }
    }

    /// Asks, and checks that the answer is as the document says.
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, body, "")
    }

    /// The same with more headers, each with its line's end.
    #[track_caller]
    pub(crate) fn ask_with(&mut self, method: &str, path: &str, body: &str, more: &str) -> Answer {
        self.send(method, path, body, more);
        let answer = self.answer().unwrap();
        schema::check(method, path, &answer);
        answer
    }

    /// Asks, and does not wait.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str, more: &str) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n");
        self.raw(format!("{head}{more}\r\n{body}").as_bytes()).unwrap();
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// The next answer, head and body.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let (status, headers) = self.head()?;
        let mut text = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
            while let Some(chunk) = self.chunk()? {
                text.extend(chunk);
            }
        } else if let Some(length) = headers.get("content-length") {
            text.resize(length.parse().unwrap(), 0);
            self.reader.read_exact(&mut text)?;
        }
        Ok(Answer { status, headers, text: String::from_utf8(text).unwrap() })
    }

    /// The head of the next answer.
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

    /// The next chunk of a body; nothing at its end.
    pub(crate) fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = self.line()?;
        let length = usize::from_str_radix(&length, 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; length];
        self.reader.read_exact(&mut chunk)?;
        self.line()?;
        Ok((length > 0).then_some(chunk))
    }

    /// All that is still said, until the other end closes.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// The next line without its end; empty at the end of everything.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
