//! `lariat trial`.
#[derive(clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: Args) -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
