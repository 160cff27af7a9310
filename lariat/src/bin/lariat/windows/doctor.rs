//! `lariat doctor` on Windows: what this machine can guarantee.

use crate::show;
use lariat::contain::{Choice, Ladder, Spec, Stream, Tree};
use serde_json::json;

/// Says what holds a server on this machine, after trying it, and what it cannot hold.
#[derive(clap::Args)]
pub(super) struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

const GUARANTEE: &str = "every process the server starts is in a job; the kernel ends them all when \
                         Lariat ends, also if it is killed";
const NOT_HELD: &str = "what others start for the server: services, the task scheduler, WMI, \
                        container engines, what runs inside WSL";

/// Tries it and prints what was seen.
pub(super) fn run(args: &Args) -> i32 {
    let spec = Spec {
        program: "cmd".into(),
        args: vec!["/c".into(), "exit 0".into()],
        env: None,
        cwd: None,
        stdin: Stream::null(),
        stdout: Stream::null(),
        stderr: Stream::null(),
        backend: Choice::Auto,
        ladder: Ladder::default(),
    };
    let tried = match Tree::spawn(spec) {
        Ok(tree) => tree.close().map(drop).map_err(|survivors| survivors.to_string()),
        Err(e) => {
            let cause = std::error::Error::source(&e).map(|cause| format!(": {cause}"));
            Err(format!("cannot {e}{}", cause.unwrap_or_default()))
        }
    };
    let failed = tried.as_ref().err().cloned();
    let text = if args.json {
        let found = json!({"backend": "job", "works": failed.is_none(), "why": failed,
            "guarantee": GUARANTEE, "not_held": NOT_HELD});
        format!("{found}\n")
    } else {
        match &failed {
            None => format!(
                "holds servers by: job (tried just now)\n  {GUARANTEE}\n  not held: {NOT_HELD}\n"
            ),
            Some(why) => format!("cannot hold servers: {why}\n"),
        }
    };
    let read = show::out(&text);
    i32::from(failed.is_some() || !read)
}
