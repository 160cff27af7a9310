//! A server that runs in an image: the same manager, the same session, the same receipt.

use crate::engine::{Engine, Kind};
use crate::eyes::Bystanders;
use crate::machine::at_times;
use crate::session::token;
use crate::{PATIENCE, PROMISE};
use lariat::contain::Ladder;
use lariat::docker::endpoint::Surroundings;
use lariat::session::{Config, Manager, State};
use lariat::spec::{Restart, ServerSpec};
use serde_json::json;
use std::time::Duration;

/// A server of the shell's, which busybox has; it tells what it was given.
const SERVER: &str = r#"
trap '' TERM
id() { printf %s "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'; }
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
while :; do
  read -r line || { sleep 1; continue; }
  case "$line" in
  *'"initialize"'*) answer "$(id "$line")" '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"boxed","version":"0"}}';;
  *'"tools/list"'*) answer "$(id "$line")" '{"tools":[{"name":"tell","inputSchema":{"type":"object"}}]}';;
  *'"hang"'*) ;;
  *'"tools/call"'*) answer "$(id "$line")" "{\"content\":[{\"type\":\"text\",\"text\":\"$SECRET in $PWD\"}]}";;
  esac
done
"#;

/// Closed, dropped, and replaced: the container is gone each time, and is in the receipt.
pub(crate) fn images() {
    let engine = Engine::start(Kind::Docker);
    let bystanders = Bystanders::start(&engine, 3, "boxed");
    let state_dir = std::env::temp_dir().join(token());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = || {
        let mut spec = ServerSpec::new("sh").args(["-c", SERVER]).env("SECRET", "s3cret");
        spec.image = Some("bb:latest".into());
        spec.cwd = Some("/tmp".into());
        spec.restart = Restart::Never;
        let mut config = Config::new(&state_dir, [("boxed".to_owned(), spec)].into());
        let rung = Duration::from_millis(300);
        config.ladder = Ladder { grace: rung, term_grace: rung, ..Ladder::default() };
        let host = Some(format!("unix://{}", engine.socket().display()));
        config.docker = Some(Surroundings { host, ..Surroundings::default() });
        config
    };
    let before = engine.containers().len();
    let count = || engine.containers().len() - before;
    runtime.block_on(async {
        let manager = Manager::start(config()).await.unwrap();
        let session = manager.session();
        let state = &session.states()["boxed"];
        assert!(matches!(state, State::Ready(_)), "{state:?}");
        let told = session.call("boxed", "tell", json!({})).await.unwrap();
        assert!(told.get().contains("s3cret in /tmp"), "{told}");
        assert_eq!(count(), 1);
        let picture = session.snapshot().await;
        assert_eq!(picture[0].containers.len(), 1, "{picture:?}");
        // A value is not for everybody to read.
        assert!(!command_lines().contains("s3cret"));
        // Replaced: one is gone, one is there.
        let mut next = config().servers;
        next.get_mut("boxed").unwrap().env.insert("SECRET".into(), "other".into());
        let change = manager.refresh(next).await.unwrap();
        assert_eq!(change.replaced, ["boxed"]);
        assert_eq!(change.receipts[0].containers.removed, 1, "{change:?}");
        assert_eq!(count(), 1);
        let hanging = session.clone();
        tokio::spawn(async move { hanging.call("boxed", "hang", json!({})).await.map(drop) });
        let ended = manager.close().await.expect("nothing survives");
        let receipt = &ended.receipts[0];
        assert_eq!((receipt.containers.seen, receipt.containers.removed), (1, 1), "{receipt:?}");
        assert_eq!(receipt.reason, "closed");
        assert_eq!(count(), 0);
        let manager = Manager::start(config()).await.unwrap();
        assert_eq!(count(), 1);
        drop(manager);
    });
    // As long as the ladder, and then what is promised.
    let gone =
        at_times(Duration::from_millis(50), PROMISE + Duration::from_secs(1), || count() == 0);
    assert!(gone, "a container outlives its manager");
    bystanders.assert_untouched(&engine);
    let sessions = state_dir.join("sessions");
    let struck = || std::fs::read_dir(&sessions).is_ok_and(|mut dir| dir.next().is_none());
    assert!(at_times(Duration::from_millis(50), PATIENCE, struck), "still in the books");
    std::fs::remove_dir_all(state_dir).unwrap();
}

/// What everybody can read about everybody.
fn command_lines() -> String {
    let Ok(dir) = std::fs::read_dir("/proc") else { return String::new() };
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let lines = dir.flatten().filter_map(line);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}
