//! The `lariat` command: glue between a command line and the library.

#[cfg(any(target_os = "linux", target_os = "macos", windows))]
#[cfg_attr(
    any(target_os = "macos", windows),
    expect(dead_code, reason = "part of it is for verbs that only Linux has")
)]
mod show;

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
mod size;
#[cfg(target_os = "linux")]
mod summon;

#[cfg(windows)]
#[path = "windows/cmd.rs"]
mod cmd;
#[cfg(windows)]
#[path = "windows/env.rs"]
mod env;
#[cfg(windows)]
#[path = "windows/summon.rs"]
mod summon;

#[cfg(target_os = "macos")]
#[path = "macos/cmd.rs"]
mod cmd;
#[cfg(target_os = "macos")]
#[path = "macos/env.rs"]
mod env;

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
fn main() -> std::process::ExitCode {
    trials::misbehave_if_asked();
    match cmd::main() {
        Ok(code) => code,
        Err(code) => std::process::exit(code),
    }
}

#[cfg(target_os = "macos")]
fn main() -> std::process::ExitCode {
    lariat::main_if_asked();
    cmd::main()
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
fn main() -> std::process::ExitCode {
    use std::io::Write;
    // Saying so is the honest thing to do: a wrapper that holds nothing would be believed.
    let _closed = writeln!(
        std::io::stderr(),
        "lariat: this platform cannot hold process trees yet; Linux, Windows and, less surely, macOS can in this release"
    );
    std::process::ExitCode::from(125)
}
