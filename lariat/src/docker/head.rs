//! HTTP/1 heads and bodies, read only as far as forwarding needs: where one message ends.
//!
//! A request that the engine cuts off elsewhere than we do could hide a create from us. So nothing
//! here is more lenient than the engine's own reader, and what two readers could take differently
//! is refused. No I/O: bytes come in, and decisions about them go out.

mod chunks;

pub use chunks::{Chunks, dechunk};
use httparse::{EMPTY_HEADER, Header, Status};
use std::fmt;

/// A head longer than this is refused, as engines do. Clients with many registries send long ones.
pub const LONGEST_HEAD: usize = 1 << 20;

/// A head with more headers than this is refused.
const MOST_HEADERS: usize = 16 << 10;

/// Lengths above this are negative in the engine.
const LONGEST_BODY: u64 = i64::MAX as u64;

/// Headers that say how long a body is, or how it is sent. One body has one such word.
const FRAMING: [&str; 4] = ["content-length", "transfer-encoding", "expect", "trailer"];

/// Why a message cannot be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// The head, or a line within a chunked body, is longer than we keep.
    TooLarge,
    /// Not HTTP/1 as everybody understands it.
    Malformed(&'static str),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bad::TooLarge => f.write_str("the head is too large"),
            Bad::Malformed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Bad {}

impl From<httparse::Error> for Bad {
    fn from(error: httparse::Error) -> Bad {
        match error {
            httparse::Error::TooManyHeaders => Bad::TooLarge,
            httparse::Error::Version => {
                Bad::Malformed("only HTTP/1.0 and HTTP/1.1 are spoken here")
            }
            httparse::Error::HeaderName => Bad::Malformed("a header's name is malformed"),
            httparse::Error::HeaderValue => Bad::Malformed("a header's value is malformed"),
            _ => Bad::Malformed("the first line or a line end is malformed"),
        }
    }
}

/// What a request's head says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As sent.
    pub method: String,
    /// As sent, with its query.
    pub target: String,
    /// What follows the head.
    pub body: Body,
    /// The client holds the body back until it is told to go on.
    pub expects_continue: bool,
    /// No other request follows this one.
    pub close: bool,
    /// Bytes of the head, its empty line included.
    pub length: usize,
}

/// What a response's head says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Its three digits.
    pub status: u16,
    /// What follows the head.
    pub body: Body,
    /// No other response follows this one.
    pub close: bool,
    /// Bytes of the head, its empty line included.
    pub length: usize,
    /// The content type is one of those in which containers talk.
    stream: bool,
}

impl Response {
    /// Whether the connection is now a tunnel, in the new style or the old.
    ///
    /// In the old style it looks like a long answer, so the caller must also know that the request
    /// was one that [may hijack](super::label::may_hijack).
    pub fn hijacked(&self) -> bool {
        match self.status {
            101 => true,
            200 => self.stream && self.body == Body::UntilClose,
            _ => false,
        }
    }
}

/// What is still to come of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// In pieces that say their own length.
    Chunked(Chunks),
    /// Everything until the connection ends; a tunnel, too.
    UntilClose,
}

impl Body {
    /// How many of these bytes, from the first, still belong to this body.
    ///
    /// Fewer than given means that the body ended. After an error nothing more can be said about
    /// the connection.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Bad> {
        match self {
            Body::Empty => Ok(0),
            Body::Length(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |n| n.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
            Body::Chunked(chunks) => chunks.take(bytes),
            Body::UntilClose => Ok(bytes.len()),
        }
    }

    /// Whether nothing more belongs to it. What lasts until the connection ends is never done.
    pub fn is_done(&self) -> bool {
        match self {
            Body::Empty | Body::Length(0) => true,
            Body::Chunked(chunks) => chunks.is_done(),
            Body::Length(_) | Body::UntilClose => false,
        }
    }
}

/// Reads a request's head; `None` while it is incomplete.
pub fn request(bytes: &[u8]) -> Result<Option<Request>, Bad> {
    // Skipped by the parser, but only sometimes by the engine.
    if matches!(bytes.first(), Some(b'\r' | b'\n')) {
        return Err(Bad::Malformed("the request begins with an empty line"));
    }
    let mut headers = room_for_headers(bytes);
    let mut parsed = httparse::Request::new(&mut headers);
    let Some(length) = head_length(parsed.parse(bytes)?, bytes)? else { return Ok(None) };
    if has_bare_newline(&bytes[..length]) {
        return Err(Bad::Malformed("a line ends without a carriage return"));
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Bad::Malformed("the first line is incomplete"));
    };
    let framing = framing(parsed.headers, minor)?;
    let headers = &*parsed.headers;
    Ok(Some(Request {
        method: method.into(),
        target: target.into(),
        // A request without either word has no body.
        body: framing.unwrap_or(Body::Empty),
        // To the engine the word means nothing in HTTP/1.0.
        expects_continue: minor == 1 && has_token(headers, "expect", "100-continue"),
        close: closes(headers, minor),
        length,
    }))
}

