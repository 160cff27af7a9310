//! Names: of a session, and of a server. Plain values, no I/O.

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;

/// A session: one server under one wrapper; or several under one manager, which has a name of its own
/// beside those of its servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// The session whose tree carries this mark. Both are the same random number.
    pub fn of(mark: contain::Mark) -> SessionId {
        SessionId(format!("{:015x}", mark.number() & ((1 << 60) - 1)))
    }

    /// The session that somebody names; `None` if none can have that name.
    pub fn parse(text: &str) -> Option<SessionId> {
        let digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 15 && text.bytes().all(digit)).then(|| SessionId(text.into()))
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A server's name, fit for a file name and a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerName(String);

/// Longer names are cut: they end up in file names.
const LONGEST: usize = 80;

/// Programs that only start another one, named by what they start.
const LAUNCHERS: [&str; 10] =
    ["npx", "uvx", "bunx", "pnpx", "node", "python", "python3", "uv", "npm", "deno"];

/// Words and switches of launchers that may come before the package. Behind any other option the
/// next word could be its value, perhaps a secret, so there the search ends.
const BEFORE_PACKAGE: [&str; 18] = [
    "exec",
    "run",
    "x",
    "tool",
    "dlx",
    "--",
    "-y",
    "--yes",
    "-q",
    "--quiet",
    "--offline",
    "--silent",
    "--no-install",
    "--isolated",
    "--prefer-offline",
    "-m",
    "-u",
    "--no-cache",
];

impl ServerName {
    /// A name a user gave.
    pub fn given(name: &str) -> Option<ServerName> {
        clean(name).map(ServerName)
    }

    /// A name from the command: the package for `npx -y @scope/package`, else the program.
    pub fn derived(program: &OsStr, args: &[OsString]) -> ServerName {
        let base = last_part(&program.to_string_lossy()).to_string();
        let mut named = base.clone();
        if LAUNCHERS.contains(&base.as_str()) {
            let mut words = args.iter().map(|a| a.to_string_lossy());
            let package = words.find(|a| !BEFORE_PACKAGE.contains(&a.as_ref()));
            if let Some(package) = package.filter(|p| is_package(p)) {
                // A version tag is not part of the name.
                let part = last_part(&package);
                named = part.split('@').next().unwrap_or(part).to_string();
            }
        }
        ServerName(clean(&named).or_else(|| clean(&base)).unwrap_or_else(|| "server".into()))
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A package or a path: no option, no address with credentials, no assignment.
fn is_package(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "@/._-+".contains(c);
    !text.starts_with('-') && text.chars().all(plain)
}

fn last_part(text: &str) -> &str {
    text.trim_end_matches('/').rsplit('/').next().unwrap_or(text)
}

fn clean(name: &str) -> Option<String> {
    let fit = |c: char| {
        if c.is_alphanumeric() || "-_.+".contains(c) { c } else { '-' }
    };
    let text: String = name.trim().chars().take(LONGEST).map(fit).collect();
    let text = text.trim_start_matches('.').to_string();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(command: &str) -> String {
        let mut words = command.split(' ').map(OsString::from);
        let program = words.next().unwrap();
        ServerName::derived(&program, &words.collect::<Vec<_>>()).0
    }

    #[test]
    fn a_launcher_is_named_by_what_it_launches() {
        let npx = "npx -y @modelcontextprotocol/server-everything@2.0.1 stdio";
        assert_eq!(derived(npx), "server-everything");
        assert_eq!(derived("uvx mcp-server-time --local-timezone UTC"), "mcp-server-time");
        assert_eq!(derived("/usr/bin/node /srv/my-server/index.js"), "index.js");
        assert_eq!(derived("python3 -m mcp_server_time"), "mcp_server_time");
        assert_eq!(derived("npm exec -- foo"), "foo");
        assert_eq!(derived("/opt/bin/github-mcp"), "github-mcp");
        assert_eq!(derived("npx"), "npx");
    }

    #[test]
    fn what_may_be_a_secret_is_never_a_name() {
        assert_eq!(derived("uvx --token s3cret pkg"), "uvx");
        assert_eq!(derived("uvx --index-url https://user:s3cret@pypi.example pkg"), "uvx");
        assert_eq!(derived("uvx git+https://s3cret@example/repo"), "uvx");
        assert_eq!(derived("npx TOKEN=s3cret"), "npx");
    }

    #[test]
    fn a_name_cannot_leave_its_directory() {
        assert_eq!(ServerName::given("../../etc/passwd").unwrap().0, "-..-etc-passwd");
        assert_eq!(ServerName::given(".."), None);
        assert_eq!(ServerName::given(" "), None);
        assert!(ServerName::given(&"x".repeat(500)).unwrap().0.len() <= LONGEST);
    }
}
