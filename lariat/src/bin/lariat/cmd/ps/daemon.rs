//! What the daemon knows of its servers and nobody else does: who waits, and for how long nobody has.

use crate::env;
use crate::summon::{place, speak};
use lariat::id::ServerName;
use lariat::snapshot::{Living, Snapshot, State};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// How long the daemon may take to say it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the daemon, if one runs and a session may be its. Without an answer they stay as they were.
pub(in crate::cmd) fn ask_daemon(state_dir: Option<&PathBuf>, living: &mut [Living]) {
    if living.iter().all(|one| one.within.is_none()) {
        return;
    }
    let Some(dir) = env::state_dir(state_dir.cloned()) else { return };
    let Ok(stream) = UnixStream::connect(place(&dir)) else { return };
    let told = speak(stream, async |mut client| {
        let told = tokio::time::timeout(PATIENCE, client.snapshot()).await;
        told.unwrap_or_else(|_| Ok(Snapshot::default()))
    });
    merge(living, &told.unwrap_or_default());
}

fn merge(living: &mut [Living], told: &Snapshot) {
    for one in living.iter_mut().filter(|one| one.state == State::Ready) {
        let Some(within) = &one.within else { continue };
        let session = told.sessions.iter().find(|session| session.id == within.as_str());
        let mut servers = session.into_iter().flat_map(|session| &session.servers);
        let named = |name: &str| ServerName::given(name).is_some_and(|name| name == one.server);
        match servers.find(|server| named(&server.name)) {
            Some(server) if server.state == "busy" => one.state = State::Busy,
            Some(server) if server.state == "ready" => one.idle_s = Some(server.idle_s),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_daemon_says_is_about_its_own_servers() {
        let one = |within: Option<&str>, server: &str, state: &str| -> Living {
            serde_json::from_value(json!({
                "session": "0123456789abcde", "within": within, "server": server, "host": null,
                "wrapper": 8, "state": state, "idle_s": null, "evidence": [], "backend": "descent",
                "started": "2026-11-15T20:23:00.125Z", "age_s": 1.0, "processes": 1, "rss_bytes": 1,
            }))
            .unwrap()
        };
        let session = "aaaaaaaaaaaaaaa";
        let server = |name: &str, state: &str| {
            json!({"name": name, "state": state, "backend": null, "processes": [],
                "containers": [], "age_s": 1.0, "idle_s": 7.5})
        };
        let told: Snapshot = serde_json::from_value(json!({"sessions": [{
            "id": session, "owner": {"pid": 1, "command": "x"},
            "servers": [server("a", "busy"), server("b c", "ready"), server("d", "busy")],
        }]}))
        .unwrap();
        let mut living = [
            one(Some(session), "a", "ready"),
            one(Some(session), "b-c", "ready"),
            one(Some(session), "d", "ending"),
            one(None, "a", "ready"),
            one(Some("bbbbbbbbbbbbbbb"), "a", "ready"),
        ];
        merge(&mut living, &told);
        let said: Vec<_> = living.iter().map(|one| (one.state.word(), one.idle_s)).collect();
        let ready = ("ready", None);
        assert_eq!(said, [("busy", None), ("ready", Some(7.5)), ("ending", None), ready, ready]);
    }
}
