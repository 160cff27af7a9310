//! What each misbehaviour does: how its tree is built before the leader answers anything.
//!
//! Every member ends up in `linger` (deaf unless said otherwise), in `serve`, or in a loop that
//! asks `is_over`. The leader is polite at the end of input unless that is the misbehaviour.

use std::ffi::{CStr, CString};
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Script;
use super::process::{
    attribute, await_stop, be_traced, block, close, close_all, duplicate, end_this_thread, execute,
    fork, fork_with, is_hung_up, is_signalled, leave, new_group, new_session, now_ns, pause, pipe,
    read, reap, rename, stop, unshare, wait_for, write_all,
};
use super::serve::{OnEof, OnTerm, serve};
use crate::table::Misbehaviour;
use crate::world::cgroup::Mount;

const SELF: &CStr = c"/proc/self/exe";
/// Hops of one rabbit at most: half a minute at full speed, so it never ends within a cell.
const HOPS: u32 = 400_000;
/// Children of the one that forks during the kill.
const BROOD: u32 = 500;

/// Parts that are played after an exec within a tree, beside the misbehaviours themselves.
mod role {
    pub(super) const DEAF: &str = "role-deaf";
    pub(super) const LAUNCHER: &str = "role-launcher";
    pub(super) const RABBITS: &str = "role-rabbits";
    pub(super) const REEXEC: &str = "role-reexec";
}

/// Plays the part that the verb names.
pub(super) fn play(script: &Script) {
    match script.verb.as_str() {
        role::DEAF => sit(script),
        role::LAUNCHER => launch(script),
        role::RABBITS => rabbits(script),
        role::REEXEC => execute_again(script),
        verb => {
            if let Some(misbehaviour) = Misbehaviour::from_name(verb) {
                misbehave(script, misbehaviour);
            }
        }
    }
}

fn misbehave(script: &Script, misbehaviour: Misbehaviour) -> ! {
    let (mut on_eof, mut on_term) = (OnEof::Exit, OnTerm::Die);
    match misbehaviour {
        Misbehaviour::Polite => {}
        Misbehaviour::IgnoresEof => on_eof = OnEof::Stay,
        Misbehaviour::IgnoresEofAndTerm => (on_eof, on_term) = (OnEof::Stay, OnTerm::Ignore),
        Misbehaviour::SpinsOnEof => on_eof = OnEof::Spin,
        Misbehaviour::TermForksAndStays => {
            (on_eof, on_term) = (OnEof::Stay, OnTerm::ForkAndStay);
        }
        Misbehaviour::TermForksAndExits => {
            (on_eof, on_term) = (OnEof::Stay, OnTerm::ForkAndExit);
        }
        Misbehaviour::EofForksAndExits => on_eof = OnEof::ForkAndExit,
        Misbehaviour::ShellWrapper => become_shell(script),
        Misbehaviour::Middleman => middleman(script),
        Misbehaviour::FloodsStderr => write_all(2, &vec![b'!'; 1 << 20]),
        Misbehaviour::LeaderLeavesChild => {
            started(script, || {
                script.arm();
                script.up();
                script.linger();
            });
        }
        Misbehaviour::SetpgidChild => child(script, new_group),
        Misbehaviour::SetsidChild => child(script, new_session),
        Misbehaviour::HoldsStdout => child(script, || close(0)),
        Misbehaviour::NonDumpable => child(script, || {
            new_session();
            attribute(libc::PR_SET_DUMPABLE, 0);
        }),
        Misbehaviour::ClosedDescriptors => child(script, || {
            new_session();
            close_all();
        }),
        Misbehaviour::Disguised => child(script, || {
            new_session();
            disguise(script);
        }),
        Misbehaviour::DoubleFork => reap(orphan(script, || {})),
        Misbehaviour::DoubleForkLeaderExits => {
            orphan(script, || {});
            script.up();
            leave(0);
        }
        Misbehaviour::EmptyEnv => reap(orphan(script, || without_environment(script, role::DEAF))),
        Misbehaviour::EmptyEnvLeaderExits => {
            orphan(script, || without_environment(script, role::DEAF));
            script.up();
            leave(0);
        }
        Misbehaviour::LeavesCgroup => reap(orphan(script, || leave_cgroup(script))),
        Misbehaviour::Namespaces => namespaces(script),
        Misbehaviour::Rabbit => rabbits(script),
        Misbehaviour::RabbitEmptyEnv => {
            reap(started(script, || without_environment(script, role::RABBITS)));
        }
        Misbehaviour::WideTree => wide_tree(script),
        Misbehaviour::ForksDuringKill => {
            started(script, || breed(script));
        }
        Misbehaviour::StoppedMembers => {
            for prepare in [|| {}, new_session] {
                let pid = started(script, || {
                    prepare();
                    block(&[]);
                    script.arm();
                    script.up();
                    stop();
                    script.linger();
                });
                await_stop(pid);
            }
        }
        Misbehaviour::CloneParent => {
            if let Err(error) = fork_with(libc::CLONE_PARENT, || sit(script)) {
                script.impossible(&format!("CLONE_PARENT: {error}"));
            }
        }
        Misbehaviour::VforkLimbo => {
            started(script, || {
                new_session();
                block(&[]);
                script.arm();
                script.up();
                // This process is suspended in the kernel until the other one ends.
                fork_with(libc::CLONE_VFORK, || {
                    new_session();
                    sit(script);
                })
                .ok();
                script.linger();
            });
        }
        Misbehaviour::MainThreadExits => {
            let script = script.clone();
            thread::spawn(move || {
                child(&script, || {});
                script.await_roll(1);
                serve(&script, OnEof::Exit, OnTerm::Die);
            });
            end_this_thread();
        }
        Misbehaviour::ThreadChildren => thread_children(script),
        Misbehaviour::SubreaperChild => {
            started(script, || {
                new_session();
                attribute(libc::PR_SET_CHILD_SUBREAPER, 1);
                reap(orphan(script, || {}));
                reap(orphan(script, || {}));
                sit(script);
            });
        }
        Misbehaviour::NestedSessions => {
            started(script, || {
                new_session();
                started(script, || {
                    new_session();
                    started(script, || {
                        new_session();
                        sit(script);
                    });
                    sit(script);
                });
                sit(script);
            });
        }
        Misbehaviour::ReExecs => {
            started(script, || {
                new_session();
                block(&[]);
                script.up();
                execute_again(script);
            });
        }
        Misbehaviour::TracedMember => traced(script),
    }
    script.await_roll(misbehaviour.members() - 1);
    serve(script, on_eof, on_term)
}

