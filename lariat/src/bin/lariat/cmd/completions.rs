//! `lariat completions`: what a shell needs to finish a command line.

use crate::show;
use clap_complete::Shell;
use std::process::ExitCode;

/// Prints completions for a shell.
///
/// Written from the same definition as the help, so they know every verb and option of this version.
/// A package puts them in place by itself; after `cargo install`, put them where your shell looks.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat completions bash > ~/.local/share/bash-completion/completions/lariat
  lariat completions zsh > ~/.zfunc/_lariat        # with ~/.zfunc in fpath, before compinit
  lariat completions fish > ~/.config/fish/completions/lariat.fish")]
pub(crate) struct Args {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints them.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "lariat", &mut text);
    let text = String::from_utf8_lossy(&text);
    ExitCode::from(u8::from(!show::out(&text)))
}
