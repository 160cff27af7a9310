//! Just enough JSON to find a member of an object, since the kit has no JSON library.

/// The raw text of a member's value, at the top level of an object.
pub(super) fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let bytes = object.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at)?;
                let colon = skip_blanks(bytes, end);
                if depth == 1 && bytes.get(colon) == Some(&b':') {
                    let value = skip_blanks(bytes, colon + 1);
                    if &object[at + 1..end - 1] == key {
                        return object.get(value..value_end(bytes, value)?);
                    }
                    at = value_end(bytes, value)?;
                } else {
                    at = end;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += 1;
    }
    None
}

fn skip_blanks(bytes: &[u8], from: usize) -> usize {
    let blanks = bytes[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    from + blanks
}

/// Where the string that opens at `open` ends, its closing quote included.
fn string_end(bytes: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Where the value that begins at `from` ends.
fn value_end(bytes: &[u8], from: usize) -> Option<usize> {
    let (mut at, mut depth) = (from, 0_usize);
    loop {
        match *bytes.get(at)? {
            b'"' => {
                at = string_end(bytes, at)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            byte if depth == 0 && (byte == b',' || byte.is_ascii_whitespace()) => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::member;

    #[test]
    fn finds_members_of_the_top_level_only() {
        let line = r#"{"params":{"id":9,"name":"a\"b}"},"x":[{"method":"no"}], "method" : "ping","id": "7" }"#;
        assert_eq!(member(line, "id"), Some(r#""7""#));
        assert_eq!(member(line, "method"), Some(r#""ping""#));
        let params = member(line, "params").expect("an object");
        assert_eq!(member(params, "id"), Some("9"));
        assert_eq!(member(line, "absent"), None);
    }

    #[test]
    fn a_string_that_looks_like_a_key_is_not_one() {
        assert_eq!(member(r#"{"a":"id","b":-1.5e3}"#, "id"), None);
        assert_eq!(member(r#"{"a":"id","b":-1.5e3}"#, "b"), Some("-1.5e3"));
        assert_eq!(member(r#"{"a":"#, "a"), None);
    }
}
