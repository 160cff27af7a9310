//! How the books are, for a person.

use crate::show;
use lariat::books::Health;

/// What is in them, and what becomes of that which should not be.
pub(super) fn text(health: Option<&Health>, again: &str) -> String {
    let Some(health) = health else { return "  none yet\n".into() };
    let mut text = format!(
        "  {} living; {} of events, {} in {}\n",
        health.living,
        show::bytes(health.events_bytes),
        show::bytes(health.logs_bytes),
        show::count(health.logs, "log")
    );
    for session in &health.unfinished {
        text += &format!("  {session} crashed and is not finished: {again}\n");
    }
    for left in &health.survivors {
        let names: Vec<String> = left.survivors.iter().map(|one| one.to_string()).collect();
        let line =
            format!("{} ({}) has ended and left {}", left.session, left.server, names.join(", "));
        text += &format!("  {}: {again}\n", show::plain(&line));
    }
    for page in &health.unreadable {
        let page = show::plain(page);
        text += &format!("  {page} cannot be read: perhaps another version of Lariat wrote it\n");
    }
    for name in &health.open_to_others {
        let name = show::plain(name);
        text += &format!("  {name} can be read or written by others: chmod go= it\n");
    }
    if health.elsewhere > 0 {
        text += &format!("  {} of another machine or container\n", health.elsewhere);
    }
    text
}
