//! Which requests there are: one table, which `openapi.json` must agree with.

use super::api::{Problem, echo};
use hyper::Method;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Open,
    List,
    Look,
    Close,
    Refresh,
    Call,
    Attach,
    Snapshot,
    Events,
    Document,
    Link,
}

/// One kind of request.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// Segments in braces match any one segment.
    pub(super) path: &'static str,
    pub(super) verb: Verb,
    /// The statuses that it can be answered with, beside those of [`ANYWHERE`].
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the document by a test"))]
    pub(super) answers: &'static [u16],
}

/// What any request may be answered with: another user's, and one too many.
#[cfg(test)]
pub(super) const ANYWHERE: [u16; 2] = [403, 503];

const fn route(method: Method, path: &'static str, verb: Verb, answers: &'static [u16]) -> Route {
    Route { method, path, verb, answers }
}

/// All of them.
pub(super) static ROUTES: [Route; 11] = [
    route(Method::POST, "/v1/sessions", Verb::Open, &[201, 400, 408, 409, 413, 422, 429, 500]),
    route(Method::GET, "/v1/sessions", Verb::List, &[200]),
    route(Method::GET, "/v1/sessions/{id}", Verb::Look, &[200, 404]),
    route(Method::DELETE, "/v1/sessions/{id}", Verb::Close, &[200, 404, 500]),
    route(
        Method::POST,
        "/v1/sessions/{id}/refresh",
        Verb::Refresh,
        &[200, 400, 404, 408, 409, 413, 422, 429, 500],
    ),
    route(
        Method::POST,
        "/v1/sessions/{id}/servers/{name}/call",
        Verb::Call,
        &[200, 400, 404, 408, 409, 413, 422, 502, 504],
    ),
    route(Method::GET, "/v1/sessions/{id}/servers/{name}/mcp", Verb::Attach, &[101, 404, 409, 426]),
    route(Method::GET, "/v1/snapshot", Verb::Snapshot, &[200]),
    route(Method::GET, "/v1/events", Verb::Events, &[200]),
    route(Method::GET, "/v1/openapi.json", Verb::Document, &[200]),
    route(Method::POST, "/v1/page/links", Verb::Link, &[201, 500]),
];

/// A request that the table has, and what its path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) verb: Verb,
    /// The session, if the path names one.
    pub(super) id: String,
    /// The server, if the path names one.
    pub(super) name: String,
}

/// Why there is no such request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Nothing has this path.
    Path,
    /// Something has, with these methods.
    Method(String),
}

/// Finds a request in the table.
pub(super) fn find(method: &Method, path: &str) -> Result<Found, Unknown> {
    let matching: Vec<(&Route, Vec<String>)> =
        ROUTES.iter().filter_map(|route| Some((route, captures(route.path, path)?))).collect();
    if matching.is_empty() {
        return Err(Unknown::Path);
    }
    let allowed: Vec<&str> = matching.iter().map(|(route, _)| route.method.as_str()).collect();
    let allowed = allowed.join(", ");
    let exact = matching.into_iter().find(|(route, _)| route.method == *method);
    let (route, names) = exact.ok_or(Unknown::Method(allowed))?;
    let mut names = names.into_iter();
    let (id, name) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    Ok(Found { verb: route.verb, id, name })
}

impl Unknown {
    /// In words.
    pub(super) fn problem(&self, method: &Method, path: &str) -> Problem {
        let path = echo(path);
        match self {
            Unknown::Path => {
                let detail = format!("There is no `{path}`. GET /v1/openapi.json lists what is.");
                Problem::new(404, "no-path", "No such path", detail)
            }
            Unknown::Method(allowed) => {
                let method = echo(method.as_str());
                let detail = format!("`{path}` has no {method}. It has {allowed}.");
                Problem::new(405, "no-method", "No such method", detail)
            }
        }
    }
}

/// What the segments in braces stand for, if the path fits the pattern.
fn captures(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(found),
            (Some(wanted), Some(given)) if wanted.starts_with('{') => {
                found.push(decoded(given).filter(|text| !text.is_empty())?);
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
}

/// A segment without its percent signs; `None` if it makes no text.
pub(super) fn decoded(segment: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), segment.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

/// A segment in which everything but letters and digits of ASCII and `-_.` is written as bytes.
pub(super) fn encoded(segment: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let write =
        |byte: u8| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
    segment.bytes().map(write).collect()
}

#[cfg(test)]
mod tests;
