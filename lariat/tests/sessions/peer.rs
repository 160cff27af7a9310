//! Clients of the official SDK on servers of a session: typed calls, a handler of the host's own,
//! and peers that are kept after the end.

use crate::kit::{self, PROMISE, Place, named, server, shell};
use lariat::session::{Error, Manager};
use libtest_mimic::Trial;
use rmcp::model::{
    CallToolRequestParams, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
};
use rmcp::service::RequestContext;
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde_json::{Map, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn tests() -> Vec<Trial> {
    kit::trials([
        ("peer::typed-calls-and-peers-that-are-kept", kept as fn()),
        ("peer::a-server-asks-the-host", asked),
    ])
}

fn kept() {
    let place = Place::new("peers");
    kit::runtime().block_on(async {
        let deaf = server("ignores-eof-and-term", &place.token);
        let config = kit::config(&place.dir, named([("one", deaf)]));
        let manager = Manager::start(config).await.expect("it starts");
        let service = manager.session().peer("one", ()).await.expect("a peer");
        let tools = service.list_all_tools().await.expect("tools");
        assert_eq!(tools.len(), 2);
        let result = service.call_tool(CallToolRequestParams::new("echo")).await.expect("a result");
        assert!(serde_json::to_string(&result).expect("JSON").contains("done"));
        // Clones that outlive everything, one of them in a call that never returns.
        let clones: Vec<_> = (0..8).map(|_| service.peer().clone()).collect();
        let hanging = clones[0].clone();
        let hanging =
            tokio::spawn(
                async move { hanging.call_tool(CallToolRequestParams::new("hang")).await },
            );
        while manager.session().snapshot().await[0].state != "busy" {
            tokio::task::yield_now().await;
        }
        let receipt = manager.close().await.expect("nobody survives").receipts.remove(0);
        assert_eq!(receipt.processes.killed, 1, "{receipt:?}");
        assert!(hanging.await.expect("no panic").is_err());
        assert!(clones[1].call_tool(CallToolRequestParams::new("echo")).await.is_err());
    });
    place.assert_gone(PROMISE);
}

/// Says yes, and counts how often.
#[derive(Clone, Default)]
struct Agreeing(Arc<AtomicUsize>);

impl ClientHandler for Agreeing {
    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        info.capabilities = serde_json::from_value(json!({"elicitation": {}})).expect("known");
        info
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"sure": true})))
    }
}

/// A server that asks the user before it answers a call.
const ASKS: &str = r#"
id() { printf %s "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'; }
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
question='{"message":"sure?","requestedSchema":{"type":"object","properties":{"sure":{"type":"boolean"}}}}'
while read -r line; do case "$line" in
*'"initialize"'*) answer "$(id "$line")" '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"asks","version":"0"}}';;
*'"tools/list"'*) answer "$(id "$line")" '{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}';;
*'"tools/call"'*) call=$(id "$line"); printf '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":%s}\n' "$question";;
*'"accept"'*) answer "$call" '{"content":[{"type":"text","text":"heard"}]}';;
*'"id":"q"'*) answer "$call" '{"content":[{"type":"text","text":"refused"}]}';;
esac; done
"#;

fn asked() {
    let place = Place::new("asked");
    kit::runtime().block_on(async {
        let mut told = shell(ASKS, &place.token);
        told.capabilities = Map::from_iter([("elicitation".to_owned(), json!({}))]);
        let untold = shell(ASKS, &place.token);
        let config = kit::config(&place.dir, named([("told", told), ("untold", untold)]));
        let manager = Manager::start(config).await.expect("it starts");
        let session = manager.session();
        let handler = Agreeing::default();
        let service = session.peer("told", handler.clone()).await.expect("a peer");
        let call = CallToolRequestParams::new("ask");
        let result = service.call_tool(call).await.expect("a result");
        assert!(serde_json::to_string(&result).expect("JSON").contains("heard"));
        assert_eq!(handler.0.load(Ordering::Relaxed), 1);
        // Nobody is there to ask: refused, and not guessed.
        let alone = session.call("untold", "ask", json!({})).await.expect("a result");
        assert!(alone.get().contains("refused"), "{alone}");
        // What the server was not told of cannot be had.
        let more = session.peer("untold", handler).await.err().expect("an error");
        assert!(
            matches!(&more, Error::NotReady(_, why) if why.contains("`elicitation`")),
            "{more}"
        );
        manager.close().await.expect("nobody survives");
    });
    place.assert_gone(PROMISE);
}
