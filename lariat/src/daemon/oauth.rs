//! Who may come in from other machines: whoever has a token that an authorization server has signed
//! for us. We are an OAuth 2.1 resource server; tokens are JWTs, and the keys by which they are
//! checked are in a file that the operator keeps, so nothing is asked of the network.

mod jwt;

use super::api::Problem;
use super::http::{self, Answer};
use hyper::{Uri, header};
use jwt::Keys;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where clients look for who gives out tokens; the path of the resource may follow.
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Clocks differ by so many seconds.
const LEEWAY: u64 = 60;

/// The file of keys is looked at so often at most.
const LOOK: Duration = Duration::from_secs(1);

/// A longer file has no keys in it, and a longer name is none.
const LARGEST_FILE: u64 = 1 << 20;
const LONGEST_NAME: usize = 256;

/// What an operator says about tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// Who signs them, as they say in `iss`.
    pub issuer: String,
    /// For whom, as they say in `aud`: the address by which clients know us.
    pub audience: String,
    /// A file with the keys, as a JSON Web Key Set.
    pub keys: PathBuf,
    /// What they must allow, as they say in `scope`.
    pub scopes: Vec<String>,
}

/// Tells good tokens from bad ones.
#[derive(Debug)]
pub(super) struct Guard {
    issuer: Issuer,
    /// `scheme://host[:port]` of the audience, and the host alone.
    origin: String,
    authority: String,
    keys: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<Keys>,
    modified: Option<SystemTime>,
    looked: Instant,
}

/// Why a token is not good.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is none.
    Missing,
    /// It is not what we let anybody in with; the sentence says why.
    Invalid(&'static str),
    /// It is good, but not for this.
    Insufficient,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Missing => "a token is needed: `Authorization: Bearer TOKEN`",
            Refusal::Invalid(why) => why,
            Refusal::Insufficient => "the token does not allow this",
        })
    }
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    #[serde(default)]
    nbf: f64,
    #[serde(default)]
    scope: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Guard {
    /// Reads the keys.
    pub(super) fn new(issuer: &Issuer) -> io::Result<Guard> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let audience: Uri = issuer
            .audience
            .parse()
            .map_err(|e| invalid(format!("the audience {} is no address: {e}", issuer.audience)))?;
        let (Some("https"), Some(authority)) = (audience.scheme_str(), audience.authority()) else {
            return Err(invalid(format!("the audience {} is no https address", issuer.audience)));
        };
        let known = Known::read(&issuer.keys)?;
        Ok(Guard {
            origin: format!("https://{authority}"),
            authority: authority.to_string(),
            issuer: issuer.clone(),
            keys: Mutex::new(known),
        })
    }

    /// The host by which clients know us, with its port if it has one.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// The origin of pages of our own.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Whose token this is: nobody else's are the same, whoever signs them.
    pub(super) fn principal(
        &self,
        token: Option<&str>,
        now: SystemTime,
    ) -> Result<Arc<str>, Refusal> {
        let token = token.ok_or(Refusal::Missing)?;
        let claims = self.verified(token)?;
        let claims: Claims = serde_json::from_slice(&claims)
            .map_err(|_| Refusal::Invalid("the token does not say who, for whom and until when"))?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if claims.iss != self.issuer.issuer {
            return Err(Refusal::Invalid("the token is from somebody else"));
        }
        let is_ours = |audience: &String| *audience == self.issuer.audience;
        let is_for_us = match &claims.aud {
            Audience::One(audience) => is_ours(audience),
            Audience::Several(all) => all.iter().any(is_ours),
        };
        if !is_for_us {
            return Err(Refusal::Invalid("the token is for somebody else"));
        }
        // Written so that a number that is none counts as past.
        let lives = claims.exp > now.saturating_sub(LEEWAY) as f64;
        if !lives {
            return Err(Refusal::Invalid("the token has expired"));
        }
        if claims.nbf > (now + LEEWAY) as f64 {
            return Err(Refusal::Invalid("the token is not valid yet"));
        }
        if claims.sub.is_empty() || claims.sub.len() > LONGEST_NAME {
            return Err(Refusal::Invalid("the token names nobody"));
        }
        let has = |scope: &String| claims.scope.split(' ').any(|given| given == scope);
        if !self.issuer.scopes.iter().all(has) {
            return Err(Refusal::Insufficient);
        }
        Ok(format!("{} {}", claims.iss, claims.sub).into())
    }

    /// What a token claims, if one of the keys has signed it. Keys that come and go are noticed.
    fn verified(&self, token: &str) -> Result<Vec<u8>, Refusal> {
        let keys = {
            let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if known.looked.elapsed() >= LOOK {
                known.look_again(&self.issuer.keys);
            }
            known.keys.clone()
        };
        keys.verify(token).map_err(|bad| Refusal::Invalid(bad.in_words()))
    }

    /// What clients want to know of who gives out tokens.
    pub(super) fn metadata(&self) -> Value {
        let Issuer { issuer, audience, scopes, .. } = &self.issuer;
        json!({
            "resource": audience,
            "authorization_servers": [issuer],
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
        })
    }

    /// The answer to who may not come in, with what it takes.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Answer {
        let (status, error) = match refusal {
            Refusal::Missing => (401, None),
            Refusal::Invalid(_) => (401, Some("invalid_token")),
            Refusal::Insufficient => (403, Some("insufficient_scope")),
        };
        let mut challenge = format!("Bearer resource_metadata=\"{}{METADATA}\"", self.origin);
        if let Some(error) = error {
            challenge.push_str(&format!(", error=\"{error}\""));
        }
        if !self.issuer.scopes.is_empty() {
            challenge.push_str(&format!(", scope=\"{}\"", self.issuer.scopes.join(" ")));
        }
        let detail = format!("{refusal}. {}{METADATA} says who gives out tokens.", self.origin);
        let problem = Problem::new(status, "no-token", "Not let in", detail);
        http::with(http::problem(&problem), header::WWW_AUTHENTICATE, &challenge)
    }
}

impl Known {
    fn read(path: &Path) -> io::Result<Known> {
        let say = |e: io::Error| {
            let what = format!("the keys {} cannot be read: {e}", path.display());
            io::Error::new(e.kind(), what)
        };
        let meta = fs::metadata(path).map_err(say)?;
        if !meta.is_file() || meta.len() > LARGEST_FILE {
            return Err(say(io::Error::other("it is no file of keys")));
        }
        let text = fs::read(path).map_err(say)?;
        let keys = Keys::parse(&text).map_err(|e| say(io::Error::other(e)))?;
        let keys = Arc::new(keys);
        Ok(Known { keys, modified: meta.modified().ok(), looked: Instant::now() })
    }

    /// Reads the file again, if it is another now. One that cannot be read changes nothing.
    fn look_again(&mut self, path: &Path) {
        self.looked = Instant::now();
        let modified = fs::metadata(path).and_then(|meta| meta.modified()).ok();
        if modified != self.modified
            && let Ok(known) = Known::read(path)
        {
            *self = known;
        }
    }
}

#[cfg(test)]
mod tests;
