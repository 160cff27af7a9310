//! What a probe has found, in words and as JSON: what is the same on every platform.

use crate::show;
use lariat::mcp::{self, Offer};
use lariat::receipt::Receipt;
use serde_json::{Value, json};
use std::time::Duration;

/// Says that the server did not answer, and what it said instead.
pub(super) fn unanswered(receipt: &Receipt, error: &mcp::Error, stderr: &str) {
    let words = stderr.trim_end();
    let heard = if words.is_empty() {
        "it wrote nothing to stderr".to_owned()
    } else {
        format!("its stderr ends with:\n{words}")
    };
    show::failure(&format!("{} did not answer", receipt.server), Some(error), &heard);
}

/// One object, without what processes there were.
pub(super) fn object(
    offer: &Result<Offer, mcp::Error>,
    startup: Duration,
    receipt: &Receipt,
) -> Value {
    let found = offer.as_ref().ok();
    let mut object = json!({
        "server": {
            "name": found.and_then(|o| o.name.clone()),
            "version": found.and_then(|o| o.version.clone()),
        },
        "protocol": found.map(|o| &o.protocol),
        "era": found.map(|o| o.era),
        "tools": found.map(|o| o.tools.clone()).unwrap_or_default(),
        "resources": found.map_or(0, |o| o.resources),
        "prompts": found.map_or(0, |o| o.prompts),
        "startup_ms": startup.as_millis() as u64,
        "receipt": receipt,
    });
    if let Err(error) = offer {
        object["error"] = json!(error.to_string());
    }
    object
}

/// What it offers.
pub(super) fn offer(offer: &Offer, startup: Duration, receipt: &Receipt) -> String {
    let name = offer.name.as_deref().unwrap_or(receipt.server.as_str());
    let (version, after) = (offer.version.as_deref().unwrap_or(""), startup.as_millis());
    let (protocol, era) = (&offer.protocol, offer.era);
    let mut text = format!("{name} {version}  speaks {protocol} ({era}), ready after {after} ms\n");
    text += &format!(
        "{}, {}, {}\n",
        show::count(offer.tools.len(), "tool"),
        show::count(offer.resources, "resource"),
        show::count(offer.prompts, "prompt")
    );
    text.extend(offer.tools.iter().map(|tool| format!("  {}\n", show::plain(tool))));
    text
}

/// How it ended.
pub(super) fn ending(receipt: &Receipt) -> String {
    let p = receipt.processes;
    let mut text = format!(
        "ended by {} ({}): {} left by themselves, {} when asked, {} killed; ",
        receipt.backend, receipt.reason, p.left, p.asked, p.killed
    );
    if receipt.containers.seen > 0 {
        let c = receipt.containers;
        text += &format!("{} of {} removed; ", c.removed, show::count(c.seen, "container"));
    }
    match receipt.survivors.len() {
        0 => text += "nothing is left\n",
        n => text += &format!("{n} SURVIVED\n"),
    }
    for survivor in &receipt.survivors {
        text += &format!("  {}\n", show::plain(&format!("{survivor}: {}", survivor.why)));
    }
    text.extend(receipt.guarantee.iter().map(|may_miss| format!("  {may_miss}\n")));
    text
}
