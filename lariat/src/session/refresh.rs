//! Refresh is a difference: what is unchanged is left alone.

use super::server::{Order, View};
use super::state::{Error, State};
use super::{Manager, Told, check};
use crate::receipt::Receipt;
use crate::spec::{ServerSpec, Servers};
use crate::start::talk::Departure;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a refresh did, by the names of the servers.
#[derive(Debug, Default)]
pub struct Change {
    /// New ones.
    pub started: Vec<String>,
    /// Those that were replaced, or had failed and were tried again.
    pub replaced: Vec<String>,
    /// Those that are gone.
    pub removed: Vec<String>,
    /// Those that were left as they are.
    pub kept: Vec<String>,
    /// Of what was replaced and removed.
    pub receipts: Vec<Receipt>,
    /// Servers of which nobody can say what became of their last run.
    pub unaccounted: Vec<String>,
}

/// What is to be done about one name.
enum Step {
    Keep,
    Replace(oneshot::Receiver<Departure>),
    Remove(oneshot::Receiver<Departure>, Arc<View>),
    Start(Arc<View>),
    /// Told to end by a refresh that was given up; start it when it has.
    After(Arc<View>, Arc<ServerSpec>),
    /// The same, and not wanted again.
    Await(Arc<View>),
}

impl Manager {
    /// Makes these the servers. Unchanged ones keep their process and their calls. When this returns,
    /// replaced and removed ones are gone, and new ones are ready or have failed by themselves.
    ///
    /// A replaced server is gone before its successor starts: they may want the same file or port.
    /// Refreshes come one after the other. One that is dropped half-way is not undone, and leaves
    /// nothing without an owner: what was told to end ends, what was started is a server like others.
    pub async fn refresh(&self, servers: Servers) -> Result<Change, Error> {
        check(&servers)?;
        let _one_by_one = self.refreshing.lock().await;
        let mut change = Change::default();
        let mut steps = Vec::new();
        for (name, step) in self.plan(servers) {
            match step {
                Step::Keep => change.kept.push(name),
                Step::Start(_) | Step::After(..) => {
                    change.started.push(name.clone());
                    steps.push((name, step));
                }
                Step::Replace(_) => {
                    change.replaced.push(name.clone());
                    steps.push((name, step));
                }
                Step::Remove(..) | Step::Await(_) => {
                    change.removed.push(name.clone());
                    steps.push((name, step));
                }
            }
        }
        // All of them are on their way; here they are only waited for.
        let mut views = Vec::new();
        for (name, step) in steps {
            match step {
                Step::Keep => {}
                Step::Start(view) => views.push(view),
                Step::Replace(reply) => {
                    let Departure { receipts, unaccounted } =
                        reply.await.map_err(|_| Error::Closed)?;
                    change.receipts.extend(receipts);
                    change.unaccounted.extend(unaccounted.then_some(name));
                }
                Step::Remove(reply, view) => {
                    let Departure { receipts, unaccounted } =
                        reply.await.map_err(|_| Error::Closed)?;
                    change.receipts.extend(receipts);
                    change.unaccounted.extend(unaccounted.then_some(name));
                    self.forget(&view);
                }
                Step::After(view, spec) => {
                    view.ended().await;
                    self.forget(&view);
                    views.push(self.add(name, spec));
                }
                Step::Await(view) => {
                    view.ended().await;
                    self.forget(&view);
                }
            }
        }
        for view in views {
            view.settled().await;
        }
        Ok(change)
    }

    /// Tells everybody what to become. Does not wait, so it cannot be interrupted.
    fn plan(&self, mut servers: Servers) -> Vec<(String, Step)> {
        let mut steps = Vec::new();
        let mut fresh = Vec::new();
        {
            let mut slots = self.slots();
            for (name, slot) in slots.iter_mut() {
                let wanted = servers.remove(name).map(Arc::new);
                let step = match (wanted, slot.ending) {
                    (Some(spec), true) => Step::After(slot.view.clone(), spec),
                    (None, true) => Step::Await(slot.view.clone()),
                    (Some(spec), false) => {
                        let failed = matches!(slot.view.state(), State::Failed { .. });
                        if *slot.view.spec() == *spec && !failed {
                            Step::Keep
                        } else {
                            let (reply, answer) = oneshot::channel();
                            // If its task is gone, so is the reply, which is seen.
                            let _gone = slot.orders.send(Order::Replace(spec, reply));
                            Step::Replace(answer)
                        }
                    }
                    (None, false) => match slot.end() {
                        Told::Now(answer) => Step::Remove(answer, slot.view.clone()),
                        Told::Before(view) => Step::Await(view),
                        Told::Nobody => Step::Await(slot.view.clone()),
                    },
                };
                steps.push((name.clone(), step));
            }
            fresh.extend(servers);
        }
        for (name, spec) in fresh {
            let view = self.add(name.clone(), Arc::new(spec));
            steps.push((name, Step::Start(view)));
        }
        steps
    }

    /// Takes a server that has ended out of the picture.
    fn forget(&self, view: &Arc<View>) {
        self.session().hide(view);
        let mut slots = self.slots();
        if slots.get(&view.name).is_some_and(|slot| Arc::ptr_eq(&slot.view, view)) {
            slots.remove(&view.name);
        }
    }
}