/// Reads the head of a response to a request of this method; `None` while it is incomplete.
pub fn response(bytes: &[u8], method: &str) -> Result<Option<Response>, Bad> {
    let mut headers = room_for_headers(bytes);
    let mut parsed = httparse::Response::new(&mut headers);
    let Some(length) = head_length(parsed.parse(bytes)?, bytes)? else { return Ok(None) };
    let (Some(status), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(Bad::Malformed("the first line is incomplete"));
    };
    let headers = &*parsed.headers;
    let body = match status {
        101 => Body::UntilClose,
        200..300 if method == "CONNECT" => Body::UntilClose,
        100..200 | 204 | 304 => Body::Empty,
        _ if method == "HEAD" => Body::Empty,
        _ => framing(headers, minor)?.unwrap_or(Body::UntilClose),
    };
    let close = closes(headers, minor) || body == Body::UntilClose;
    let stream = values(headers, "content-type").any(|value| {
        let end = value.iter().position(|b| *b == b';').unwrap_or(value.len());
        let kind = value[..end].trim_ascii();
        kind.eq_ignore_ascii_case(b"application/vnd.docker.raw-stream")
            || kind.eq_ignore_ascii_case(b"application/vnd.docker.multiplexed-stream")
    });
    Ok(Some(Response { status, body, close, length, stream }))
}

/// The same head for a body of `length` bytes that is sent at once.
///
/// What it said about the body's framing is gone; all other lines are byte for byte as they were.
pub fn with_length(head: &[u8], request: &Request, length: usize) -> Vec<u8> {
    let head = &head[..request.length.min(head.len())];
    let mut new = Vec::with_capacity(head.len() + 32);
    for (number, line) in head.split_inclusive(|b| *b == b'\n').enumerate() {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        let frames = FRAMING.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
        if line == b"\r\n" {
            new.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
        } else if number == 0 || !frames {
            new.extend_from_slice(line);
        }
    }
    new
}

/// As many places as the head can have headers: one for each of its lines.
fn room_for_headers(bytes: &[u8]) -> Vec<Header<'_>> {
    let lines = bytes.split(|byte| *byte == b'\n').skip(1);
    let lines = lines.take_while(|line| !matches!(*line, b"" | b"\r"));
    vec![EMPTY_HEADER; lines.take(MOST_HEADERS).count()]
}

/// How long a head is, unless it is incomplete or too long.
fn head_length(status: Status<usize>, bytes: &[u8]) -> Result<Option<usize>, Bad> {
    match status {
        Status::Complete(length) if length <= LONGEST_HEAD => Ok(Some(length)),
        Status::Partial if bytes.len() < LONGEST_HEAD => Ok(None),
        _ => Err(Bad::TooLarge),
    }
}

/// Whether a line ends in a way that not every reader takes for an end.
fn has_bare_newline(head: &[u8]) -> bool {
    head.split_inclusive(|b| *b == b'\n').any(|line| !line.ends_with(b"\r\n"))
}

/// The body that the headers announce, if they do.
fn framing(headers: &[Header<'_>], minor: u8) -> Result<Option<Body>, Bad> {
    let mut lengths = values(headers, "content-length");
    let mut codings = values(headers, "transfer-encoding");
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            Err(Bad::Malformed("both a content length and a transfer encoding are given"))
        }
        (Some(first), None) => {
            if lengths.any(|other| other != first) {
                return Err(Bad::Malformed("several content lengths are given"));
            }
            length(first).map(|n| Some(Body::Length(n)))
        }
        (None, Some(coding)) => {
            if minor == 0 {
                return Err(Bad::Malformed("HTTP/1.0 has no transfer encodings"));
            }
            if codings.next().is_some() || !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Bad::Malformed("a transfer encoding other than chunked is given"));
            }
            Ok(Some(Body::Chunked(Chunks::default())))
        }
    }
}

/// A length of digits alone: no sign, no list, no blank.
fn length(digits: &[u8]) -> Result<u64, Bad> {
    let bad = Bad::Malformed("the content length is not a number");
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(bad);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.filter(|n| *n <= LONGEST_BODY).ok_or(bad)
}

/// Whether the connection ends after this message.
fn closes(headers: &[Header<'_>], minor: u8) -> bool {
    let keeps = minor == 1 || has_token(headers, "connection", "keep-alive");
    !keeps || has_token(headers, "connection", "close")
}

/// The values of every header of this name.
fn values<'h>(headers: &'h [Header<'_>], name: &'h str) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
}

/// Whether a list in a header of this name holds this word.
fn has_token(headers: &[Header<'_>], name: &str, token: &str) -> bool {
    values(headers, name)
        .flat_map(|value| value.split(|b| *b == b','))
        .any(|word| word.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests;
