//! What a keeper is told to run, and what is done in its place if it does not do it.

use super::Talk;
use crate::books::Books;
use crate::id::SessionId;
use crate::receipt::Receipt;
use crate::spec::ServerSpec;
use crate::start::environment::Environment;
use crate::start::image;
use crate::start::local::Brief;

impl Talk {
    pub(super) fn brief(
        &self,
        spec: &ServerSpec,
        _around: Option<&Environment>,
    ) -> Result<Brief, String> {
        if spec.image.is_some() {
            let why = "containers cannot be held on Windows yet, so its image cannot run";
            return Err(why.into());
        }
        let (program, args) = image::command(spec);
        let household = &self.household;
        Ok(Brief {
            on_behalf: household.on_behalf,
            within: household.id.clone(),
            server: self.server.clone(),
            program,
            args,
            cwd: spec.cwd.clone(),
            backend: household.backend,
            ladder: household.ladder,
            state_dir: household.state_dir.clone(),
            sweep: household.is_first(),
        })
    }

    pub(super) fn kill_holders(&mut self) {
        if let Some(holder) = &mut self.holder {
            holder.kill();
        }
    }

    /// The keeper is gone, and its job with it: does what is left of its work.
    pub(super) async fn look(&self, session: SessionId) -> Option<Receipt> {
        let dir = self.household.state_dir.clone();
        let looked =
            tokio::task::spawn_blocking(move || Books::open(&dir).ok()?.sweep().ok()).await;
        looked.ok().flatten()?.into_iter().find(|receipt| receipt.session == session)
    }
}
