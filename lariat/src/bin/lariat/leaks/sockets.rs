//! Which socket is at the other end of which: hosts on Node give their servers pairs of sockets, not
//! pipes, and only the kernel's socket diagnosis knows who belongs to whom.

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

/// `SOCK_DIAG_BY_FAMILY`, and the kinds of messages that end a list.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const LIST: u16 = 0x301;
/// `UDIAG_SHOW_PEER`.
const SHOW_PEER: u32 = 4;
/// `UNIX_DIAG_PEER` and `UNIX_DIAG_SHUTDOWN`.
const PEER: u16 = 2;
const SHUTDOWN: u16 = 6;
/// `RCV_SHUTDOWN`: nobody will ever write into it again.
const NO_MORE: u8 = 1;

/// Longer than the kernel's answers.
const BUFFER: usize = 64 << 10;

/// What is at the other end of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Other {
    /// Its inode, while somebody holds it.
    pub(super) peer: Option<u64>,
    /// True if nothing can come from there any more.
    pub(super) is_closed: bool,
}

/// The inodes of TCP sockets on which somebody waits for others, in this network namespace.
pub(super) fn listening() -> HashSet<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let text = tables.map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
    text.lines().filter_map(listens).collect()
}

/// The inode in a line of such a table, if it is of a socket in the state `LISTEN`.
fn listens(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    (words.nth(3)? == "0A").then_some(())?;
    words.nth(5)?.parse().ok()
}

/// Every unix socket of this network namespace, by inode. Empty where the kernel does not tell: then
/// nothing is known of sockets, and nobody is accused because of one.
pub(super) fn all() -> HashMap<u64, Other> {
    ask().unwrap_or_default()
}

fn ask() -> Result<HashMap<u64, Other>, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
    let mut request = Vec::with_capacity(40);
    request.extend(40u32.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(LIST.to_ne_bytes());
    // Number, sender; then family, protocol and two bytes of nothing; then all states, any inode.
    request.extend([0; 8]);
    request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend(SHOW_PEER.to_ne_bytes());
    request.extend([0; 8]);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut sockets = HashMap::new();
    let mut buffer = vec![0u8; BUFFER];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if length == 0 || read(&buffer[..length], &mut sockets) {
            return Ok(sockets);
        }
    }
}

/// Reads the messages of one answer. True after the last.
fn read(mut answer: &[u8], sockets: &mut HashMap<u64, Other>) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(answer, 0), u16_at(answer, 4)) {
        if matches!(kind, ERROR | DONE) {
            return true;
        }
        let Some(message) = answer.get(16..length as usize) else { return true };
        if let Some((inode, other)) = socket(message) {
            sockets.insert(inode, other);
        }
        answer = answer.get(padded(length as usize)..).unwrap_or_default();
    }
    false
}

/// One socket: its inode and, among its attributes, the two that matter.
fn socket(message: &[u8]) -> Option<(u64, Other)> {
    let inode = u32_at(message, 4)?;
    let mut other = Other::default();
    let mut rest = message.get(16..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let value = rest.get(4..length as usize)?;
        match kind {
            PEER => other.peer = u32_at(value, 0).filter(|peer| *peer != 0).map(u64::from),
            SHUTDOWN => other.is_closed = value.first().is_some_and(|bits| bits & NO_MORE != 0),
            _ => {}
        }
        rest = rest.get(padded(length as usize)..).unwrap_or_default();
    }
    Some((inode.into(), other))
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn inode(stream: &UnixStream) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap();
        let link = link.to_str().unwrap().to_string();
        link.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
    }

    #[test]
    fn who_waits_for_others_is_known_and_who_calls_them_is_not() {
        use std::os::fd::AsRawFd;
        let inode = |fd: i32| {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            let link =
                link.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
            link.parse::<u64>().unwrap()
        };
        let waits = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let calls = std::net::TcpStream::connect(waits.local_addr().unwrap()).unwrap();
        let found = listening();
        assert!(found.contains(&inode(waits.as_raw_fd())));
        assert!(!found.contains(&inode(calls.as_raw_fd())));
    }

    #[test]
    fn a_pair_knows_each_other_until_one_goes() {
        let (one, two) = UnixStream::pair().unwrap();
        let (a, b) = (inode(&one), inode(&two));
        let known = all();
        assert_eq!(known[&a], Other { peer: Some(b), is_closed: false });
        assert_eq!(known[&b], Other { peer: Some(a), is_closed: false });
        two.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(all()[&a], Other { peer: Some(b), is_closed: true });
        drop(two);
        assert_eq!(all()[&a], Other { peer: None, is_closed: true });
    }

    #[test]
    fn nonsense_is_no_socket_and_no_loop() {
        for length in 0..64u8 {
            let bytes: Vec<u8> = (0..length).map(|n| n.wrapping_mul(37) % 5).collect();
            read(&bytes, &mut HashMap::new());
            assert!(socket(&bytes).is_none_or(|(_, other)| other.peer != Some(0)));
        }
        // A length of nothing.
        assert!(read(&[0; 64], &mut HashMap::new()));
    }
}
