//! Just enough of an HTTP client to speak MCP with any gateway, the same with each.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One session over one connection that stays open.
pub(crate) struct Session {
    stream: BufReader<TcpStream>,
    path: String,
    host: String,
    id: Option<String>,
    number: u64,
    line: String,
    body: Vec<u8>,
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
const SETTLED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

impl Session {
    /// Connects and shakes hands.
    pub(crate) fn open(address: &str, path: &str) -> io::Result<Session> {
        let stream = connect(address)?;
        let (path, host) = (path.to_owned(), address.to_owned());
        let (line, body) = (String::new(), Vec::new());
        let mut session = Session { stream, path, host, id: None, number: 0, line, body };
        session.post(HELLO)?;
        if !contains(&session.body, "\"serverInfo\"") {
            let said = String::from_utf8_lossy(&session.body).into_owned();
            return Err(io::Error::other(format!("no greeting: {said}")));
        }
        session.post(SETTLED)?;
        Ok(session)
    }

    /// Goes on over a fresh connection: some gateways close one that nobody used for a while.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        self.stream = connect(&self.host)?;
        Ok(())
    }

    /// A call of 200 bytes or so, and its answer.
    pub(crate) fn call(&mut self) -> io::Result<()> {
        self.number += 1;
        let number = self.number;
        let text = "x".repeat(110);
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"whoami","arguments":{{"who":"{text}"}}}}}}"#
        );
        self.post(&call)?;
        if !contains(&self.body, &format!("\"id\":{number}")) || !contains(&self.body, &text) {
            let said = String::from_utf8_lossy(&self.body).into_owned();
            return Err(io::Error::other(format!("not the answer to {number}: {said}")));
        }
        Ok(())
    }

    /// Sends a message and reads all that comes back for it.
    fn post(&mut self, message: &str) -> io::Result<()> {
        let id = self
            .id
            .as_ref()
            .map(|id| format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-06-18\r\n"));
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{}Content-Length: {}\r\n\r\n{message}",
            self.path,
            self.host,
            id.unwrap_or_default(),
            message.len(),
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn next_line(&mut self) -> io::Result<()> {
        self.line.clear();
        if self.stream.read_line(&mut self.line)? == 0 {
            return Err(io::Error::other("the gateway hung up"));
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        self.next_line()?;
        let status = self.line.split(' ').nth(1).unwrap_or("?").to_owned();
        let (mut length, mut is_chunked) = (0, false);
        loop {
            self.next_line()?;
            let Some((name, value)) = self.line.trim_end().split_once(':') else { break };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().map_err(io::Error::other)?,
                "transfer-encoding" => is_chunked = value.eq_ignore_ascii_case("chunked"),
                "mcp-session-id" => self.id = Some(value.to_owned()),
                _ => {}
            }
        }
        self.body.clear();
        if is_chunked {
            self.chunks()?;
        } else {
            self.body.resize(length, 0);
            self.stream.read_exact(&mut self.body)?;
        }
        if !status.starts_with('2') {
            let said = String::from_utf8_lossy(&self.body).into_owned();
            return Err(io::Error::other(format!("{status}: {said}")));
        }
        Ok(())
    }

    fn chunks(&mut self) -> io::Result<()> {
        loop {
            self.next_line()?;
            let length = self.line.trim_end().split(';').next().unwrap_or("0");
            let length = usize::from_str_radix(length, 16).map_err(io::Error::other)?;
            let at = self.body.len();
            self.body.resize(at + length, 0);
            self.stream.read_exact(&mut self.body[at..])?;
            self.next_line()?;
            if length == 0 {
                return Ok(());
            }
        }
    }
}

fn connect(address: &str) -> io::Result<BufReader<TcpStream>> {
    let target: SocketAddr = address.parse().map_err(io::Error::other)?;
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(BufReader::with_capacity(1 << 16, stream))
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}
