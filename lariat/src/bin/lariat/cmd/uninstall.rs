//! `lariat uninstall`: the hosts' configs as they were.

use super::install::{Common, change};
use crate::hosts::plan::Want;
use std::path::PathBuf;
use std::process::ExitCode;

/// Takes Lariat away from every server that `install` wrapped.
///
/// All that is needed is in the configs themselves, so it works after any number of edits, on
/// another machine, and when the state directory is gone. Files that nobody changed in the meantime are
/// the same afterwards to the byte. Servers that somebody wrapped by hand are left alone.
///
/// Exit code 0 if nothing is left to do, 1 if a file could not be read or written, 2 if nobody said yes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat uninstall --dry-run
  lariat uninstall codex
  lariat uninstall --project --yes")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

impl Args {
    /// Where it was told that the books are.
    pub(crate) fn state_dir(&self) -> Option<&PathBuf> {
        self.common.state_dir()
    }
}

/// Looks, shows, asks, writes.
pub(crate) fn run(args: &Args) -> ExitCode {
    change(&args.common, &Want::Uninstalled)
}
