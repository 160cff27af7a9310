//! What a holder is told to run, and what is done in its place if it does not do it.

use super::Talk;
use crate::books::Books;
use crate::docker::endpoint::Surroundings;
use crate::id::SessionId;
use crate::receipt::Receipt;
use crate::spec::ServerSpec;
use crate::start::environment::Environment;
use crate::start::wire::Brief;
use crate::start::{Containers, image};
use contain::{Choice, Member};
use rustix::process::Signal;
use std::ffi::OsString;
use std::path::PathBuf;

impl Talk {
    pub(super) fn brief(
        &self,
        spec: &ServerSpec,
        around: Option<&Environment>,
    ) -> Result<Brief, String> {
        let (program, args) = image::command(spec);
        let mut words: Vec<OsString> = args.iter().map(Into::into).collect();
        let mut docker = None;
        if let Some(engine) = &self.household.docker {
            let most = self.household.max_containers;
            let engine = told(engine.clone(), spec);
            let found = Containers::of(program.as_ref(), &mut words, engine, most);
            docker = found.docker.map_err(|e| format!("its containers cannot be held: {e}"))?;
        }
        if spec.image.is_some() && docker.is_none() {
            return Err(match &self.household.docker {
                Some(_) => "there is no Docker engine to run its image".into(),
                None => "containers are left alone in this session, so its image cannot run".into(),
            });
        }
        let args = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Brief {
            owner: Member::current().map(|me| (me.pid, me.start)),
            on_behalf: self.household.on_behalf.map(|one| (one.pid, one.start)),
            within: self.household.id.clone(),
            server: self.server.clone(),
            program,
            args,
            // In an image it is a directory there.
            cwd: spec.cwd.clone().filter(|_| spec.image.is_none()),
            backend: match self.household.backend {
                Choice::Auto => None,
                Choice::Named(backend) => Some(backend.name().into()),
            },
            ladder: Brief::rungs(&self.household.ladder),
            docker,
            state_dir: self.household.state_dir.clone(),
            sweep: self.household.is_first(),
            umask: around.map(|around| around.umask),
        })
    }

    pub(super) fn kill_holders(&mut self) {
        if let Some(holder) = &mut self.holder {
            holder.kill();
        }
        if let Some(started) = &self.started {
            // It is gone, or it is that very process.
            let _gone = started.guardian.signal(Signal::KILL);
        }
    }

    /// Neither holder nor guardian lives: does their work.
    pub(super) async fn look(&self, session: SessionId) -> Option<Receipt> {
        let dir = self.household.state_dir.clone();
        let looked =
            tokio::task::spawn_blocking(move || Books::open(&dir).ok()?.finish(&session)).await;
        looked.ok().flatten()
    }
}

/// The same with what the server's own variables say of an engine.
fn told(mut around: Surroundings, spec: &ServerSpec) -> Surroundings {
    let said = |name: &str| spec.env.get(name).cloned();
    let path = |name: &str| said(name).map(PathBuf::from);
    around.host = said("DOCKER_HOST").or(around.host);
    around.context = said("DOCKER_CONTEXT").or(around.context);
    around.config = path("DOCKER_CONFIG").or(around.config);
    around.cert_path = path("DOCKER_CERT_PATH").or(around.cert_path);
    let flag = |name: &str, before| said(name).map_or(before, |value| !value.is_empty());
    around.tls_verify = flag("DOCKER_TLS_VERIFY", around.tls_verify);
    around.tls = flag("DOCKER_TLS", around.tls);
    around
}
