//! Windows: the table against the real binary and against a host with a manager, and what a host
//! would notice.

#[cfg(windows)]
#[path = "windows/daemon.rs"]
mod daemon;
#[cfg(windows)]
#[path = "windows/hosts.rs"]
mod hosts;
#[cfg(windows)]
#[path = "windows/manager.rs"]
mod manager;
#[cfg(windows)]
#[path = "windows/table.rs"]
mod table;
#[cfg(windows)]
#[path = "windows/turnover.rs"]
mod turnover;

#[cfg(windows)]
#[path = "windows/web.rs"]
mod web;

#[cfg(windows)]
fn main() {
    trials::misbehave_if_asked();
    lariat::main_if_asked();
    table::serve_if_asked();
    hosts::launch_if_asked();
    manager::own_if_asked();
    turnover::refresh_if_asked();
    let mut tests = table::tests();
    tests.extend(hosts::tests());
    tests.extend(manager::tests());
    tests.extend(turnover::tests());
    tests.extend(daemon::tests());
    tests.extend(web::tests());
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), tests).exit();
}

#[cfg(not(windows))]
fn main() {}
