//! A connection by TCP, until it ends. Nothing rests here yet.

use super::connections::Guest;
use super::http;
use super::page::Page;
use super::web::{Presence, answer};
use hyper::Request;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Where connections would rest.
#[derive(Debug)]
pub(super) struct Visits(watch::Sender<bool>);

impl Visits {
    pub(super) fn new() -> Visits {
        Visits(watch::Sender::new(false))
    }

    /// Whether everybody is to rest.
    pub(super) fn calls(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Visit(TcpStream);

impl Visit {
    pub(super) fn new(stream: TcpStream) -> Visit {
        Visit(stream)
    }

    /// Serves it until it ends.
    pub(super) async fn serve(self, page: Arc<Page>, _visits: Arc<Visits>, guest: Guest) {
        let presence = Arc::new(Presence::new(guest, page.registry.changed.clone()));
        let (stopped, looked_after) = (page.stopped.clone(), presence.clone());
        let answer =
            move |request: Request<Incoming>| answer(page.clone(), presence.clone(), request);
        http::converse(self.0, answer, looked_after.is_given_up(), stopped).await;
    }
}
