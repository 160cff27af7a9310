//! The `lariat` command: glue between a command line and the library.

#[cfg(target_os = "linux")]
mod cmd;
#[cfg(target_os = "linux")]
mod env;
#[cfg(target_os = "linux")]
mod hosts;
#[cfg(target_os = "linux")]
mod leaks;
#[cfg(target_os = "linux")]
mod shelf;
#[cfg(target_os = "linux")]
mod show;
#[cfg(target_os = "linux")]
mod size;
#[cfg(target_os = "linux")]
mod summon;

#[cfg(windows)]
#[path = "windows/cmd.rs"]
mod cmd;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    // Hidden verbs first, before anything is parsed or allocated for a person.
    trials::misbehave_if_asked();
    cmd::demo::act_if_asked();
    lariat::main_if_asked();
    cmd::main()
}

#[cfg(windows)]
#[expect(clippy::disallowed_methods, reason = "an exit code has 32 bits here")]
fn main() {
    trials::misbehave_if_asked();
    std::process::exit(cmd::main())
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() -> std::process::ExitCode {
    use std::io::Write;
    // Saying so is the honest thing to do: a wrapper that holds nothing would be believed.
    let _closed = writeln!(
        std::io::stderr(),
        "lariat: this platform cannot hold process trees yet; Linux and Windows can in this release"
    );
    std::process::ExitCode::from(125)
}
