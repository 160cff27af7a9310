//! What `KERN_PROCARGS2` tells of a process: its arguments and its environment, as they were at
//! exec. Bytes in, values out.
//!
//! ```text
//! argc (4 bytes) │ path of the executable, 0 │ 0 … │ argc × (argument, 0) │ (NAME=value, 0) … │ 0 │ …
//! ```

/// The environment in such a buffer, entry by entry. Empty where the kernel left it out, which it
/// does for programs that are part of the system.
pub(crate) fn environment(buffer: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (arguments, words) = split(buffer).unwrap_or((0, &[]));
    // An environment ends with an empty entry; behind it is what only the loader reads.
    words.split(|byte| *byte == 0).skip(arguments).take_while(|entry| !entry.is_empty())
}

/// How many arguments there are, and the bytes from the first of them on.
fn split(buffer: &[u8]) -> Option<(usize, &[u8])> {
    let (count, rest) = buffer.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    let path = rest.iter().position(|byte| *byte == 0)?;
    let rest = &rest[path..];
    let padding = rest.iter().position(|byte| *byte != 0)?;
    Some((count, &rest[padding..]))
}

/// True if the environment sets this variable.
pub(crate) fn sets(buffer: &[u8], name: &[u8]) -> bool {
    environment(buffer)
        .any(|entry| entry.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(count: i32, text: &str) -> Vec<u8> {
        [&count.to_ne_bytes(), text.as_bytes()].concat()
    }

    fn entries(buffer: &[u8]) -> Vec<&str> {
        environment(buffer).map(|entry| std::str::from_utf8(entry).unwrap()).collect()
    }

    #[test]
    fn arguments_are_told_from_the_environment() {
        let text = "/bin/cat\0\0\0\0cat\0MARK=1\0PATH=/bin\0MARK_2=1\0\0executable_path=/bin/cat\0";
        let sample = buffer(2, text);
        assert_eq!(entries(&sample), ["PATH=/bin", "MARK_2=1"]);
        assert!(sets(&sample, b"PATH") && sets(&sample, b"MARK_2"));
        // An argument, a prefix of a name, and the loader's words are no variables.
        for name in ["MARK", "PAT", "executable_path", ""] {
            assert!(!sets(&sample, name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn an_empty_argument_is_one() {
        let sample = buffer(3, "/bin/cat\0\0cat\0\0-\0A=1\0\0");
        assert_eq!(entries(&sample), ["A=1"]);
    }

    #[test]
    fn an_environment_that_was_left_out_is_empty() {
        assert_eq!(entries(&buffer(2, "/bin/sleep\0\0\0sleep\x0060\0")), [""; 0]);
        assert_eq!(entries(&buffer(2, "/bin/sleep\0\0\0sleep\x0060\0\0\0\0")), [""; 0]);
    }

    #[test]
    fn what_cannot_be_is_empty_and_never_panics() {
        assert_eq!(entries(&buffer(-1, "/a\0a\0A=1\0")), [""; 0]);
        assert_eq!(entries(&buffer(i32::MAX, "/a\0a\0A=1\0")), [""; 0]);
        assert_eq!(entries(&buffer(1, "no end")), [""; 0]);
        let whole = buffer(1, "/a\0\0a\0A=1\0\0x");
        for end in 0..whole.len() {
            for entry in entries(&whole[..end]) {
                assert!("A=1".starts_with(entry), "{entry}");
            }
        }
    }
}
