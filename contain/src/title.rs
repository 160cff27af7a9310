//! What a pipe of Windows is called, and who may come to it, as text.

/// What programs of a user that were made an administrator's have behind their word: what they offer each
/// other is not for those that were not.
const ELEVATED: &str = "-elevated";

/// The name of the pipe that a user has for this word and place. A place is a directory: written in
/// another case it is the same one.
pub(crate) fn name(word: &str, user: &str, place: &str, is_elevated: bool) -> String {
    // FNV-1a: the same directory must have the same name in every version.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let place = place.replace('/', r"\").to_lowercase();
    let place = place.trim_end_matches('\\');
    let hash = place.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let rank = if is_elevated { ELEVATED } else { "" };
    format!(r"\\.\pipe\{word}{rank}-{user}-{hash:016x}")
}

/// What lets this user in and nobody else. It is the user's own as well: an owner may change who is
/// let in, and the usual one for an administrator is all administrators.
pub(crate) fn descriptor(user: &str, is_elevated: bool) -> String {
    // Neither read nor written by what is lower.
    let label = if is_elevated { "S:(ML;;NRNW;;;HI)" } else { "" };
    format!("O:{user}D:P(A;;FA;;;{user}){label}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_name_however_it_is_written() {
        let called = |place| name("lariat", "S-1-5-21-1-2-3-1001", place, false);
        let usual = called(r"C:\Users\Ann\AppData\Local\lariat");
        assert!(usual.starts_with(r"\\.\pipe\lariat-S-1-5-21-1-2-3-1001-"), "{usual}");
        assert!(usual.len() < 256, "as long as a name may be: {usual}");
        assert_eq!(usual, called("c:/users/ANN/appdata/local/lariat/"));
        assert_ne!(usual, called(r"C:\Users\Ann\AppData\Local\lariat2"));
        assert_ne!(
            usual,
            name("lariat", "S-1-5-21-1-2-3-1002", r"C:\Users\Ann\AppData\Local\lariat", false)
        );
        // The same in every version.
        assert!(name("a", "b", "", false).ends_with("-cbf29ce484222325"));
    }

    #[test]
    fn one_user_is_let_in_and_inherits_nothing_from_others() {
        let text = descriptor("S-1-5-21-9", false);
        assert_eq!(text, "O:S-1-5-21-9D:P(A;;FA;;;S-1-5-21-9)");
        assert_eq!(text.matches('(').count(), 1);
    }

    #[test]
    fn an_administrators_programs_are_among_themselves() {
        let text = descriptor("S-1-5-21-9", true);
        assert_eq!(text, "O:S-1-5-21-9D:P(A;;FA;;;S-1-5-21-9)S:(ML;;NRNW;;;HI)");
        assert_ne!(name("lariat", "b", "c", true), name("lariat", "b", "c", false));
    }
}
