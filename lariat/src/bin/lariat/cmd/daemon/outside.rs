//! What `lariat daemon` needs to be told to be reached from other machines.

use super::replace::patiently;
use crate::{env, show};
use lariat::daemon::{Gate, Issuer, Secured};
use std::io;
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

    /// What it takes, if it is to listen.
    fn secured(&self) -> Option<(SocketAddr, Secured)> {
        let secured = Secured {
            certificate: env::absolute(self.tls_cert.clone()?),
            key: env::absolute(self.tls_key.clone()?),
            issuer: Issuer {
                issuer: self.oauth_issuer.clone()?,
                audience: self.oauth_audience.clone()?,
                keys: env::absolute(self.oauth_keys.clone()?),
                scopes: self.oauth_scope.clone(),
            },
        };
        Some((self.https?, secured))
    }

    /// Says what could not be used.
    pub(crate) fn check(&self) -> Result<(), ExitCode> {
        let Some((address, secured)) = self.secured() else { return Ok(()) };
        secured.check().map_err(|error| failed(address, &error))
    }

    /// Listens, if it is to. Patient if somebody is just making way.
    pub(crate) fn gate(&self, patient: bool) -> Result<Option<Gate>, ExitCode> {
        let Some((address, secured)) = self.secured() else { return Ok(None) };
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let bound = patiently(patient, || TcpListener::bind(address), is_taken);
        let gate = bound.and_then(|bound| Gate::new(bound, &secured));
        gate.map(Some).map_err(|error| failed(address, &error))
    }
}

fn failed(address: SocketAddr, error: &io::Error) -> ExitCode {
    let what = format!("other machines cannot be served at {address}");
    show::failure(&what, Some(error), "nothing was started");
    ExitCode::FAILURE
}
