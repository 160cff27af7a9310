//! What `lariat daemon` needs to be told to be reached from other machines.

use crate::{env, show};
use lariat::daemon::{Gate, Issuer, Secured};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Outside {
    /// Serve MCP to other machines, by TLS and for whoever has a token that --oauth-issuer has signed;
    /// needs --config, and nothing but MCP is there
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["config", "tls_cert", "tls_key", "oauth_issuer", "oauth_audience", "oauth_keys"])]
    https: Option<SocketAddr>,
    /// A file with the certificate for --https and those that it needs, in PEM
    #[arg(long, value_name = "FILE", requires = "https")]
    tls_cert: Option<PathBuf>,
    /// A file with its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "https")]
    tls_key: Option<PathBuf>,
    /// Who signs tokens, as they say in `iss`
    #[arg(long, value_name = "URL", requires = "https")]
    oauth_issuer: Option<String>,
    /// For whom they are, as they say in `aud`: the https address by which clients know this daemon
    #[arg(long, value_name = "URL", requires = "https")]
    oauth_audience: Option<String>,
    /// A file with the keys that sign them, as a JSON Web Key Set; read again when it has changed
    #[arg(long, value_name = "FILE", requires = "https")]
    oauth_keys: Option<PathBuf>,
    /// What they must allow, as they say in `scope`; may be given more than once
    #[arg(long, value_name = "SCOPE", requires = "https")]
    oauth_scope: Vec<String>,
}

impl Outside {
    pub(crate) fn is_wanted(&self) -> bool {
        self.https.is_some()
    }

    /// Listens, if it is to.
    pub(crate) fn gate(&self) -> Result<Option<Gate>, ExitCode> {
        let Outside {
            https: Some(address),
            tls_cert: Some(certificate),
            tls_key: Some(key),
            oauth_issuer: Some(issuer),
            oauth_audience: Some(audience),
            oauth_keys: Some(keys),
            oauth_scope: scopes,
        } = self
        else {
            return Ok(None);
        };
        let secured = Secured {
            certificate: env::absolute(certificate.clone()),
            key: env::absolute(key.clone()),
            issuer: Issuer {
                issuer: issuer.clone(),
                audience: audience.clone(),
                keys: env::absolute(keys.clone()),
                scopes: scopes.clone(),
            },
        };
        let gate = TcpListener::bind(address).and_then(|bound| Gate::new(bound, &secured));
        gate.map(Some).map_err(|error| {
            let what = format!("other machines cannot be served at {address}");
            show::failure(&what, Some(&error), "nothing was started");
            ExitCode::FAILURE
        })
    }
}
