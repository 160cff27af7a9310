//! A command that is itself `docker`: it finds our socket through its environment, unless its own
//! flags name another engine. Then that engine is put behind the socket and the flags are left out.

use super::endpoint::Surroundings;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Global flags of docker that take a value, by their long and short names.
const DOCKER_VALUES: &[(&str, char)] = &[
    ("config", ' '),
    ("context", 'c'),
    ("host", 'H'),
    ("log-level", 'l'),
    ("tlscacert", ' '),
    ("tlscert", ' '),
    ("tlskey", ' '),
];

/// What docker's own flags say of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// By `-H`.
    pub host: Option<String>,
    /// By `-c`.
    pub context: Option<String>,
    /// By `--config`, which docker itself needs too.
    pub config: Option<PathBuf>,
    /// By `--tls`.
    pub tls: bool,
    /// By `--tlsverify`.
    pub tls_verify: bool,
    /// By `--tlscacert`, `--tlscert` and `--tlskey`.
    pub files: [Option<PathBuf>; 3],
    /// The arguments without these flags.
    pub args: Vec<OsString>,
}

/// Which engine the flags of `docker` name, if they do.
pub fn named_engine(program: &OsStr, args: &[OsString]) -> Option<Named> {
    if Path::new(program).file_name()? != "docker" {
        return None;
    }
    let mut named = Named::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = word.to_str()?;
        let Some(flags) = text.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
            // The first word that is no flag is the subcommand; what follows is its own.
            named.args.push(word.clone());
            named.args.extend(words.cloned());
            break;
        };
        let Some(long) = flags.strip_prefix('-') else {
            named.short_flags(flags, &mut words)?;
            continue;
        };
        let (name, glued) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (long, None),
        };
        if DOCKER_VALUES.iter().any(|(long, _)| *long == name) {
            let value = match glued {
                Some(value) => value,
                None => words.next()?.to_str()?.to_string(),
            };
            named.value(name, value)?;
        } else {
            let on = glued.is_none_or(|value| value.parse() != Ok(false) && value != "0");
            match name {
                "tls" => named.tls = on,
                "tlsverify" => named.tls_verify = on,
                _ => named.args.push(word.clone()),
            }
        }
    }
    let plain = Named { args: named.args.clone(), ..Named::default() };
    (named != plain).then_some(named)
}

impl Named {
    /// A word of short flags: those without a value may stand before one that takes the rest.
    fn short_flags<'a>(
        &mut self,
        flags: &str,
        words: &mut impl Iterator<Item = &'a OsString>,
    ) -> Option<()> {
        for (at, flag) in flags.char_indices() {
            let Some((name, _)) = DOCKER_VALUES.iter().find(|(_, short)| *short == flag) else {
                self.args.push(format!("-{flag}").into());
                continue;
            };
            let rest = &flags[at + flag.len_utf8()..];
            let value = match rest.strip_prefix('=').unwrap_or(rest) {
                "" => words.next()?.to_str()?.to_string(),
                glued => glued.to_string(),
            };
            return self.value(name, value);
        }
        Some(())
    }

    /// Takes in a flag's value. Several engines are for docker to complain about.
    fn value(&mut self, name: &str, value: String) -> Option<()> {
        let slot = match name {
            "host" => &mut self.host,
            "context" => &mut self.context,
            "tlscacert" | "tlscert" | "tlskey" => {
                let at = ["tlscacert", "tlscert", "tlskey"].iter().position(|n| *n == name)?;
                self.files[at] = Some(value.into());
                return Some(());
            }
            _ => {
                if name == "config" {
                    self.config = Some(value.clone().into());
                }
                self.args.extend([format!("--{name}").into(), value.into()]);
                return Some(());
            }
        };
        slot.replace(value).is_none().then_some(())
    }

    /// Where docker would look, so told.
    pub fn surroundings(&self, around: Surroundings) -> Surroundings {
        let told = self.host.is_some() || self.context.is_some();
        Surroundings {
            host: if told { self.host.clone() } else { around.host },
            context: if told { self.context.clone() } else { around.context },
            config: self.config.clone().or(around.config),
            tls: self.tls || around.tls,
            tls_verify: self.tls_verify || around.tls_verify,
            files: self.files.clone(),
            ..around
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn flags_of_docker_may_name_an_engine() {
        let named = |text: &str| named_engine(OsStr::new("/usr/bin/docker"), &words(text));
        let found = named("-H tcp://a:1 --log-level info run -H x bb").unwrap();
        assert_eq!(found.host.as_deref(), Some("tcp://a:1"));
        assert_eq!(found.args, words("--log-level info run -H x bb"));
        let found = named("--context=far run -c 512 bb").unwrap();
        assert_eq!((found.context.as_deref(), found.args), (Some("far"), words("run -c 512 bb")));
        for spelling in ["-Hx run", "-H=x run", "-H x run", "--host x run", "--host=x run"] {
            let found = named(spelling).unwrap();
            assert_eq!((found.host.as_deref(), found.args), (Some("x"), words("run")));
        }
        let found = named("-DHx -cy --tls=false ps").unwrap();
        assert_eq!((found.host.as_deref(), found.context.as_deref()), (Some("x"), Some("y")));
        assert_eq!((found.tls, found.args), (false, words("-D ps")));
        let found = named("--tlsverify --tlskey=/k -H tcp://a:1 run bb").unwrap();
        assert_eq!((found.tls_verify, &found.files[2]), (true, &Some("/k".into())));
        assert_eq!(named("run -i bb"), None);
        let found = named("-D --config /c run -i bb").unwrap();
        assert_eq!(
            (found.config, found.args),
            (Some("/c".into()), words("-D --config /c run -i bb"))
        );
        assert_eq!(named("-H a -H b run"), None);
        assert_eq!(named_engine(OsStr::new("dockerd"), &words("-H x run")), None);
    }
}
