//! Real servers: where their packages are, and how each is started.

use crate::kit::{Place, trial};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A server from a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Package {
    Everything,
    Filesystem,
    Memory,
    Thinking,
    Time,
    Git,
    Fetch,
    Playwright,
}

impl Package {
    /// Below the directory with the packages.
    fn file(self) -> &'static str {
        match self {
            Package::Everything => {
                "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
            }
            Package::Filesystem => {
                "node/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
            }
            Package::Memory => {
                "node/node_modules/@modelcontextprotocol/server-memory/dist/index.js"
            }
            Package::Thinking => {
                "node/node_modules/@modelcontextprotocol/server-sequential-thinking/dist/index.js"
            }
            Package::Time => "py/bin/mcp-server-time",
            Package::Git => "py/bin/mcp-server-git",
            Package::Fetch => "py/bin/mcp-server-fetch",
            Package::Playwright => "node/node_modules/@playwright/mcp/cli.js",
        }
    }

    pub(crate) fn is_python(self) -> bool {
        self.file().starts_with("py/")
    }

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The directory with the packages, or why there is none.
#[derive(Clone)]
pub(crate) struct Packages(Result<PathBuf, Arc<str>>);

impl Packages {
    #[expect(clippy::disallowed_methods, reason = "how ./test tells where the packages are")]
    pub(crate) fn find() -> Packages {
        let named = std::env::var_os("LARIAT_CLIENTS").map(PathBuf::from);
        Packages(named.ok_or_else(|| "LARIAT_CLIENTS is not set (see ./test)".into()))
    }

    /// Why this one cannot be tried here.
    fn missing(&self, package: Package) -> Option<String> {
        match &self.0 {
            Err(reason) => Some(reason.to_string()),
            Ok(home) if !home.join(package.file()).exists() => {
                Some(format!("no {}", package.file()))
            }
            Ok(_) if package == Package::Playwright && !Path::new(CHROMIUM).exists() => {
                Some(format!("no {CHROMIUM}"))
            }
            Ok(_) => None,
        }
    }

    /// A test that needs a package, or its name among those that are skipped.
    pub(crate) fn trial(
        &self,
        name: impl Into<String>,
        package: Package,
        test: impl FnOnce(&Packages) + Send + std::panic::UnwindSafe + 'static,
    ) -> Trial {
        let name = name.into();
        let missing = self.missing(package);
        if let Some(reason) = &missing {
            eprintln!("skipped idle::{name}: {reason}");
        }
        let packages = self.clone();
        trial(name, move || test(&packages)).with_ignored_flag(missing.is_some())
    }

    /// The server without a launcher, as a host that knows what it wants starts it.
    pub(crate) fn command(&self, package: Package, place: &Place) -> Vec<String> {
        let home = self.0.as_ref().expect("not skipped");
        let file = home.join(package.file()).display().to_string();
        let mut words = if package.is_python() { vec![file] } else { vec!["node".into(), file] };
        match package {
            Package::Filesystem => words.push(place.path("files").display().to_string()),
            Package::Fetch => words.push("--ignore-robots-txt".into()),
            Package::Playwright => words.extend(
                ["--headless", "--no-sandbox", "--isolated", "--executable-path", CHROMIUM]
                    .map(String::from),
            ),
            Package::Everything
            | Package::Memory
            | Package::Thinking
            | Package::Time
            | Package::Git => {}
        }
        words
    }
}

/// Debian's.
const CHROMIUM: &str = "/usr/bin/chromium";
