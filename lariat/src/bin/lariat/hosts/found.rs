//! Which config files there are, of which hosts.

use super::table::{Base, HOSTS, Host, Place, Scope};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Where to look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    pub(crate) home: PathBuf,
    /// `XDG_CONFIG_HOME`, if it is set.
    pub(crate) config: Option<PathBuf>,
    /// Other variables by which hosts are told where their files are.
    pub(crate) named: Vec<(&'static str, PathBuf)>,
    /// The project whose files are looked at too.
    pub(crate) project: Option<PathBuf>,
    /// What the administrator's files are in, if it is not `/`.
    pub(crate) root: Option<PathBuf>,
}

impl Surroundings {
    /// A path of the administrator's.
    pub(crate) fn rooted(&self, path: &str) -> PathBuf {
        self.root.as_deref().unwrap_or(Path::new("/")).join(path)
    }
}

/// A config file that exists.
pub(crate) struct Found {
    pub(crate) host: &'static Host,
    pub(crate) place: &'static Place,
    /// As the host names it.
    pub(crate) path: PathBuf,
}

impl Found {
    /// Whom the file concerns.
    pub(crate) fn scope(&self) -> Scope {
        self.place.scope
    }
}

/// Whatever is where a config would be, also if it cannot be read: whoever has one wants to know that
/// it was passed over. One that two hosts read is named once, with the first of them.
pub(crate) fn all(around: &Surroundings, hosts: &[&'static Host]) -> Vec<Found> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for host in HOSTS.iter().filter(|host| hosts.iter().any(|wanted| wanted.id == host.id)) {
        for place in host.files {
            for path in paths(around, place) {
                let real = path.canonicalize();
                // What users may not look at of the administrator's would not be changed anyway.
                let here = match place.scope {
                    Scope::System => real.is_ok(),
                    Scope::User | Scope::Project => is_here(&path),
                };
                if here && seen.insert(real.unwrap_or_else(|_| path.clone())) {
                    found.push(Found { host, place, path });
                }
            }
        }
    }
    found
}

/// False only if there is nothing.
fn is_here(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match path.symlink_metadata() {
        Ok(_) => true,
        Err(error) => ![NotFound, NotADirectory].contains(&error.kind()),
    }
}

fn paths(around: &Surroundings, place: &Place) -> Vec<PathBuf> {
    let named = |wanted: &str| {
        let mut named = around.named.iter();
        named.find(|(name, _)| *name == wanted).map(|(_, path)| path.clone())
    };
    let base = match place.base {
        Base::Home => Some(around.home.clone()),
        Base::Config => Some(around.config.clone().unwrap_or_else(|| around.home.join(".config"))),
        Base::Named(variable, usual) => {
            Some(named(variable).unwrap_or_else(|| around.home.join(usual)))
        }
        Base::File(variable) => return named(variable).into_iter().collect(),
        Base::Project => around.project.clone(),
        Base::Root => Some(around.rooted("")),
    };
    let Some(base) = base else { return Vec::new() };
    match place.path.split_once('*') {
        None => vec![base.join(place.path)],
        Some((before, after)) => matching(&base.join(before), after),
    }
}

/// Files in a directory, or in directories of it, whose path ends so.
fn matching(dir: &Path, after: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        // Named itself, if it is there: nobody knows what is in it.
        return if is_here(dir) { vec![dir.to_owned()] } else { Vec::new() };
    };
    let entries = entries.flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter_map(|path| match after.strip_prefix('/') {
            Some(below) => Some(path.join(below)),
            None => path.to_str().is_some_and(|path| path.ends_with(after)).then_some(path),
        })
        .collect();
    paths.sort();
    paths
}