/// Reports and sits, deaf to every signal that can be blocked.
fn sit(script: &Script) -> ! {
    block(&[]);
    script.arm();
    script.up();
    script.linger()
}

/// Forks a process that runs `act`. A machine that cannot fork fails the cell: nobody reports.
fn started(script: &Script, act: impl FnOnce()) -> i32 {
    fork(act).unwrap_or_else(|error| {
        script.note(&format!("failed fork: {error}"));
        -1
    })
}

/// A deaf child that first prepares itself in some way.
fn child(script: &Script, prepare: impl FnOnce()) {
    started(script, || {
        prepare();
        sit(script);
    });
}

/// A deaf daemon: new session, forked twice. Returns the pid in the middle, which exits at once.
fn orphan(script: &Script, prepare: impl FnOnce()) -> i32 {
    started(script, || {
        new_session();
        child(script, prepare);
        leave(0);
    })
}

/// Executes this program again, in another part and with an empty environment.
fn without_environment(script: &Script, role: &str) {
    let error = execute(SELF, &script.argv(role), false);
    script.note(&format!("failed exec: {error}"));
    leave(1);
}

fn execute_again(script: &Script) -> ! {
    pause(Duration::from_millis(3));
    if !script.is_over() {
        let error = execute(SELF, &script.argv(role::REEXEC), true);
        script.note(&format!("failed exec: {error}"));
    }
    leave(0)
}

/// Becomes a shell that waits for a launcher, as an installed `.cmd` or `npx` shim does.
fn become_shell(script: &Script) -> ! {
    script.up();
    // Not the last command of the script, so that no shell replaces itself by it.
    let mut argv: Vec<CString> =
        [c"sh", c"-c", c"\"$@\"; exit $?", c"sh"].map(CStr::to_owned).to_vec();
    argv.extend(script.argv(role::LAUNCHER));
    let error = execute(c"/bin/sh", &argv, true);
    script.note(&format!("failed exec: {error}"));
    leave(1)
}

fn launch(script: &Script) -> ! {
    script.up();
    let pid = started(script, || {
        script.arm();
        script.await_roll(2);
        serve(script, OnEof::Stay, OnTerm::Die);
    });
    reap(pid);
    leave(0)
}

/// Pumps bytes between the host and a leaf, and never lets the leaf see the end of input.
fn middleman(script: &Script) -> ! {
    let (Ok((leaf_in, to_leaf)), Ok((from_leaf, leaf_out))) = (pipe(), pipe()) else { leave(1) };
    started(script, || {
        script.arm();
        duplicate(leaf_in, 0);
        duplicate(leaf_out, 1);
        close(from_leaf);
        // `to_leaf` stays open here too: not even the middleman's end is an end of input.
        serve(script, OnEof::Exit, OnTerm::Die);
    });
    close(leaf_in);
    close(leaf_out);
    script.up();
    let mut input = 0;
    let mut chunk = [0; 8192];
    while !script.is_over() {
        let [from_host, answered] = wait_for([input, from_leaf], Duration::from_millis(500));
        if from_host {
            match read(input, &mut chunk) {
                Some(got) => write_all(to_leaf, &chunk[..got]),
                None => input = -1,
            }
        }
        if answered {
            match read(from_leaf, &mut chunk) {
                Some(got) => write_all(1, &chunk[..got]),
                None => leave(0),
            }
        }
    }
    leave(0)
}

