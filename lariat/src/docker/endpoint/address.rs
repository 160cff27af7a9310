//! Addresses, as the docker command reads them. Plain values, no I/O.

use super::Endpoint;
use std::path::Path;

/// The host and port of an address that leaves them out. The docker command takes this port with
/// TLS too.
const DEFAULT_HOST: &str = "localhost";
const DEFAULT_PORT: u16 = 2375;

/// An address as the docker command reads it. A failure says what to write instead.
pub(super) fn parse(address: &str, standard: &Path) -> Result<Endpoint, &'static str> {
    let (scheme, rest) = address.split_once("://").unwrap_or(("tcp", address));
    match scheme {
        "unix" if rest.is_empty() => Ok(Endpoint::Unix(standard.into())),
        "unix" => Ok(Endpoint::Unix(rest.into())),
        "tcp" => tcp(rest),
        "ssh" => ssh(rest),
        "http" | "https" => Err("is an address for a browser; write tcp:// instead"),
        "npipe" => Err("is a pipe of Windows; write a unix, tcp or ssh address"),
        "fd" => Err("is a descriptor, which only an engine can use; write its socket's path"),
        _ => Err("has an unknown scheme; write a unix, tcp or ssh address"),
    }
}

fn tcp(text: &str) -> Result<Endpoint, &'static str> {
    let (authority, path) = text.split_at(text.find(['/', '?', '#']).unwrap_or(text.len()));
    if !path.trim_end_matches('/').is_empty() {
        return Err("has a path, which cannot be passed on; write tcp://host:port");
    }
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = host_and_port(authority)?;
    let host = if host.is_empty() { DEFAULT_HOST } else { host };
    Ok(Endpoint::Tcp(format!("{}:{}", bracketed(host), port.unwrap_or(DEFAULT_PORT))))
}

fn ssh(text: &str) -> Result<Endpoint, &'static str> {
    if text.contains(['?', '#']) {
        return Err("has a query or a fragment; write ssh://user@host");
    }
    let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    let (user, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(':') {
        return Err("has a password, which ssh does not take; write ssh://user@host");
    }
    let (host, port) = host_and_port(authority)?;
    let (user, path) = (decoded(user)?, decoded(path)?);
    if host.is_empty() || [host, &user, &path].iter().any(|t| t.contains(char::is_control)) {
        return Err("names no machine; write ssh://user@host");
    }
    Ok(Endpoint::Ssh {
        user: Some(user).filter(|u| !u.is_empty()),
        host: host.into(),
        port,
        path: Some(path).filter(|p| !p.trim_matches('/').is_empty()),
    })
}

/// Splits `host`, `host:port`, `[v6]:port` and a bare v6 address.
fn host_and_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))),
        None if text.matches(':').count() > 1 => (text, Some("")),
        None => text.split_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port.ok_or(BAD_PORT)? {
        "" => None,
        port => Some(port.parse().map_err(|_| BAD_PORT)?),
    };
    if host.contains(char::is_whitespace) {
        return Err("names no machine; write host:port");
    }
    Ok((host, port))
}

const BAD_PORT: &str = "has no number for a port; write host:port";

pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.into() }
}

/// Undoes percent encoding, in which a URL holds a user like `domain\name`.
fn decoded(text: &str) -> Result<String, &'static str> {
    let bad = "has a broken percent code; write ssh://user@host";
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let code = piece.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(code.ok_or(bad)?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, &'static str> {
        parse(text, Path::new("/var/run/docker.sock")).map(|e| e.to_string())
    }

    #[test]
    fn addresses_are_read_as_the_docker_command_does() {
        for (text, meant) in [
            ("unix://", "unix:///var/run/docker.sock"),
            ("unix:///run/x.sock", "unix:///run/x.sock"),
            ("tcp://", "tcp://localhost:2375"),
            ("tcp://:7777", "tcp://localhost:7777"),
            ("tcp://far/", "tcp://far:2375"),
            ("tcp://u:s3cret@far:1", "tcp://far:1"),
            ("far:1", "tcp://far:1"),
            ("far", "tcp://far:2375"),
            ("[::1]:1", "tcp://[::1]:1"),
            ("tcp://[::1]:", "tcp://[::1]:2375"),
            ("tcp://::1", "tcp://[::1]:2375"),
            ("ssh://far", "ssh://far"),
            ("ssh://me@far:22/run/x.sock", "ssh://me@far:22/run/x.sock"),
            ("ssh://dom%5Cme@[fe80::1]/", r"ssh://dom\me@[fe80::1]"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(meant), "{text}");
        }
        for text in [
            "fd://",
            "npipe:////./pipe/docker_engine",
            "http://far",
            "https://far",
            "udp://far",
            "tcp://far:1/prefix",
            "tcp://far:port",
            "tcp://[::1]1",
            "ssh://",
            "ssh://me:s3cret@far",
            "ssh://far?x=y",
            "ssh://%0a@far",
            "ssh://%zz@far",
        ] {
            let why = parsed(text).unwrap_err();
            assert!(why.contains("; write ") && !why.contains("s3cret"), "{text}: {why}");
        }
    }
}
