//! A host made of the official Rust SDK. It lists, calls, hears progress, cancels and leaves, like those
//! in the scripts beside this file.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ProgressNotificationParam,
    ProtocolVersion,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RunningService,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, RoleClient};
use serde::Serialize;
use tokio::net::{TcpStream, UnixListener};

use super::clients::Way;
use super::house::Room;
use super::{Outcome, PATIENCE};

/// What it heard in between.
#[derive(Clone, Default)]
struct Ears(Arc<Mutex<Vec<String>>>);

impl ClientHandler for Ears {
    async fn on_progress(
        &self,
        step: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let step = format!("{} of {:?}: {:?}", step.progress, step.total, step.message);
        self.0.lock().unwrap_or_else(|poison| poison.into_inner()).push(step);
    }
}

type Running = RunningService<RoleClient, Ears>;

pub(crate) fn hears(room: &Room, era: &str, way: &Way) -> Outcome<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lifecycle = match era {
        "modern" => {
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] }
        }
        _ => ClientLifecycleMode::Initialize,
    };
    runtime.block_on(async {
        let talk = async {
            let ears = Ears::default();
            let client = match way {
                Way::Command(words) => {
                    let (program, args) = words.split_first().ok_or("no command")?;
                    let mut command = tokio::process::Command::from(room.program(program)?);
                    command.args(args);
                    let transport = TokioChildProcess::new(command)?;
                    ears.clone().serve_with_lifecycle(transport, lifecycle).await?
                }
                Way::Url(url) => {
                    let socket = bridge(room, url)?;
                    let transport =
                        StreamableHttpClientTransport::from_unix_socket(&socket, url.as_str());
                    ears.clone().serve_with_lifecycle(transport, lifecycle).await?
                }
            };
            talk(client, &ears).await
        };
        tokio::time::timeout(PATIENCE, talk).await?
    })
}

/// It speaks HTTP by unix sockets without another HTTP client for TCP: this one leads there.
fn bridge(room: &Room, url: &str) -> Outcome<String> {
    let address = url.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    let address = address.ok_or("no address")?.to_owned();
    let path = room.path("bridge");
    // One for each conversation.
    std::fs::remove_file(&path).ok();
    let listener = UnixListener::bind(&path)?;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let address = address.clone();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(address).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    Ok(path.display().to_string())
}

async fn talk(client: Running, ears: &Ears) -> Outcome<Vec<u8>> {
    let mut said = String::new();
    let mut show = |what: &str, value: &dyn erased::Json| -> Outcome {
        Ok(writeln!(said, "{what} {}", value.json()?)?)
    };
    show("tools", &client.list_tools(None).await?)?;
    show("prompts", &client.list_prompts(None).await?)?;
    show("resources", &client.list_resources(None).await?)?;
    for name in ["test_simple_text", "test_multiple_content_types", "test_error_handling"] {
        show(name, &client.call_tool(CallToolRequestParams::new(name)).await?)?;
    }
    let called = client.call_tool(CallToolRequestParams::new("test_tool_with_progress")).await?;
    show("call", &called)?;
    let steps = ears.0.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
    show("progress", &steps)?;

    let (begun, cancelled) = (count(&client, "begun").await?, count(&client, "cancelled").await?);
    let slow =
        ClientRequest::CallToolRequest(CallToolRequest::new(CallToolRequestParams::new("slow")));
    let handle = client.send_cancellable_request(slow, PeerRequestOptions::no_options()).await?;
    // Whoever is cancelled on the way need not reach the server.
    show("begun", &more(&client, "begun", begun).await?)?;
    handle.cancel(Some("enough".into())).await?;
    show("seen", &more(&client, "cancelled", cancelled).await?)?;
    client.cancel().await?;
    Ok(said.into_bytes())
}

/// Waits until the server has counted one more of these, and says whether it has.
async fn more(client: &Running, what: &'static str, before: u32) -> Outcome<bool> {
    let deadline = Instant::now() + PATIENCE;
    while count(client, what).await? <= before && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(count(client, what).await? > before)
}

async fn count(client: &Running, what: &'static str) -> Outcome<u32> {
    let heard = client.call_tool(CallToolRequestParams::new(what)).await?;
    let heard = serde_json::to_value(&heard)?;
    Ok(heard["content"][0]["text"].as_str().ok_or("no number")?.parse()?)
}

/// What can be shown.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> serde_json::Result<String>;
    }

    impl<T: super::Serialize> Json for T {
        fn json(&self) -> serde_json::Result<String> {
            serde_json::to_string(self)
        }
    }
}
