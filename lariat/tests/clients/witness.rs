//! The witness: who is alive, seen in `/proc` and nowhere else.

use std::fs::{self, File};
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use super::PROMISE;

/// Every process whose arguments or environment hold the token.
pub(crate) fn holders(token: &str) -> Vec<(u32, String)> {
    let holds = |bytes: &[u8]| bytes.windows(token.len()).any(|part| part == token.as_bytes());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter_map(|pid: u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let vars = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let shown = String::from_utf8_lossy(&words).replace('\0', " ");
            (holds(&words) || holds(&vars)).then_some((pid, shown))
        })
        .collect()
}

/// Waits until nobody holds the token, twice in a row: a process is invisible for an instant
/// while it becomes another program. Returns who is left when the time is over.
pub(crate) fn gone(token: &str, limit: Duration) -> Vec<(u32, String)> {
    let (deadline, mut empty) = (Instant::now() + limit, 0);
    loop {
        let left = holders(token);
        empty = if left.is_empty() { empty + 1 } else { 0 };
        if empty == 2 || Instant::now() > deadline {
            return left;
        }
        pause(Duration::from_millis(20));
    }
}

/// Ends what this test started and could not end otherwise: bare servers outlive their clients.
pub(crate) fn sweep(token: &str) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    for (pid, _) in holders(token) {
        let pid = Pid::from_raw(pid as i32).expect("a pid");
        // Held first, then looked at again: a number may belong to somebody else by now. One that
        // left by itself meanwhile is what we want.
        if let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
            && holders(token).iter().any(|(other, _)| *other as i32 == pid.as_raw_pid())
        {
            pidfd_send_signal(&held, Signal::KILL).ok();
        }
    }
    gone(token, PROMISE);
}

/// Waits until the condition holds. Gives false when the time is over.
pub(crate) fn wait_until(
    limit: Duration,
    mut done: impl FnMut() -> io::Result<bool>,
) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    while !done()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        pause(Duration::from_millis(10));
    }
    Ok(true)
}

#[expect(clippy::disallowed_methods, reason = "the only place that lets time pass")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// A word that nothing else on this machine says.
pub(crate) fn token() -> String {
    let bytes: Vec<u8> = File::open("/dev/urandom")
        .and_then(|mut file| {
            let mut bytes = vec![0; 12];
            file.read_exact(&mut bytes).map(|()| bytes)
        })
        .expect("random bytes");
    bytes.iter().fold("lariat-clients-".to_owned(), |word, byte| format!("{word}{byte:02x}"))
}