fn namespaces(script: &Script) {
    let middle = started(script, || {
        if let Err(error) = unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) {
            script.impossible(&format!("new user and PID namespace: {error}"));
            leave(0);
        }
        child(script, || {
            new_session();
            child(script, new_session);
        });
    });
    reap(middle);
}

/// Three chains, one at full speed: each link forks its successor and exits.
fn rabbits(script: &Script) {
    for pace in [0, 500, 1000] {
        let pid = started(script, || {
            new_session();
            block(&[]);
            script.up();
            hop(script, Duration::from_micros(pace));
        });
        reap(pid);
    }
}

fn hop(script: &Script, pace: Duration) -> ! {
    for _ in 0..HOPS {
        let mut is_successor = false;
        // SAFETY: this process has one thread; its successor goes on with a copy of everything.
        match unsafe { libc::fork() } {
            // The machine is full; a chain that ended here would end by itself.
            -1 => pause(Duration::from_millis(1)),
            0 => is_successor = true,
            _ => leave(0),
        }
        if is_successor {
            new_session();
            script.arm();
        }
        if !script.pulse() {
            break;
        }
        if !pace.is_zero() {
            pause(pace);
        }
    }
    leave(0)
}

fn wide_tree(script: &Script) {
    for index in 0..200 {
        match index % 4 {
            0 => child(script, || {}),
            1 => child(script, new_session),
            2 => child(script, new_group),
            _ => reap(orphan(script, || {})),
        }
    }
}

/// Forks a little all the time, and without pause once the end has visibly begun. The number of
/// children is bounded, and each leaves after half a minute.
fn breed(script: &Script) -> ! {
    block(&[]);
    script.arm();
    script.up();
    let parent = std::os::unix::process::parent_id();
    let half_minute = now_ns() + 30_000_000_000;
    let short = Script { deadline: script.deadline.min(half_minute), ..script.clone() };
    for number in 0..BROOD {
        started(script, || {
            new_session();
            short.arm();
            if number == 0 {
                short.up();
            }
            short.linger();
        });
        let alarmed =
            is_hung_up(0) || is_signalled() || std::os::unix::process::parent_id() != parent;
        pause(Duration::from_millis(if alarmed { 1 } else { 4 }));
        if !script.pulse() {
            leave(0);
        }
    }
    script.linger()
}

/// Four threads that fork one child each and stay. One after the other, so that no fork happens
/// while another thread is busy.
fn thread_children(script: &Script) {
    for _ in 0..4 {
        let (forked, done) = mpsc::channel();
        let script = script.clone();
        thread::spawn(move || {
            child(&script, new_session);
            forked.send(()).ok();
            loop {
                thread::park();
            }
        });
        done.recv().ok();
    }
}

fn traced(script: &Script) {
    started(script, || {
        new_session();
        block(&[]);
        script.arm();
        let tracee = started(script, || {
            script.arm();
            if let Err(error) = be_traced() {
                script.impossible(&format!("PTRACE_TRACEME: {error}"));
                leave(0);
            }
            script.up();
            stop();
            script.linger();
        });
        await_stop(tracee);
        script.up();
        script.linger();
    });
}

/// Writes another beginning over the command line that others read, up to the token.
fn disguise(script: &Script) {
    rename(c"kworker/u8:3");
    let visible = fs::read("/proc/self/cmdline").unwrap_or_default();
    let token = script.token.as_encoded_bytes();
    let before = visible.windows(token.len()).position(|part| part == token).unwrap_or(0);
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // Field 48 of the manual's count: where the kernel found the arguments at exec.
    let start = after_name.split_whitespace().nth(45).and_then(|field| field.parse().ok());
    let name = b"[kworker/u8:3]";
    if let Some(start) = start.filter(|&start: &usize| start != 0 && before > name.len()) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the kernel says that the arguments begin here; `before` bytes of them precede
        // the token, more than the name has, and nothing in this child reads them any more.
        unsafe {
            std::ptr::write_bytes(at, b' ', before - 1);
            std::ptr::copy_nonoverlapping(name.as_ptr(), at, name.len());
        }
    }
}

fn leave_cgroup(script: &Script) {
    let moved = Mount::find().map(|mount| fs::write(mount.point.join("cgroup.procs"), "0"));
    match moved {
        Some(Ok(())) => {}
        Some(Err(error)) => script.impossible(&format!("leaving the cgroup: {error}")),
        None => script.impossible("no cgroup2 is mounted"),
    }
}
