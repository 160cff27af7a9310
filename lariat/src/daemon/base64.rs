//! Bytes from base64, strictly: what does not come out the same again is none.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// With `+` and `/`, in whole groups of four with their padding.
pub(super) fn standard(text: &str) -> Option<Vec<u8>> {
    let bare = text.trim_end_matches('=');
    let padding = text.len() - bare.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    decode(bare, |byte| STANDARD.iter().position(|known| *known == byte))
}

/// With `-` and `_`, and no padding.
pub(super) fn url(text: &str) -> Option<Vec<u8>> {
    decode(text, |byte| {
        let byte = match byte {
            b'-' => b'+',
            b'_' => b'/',
            b'+' | b'/' => return None,
            byte => byte,
        };
        STANDARD.iter().position(|known| *known == byte)
    })
}

fn decode(text: &str, value: impl Fn(u8) -> Option<usize>) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() * 3 / 4), 0u32, 0);
    for byte in text.bytes() {
        bits = bits << 6 | value(byte)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // Six bits are no byte, and what is left over is nothing.
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_to_write_each() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("IHBhZGRlZCA=", b" padded "),
            ("+/+/", b"\xfb\xff\xbf"),
        ] {
            assert_eq!(standard(text).as_deref(), Some(bytes), "{text}");
            let bare = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
            assert_eq!(url(&bare).as_deref(), Some(bytes), "{bare}");
        }
        for bad in ["Z", "Zg", "Zg=", "Zh==", "Zm9", "Z===", "====", "Zg==Zg==", "Zm 9v", "Zm9v\n"]
        {
            assert_eq!(standard(bad), None, "{bad}");
        }
        for bad in ["Z", "Zh", "Zg==", "+/+/", "Zm9v\n"] {
            assert_eq!(url(bad), None, "{bad}");
        }
    }
}
