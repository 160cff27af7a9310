//! What `KERN_PROCARGS2` tells of a process: its arguments and its environment, as they were at
//! exec. Bytes in, values out.
//!
//! ```text
//! argc (4 bytes) │ path of the executable, 0 │ 0 … │ argc × (argument, 0) │ (NAME=value, 0) … │ 0 │ …
//! ```

/// True if this variable is set, or an argument says the same. The two are not told apart: a program that writes
/// a title over its arguments leaves zeros and half an environment there, and a name is looked for that nobody
/// else has.
pub(crate) fn sets(buffer: &[u8], name: &[u8]) -> bool {
    let is_it = |entry: &[u8]| entry.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"="));
    words(buffer).unwrap_or_default().split(|byte| *byte == 0).any(is_it)
}

/// The bytes behind the path of the executable.
fn words(buffer: &[u8]) -> Option<&[u8]> {
    let (_count, rest) = buffer.split_first_chunk::<4>()?;
    let path = rest.iter().position(|byte| *byte == 0)?;
    Some(&rest[path..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(count: i32, text: &str) -> Vec<u8> {
        [&count.to_ne_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let sample = buffer(1, "/bin/MARK_3=1\0\0\0\0cat\0PATH=/bin\0MARK_2=1\0\0");
        assert!(sets(&sample, b"PATH") && sets(&sample, b"MARK_2"));
        // A prefix or an end of a name, a value, and the path of the program are no variables.
        for name in ["MARK", "ARK_2", "PAT", "/bin", "MARK_3", "/bin/MARK_3", "cat"] {
            assert!(!sets(&sample, name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_title_over_the_arguments_hides_nothing_behind_them() {
        // As libuv writes one: over all arguments, and zeros to their end.
        let sample = buffer(3, "/bin/node\0\0npm\0\0\0\0\0\0\0\0\0MARK=1\0\0");
        assert!(sets(&sample, b"MARK"));
        let sample = buffer(3, "/bin/node\0\0npm install everything there is\0MARK=1\0\0");
        assert!(sets(&sample, b"MARK"));
    }

    #[test]
    fn what_cannot_be_has_nothing_and_never_panics() {
        for sample in [buffer(-1, "/a\0a"), buffer(1, "no end"), Vec::new(), vec![1, 2]] {
            assert!(!sets(&sample, b"A"));
        }
        let whole = buffer(1, "/a\0\0a\0A=1\0\0x");
        for end in 0..whole.len() {
            assert_eq!(sets(&whole[..end], b"A"), end >= whole.len() - 4, "{end}");
        }
    }
}
