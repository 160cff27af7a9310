//! A command line for Windows, where a program gets one text and takes it apart by itself.
//!
//! Most take it apart by the rules of Microsoft's C runtime ([`plain`]). A `.cmd` or `.bat` file is
//! run by `cmd.exe`, which has rules of its own and reads the line first ([`script`]): there, an
//! argument that is quoted for the one and not for the other can start another program. What
//! cannot be said to both is refused.
//!
//! Pure: units of UTF-16 in, units of UTF-16 out, without the zero at the end.

use std::fmt;

/// The longest command line of a process, zero included.
const LONGEST: usize = 32_767;
/// The longest line that `cmd.exe` reads.
const LONGEST_SCRIPT: usize = 8_191;
/// The longest path of a file that `cmd.exe` finds, zero included.
const LONGEST_PATH: usize = 260;

/// Besides letters and digits, what means nothing to `cmd.exe` and needs no quotes.
const HARMLESS: &str = r"#$*+-./:?@\_";
/// A percent sign after `cmd.exe` has read it: the second and third enclose a variable that is cut
/// down to nothing.
const PERCENT: &str = "%%cd:~,%";

/// Why there is no command line that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unquotable {
    /// A zero would end the line.
    Zero,
    /// A quotation mark in the path of a program, which no file has.
    Quotation,
    /// The end of a line would end the command, and begin another.
    Newline,
    /// It is longer than this.
    TooLong(usize),
    /// The path of the script is longer than this.
    PathTooLong(usize),
}

impl fmt::Display for Unquotable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unquotable::Zero => f.write_str("a zero cannot be part of a command line"),
            Unquotable::Quotation => f.write_str("no program has a quotation mark in its path"),
            Unquotable::Newline => {
                f.write_str("a line break cannot be passed to a .cmd or .bat file safely")
            }
            Unquotable::TooLong(limit) => {
                write!(f, "the command line is longer than {limit} characters")
            }
            Unquotable::PathTooLong(limit) => {
                write!(f, "the path of a .cmd or .bat file is longer than {limit} characters")
            }
        }
    }
}

impl std::error::Error for Unquotable {}

/// The command line of a program that reads it by the rules of the C runtime.
pub(crate) fn plain(program: &[u16], args: &[Vec<u16>]) -> Result<Vec<u16>, Unquotable> {
    // The first word has no escapes: it ends at the next quotation mark.
    if program.contains(&unit('"')) {
        return Err(Unquotable::Quotation);
    }
    let mut line = vec![unit('"')];
    line.extend(program);
    line.push(unit('"'));
    for arg in args {
        line.push(unit(' '));
        let apart = |u: &u16| [unit(' '), unit('\t'), unit('\n'), 0x0b, unit('"')].contains(u);
        if arg.is_empty() || arg.iter().any(apart) {
            enclose(&mut line, arg, |line, _| line.extend(units("\\\"")), &[unit('"')]);
        } else {
            line.extend(arg);
        }
    }
    checked(line, LONGEST)
}

/// The command line by which `cmd.exe` at `shell` runs a script.
pub(crate) fn script(
    shell: &[u16],
    script: &[u16],
    args: &[Vec<u16>],
) -> Result<Vec<u16>, Unquotable> {
    if script.len() >= LONGEST_PATH {
        return Err(Unquotable::PathTooLong(LONGEST_PATH - 1));
    }
    let breaks = |word: &[u16]| word.iter().any(|u| [unit('\r'), unit('\n')].contains(u));
    if breaks(script) || args.iter().any(|arg| breaks(arg)) {
        return Err(Unquotable::Newline);
    }
    if script.contains(&unit('"')) {
        return Err(Unquotable::Quotation);
    }
    let mut line = plain(shell, &[])?;
    // Extensions on, for the percent sign; no expansion of exclamation marks; nothing run first; and
    // of all that follows only the first and the last quotation mark are taken away.
    line.extend(units(" /e:ON /v:OFF /d /s /c \""));
    enclose_for_shell(&mut line, script);
    for arg in args {
        line.push(unit(' '));
        let harmless = |u: &u16| {
            let ascii = u8::try_from(*u).ok().map(char::from);
            ascii.is_some_and(|c| c.is_ascii_alphanumeric() || HARMLESS.contains(c))
        };
        let ends_in_backslash = arg.last() == Some(&unit('\\'));
        if !arg.is_empty() && !ends_in_backslash && arg.iter().all(harmless) {
            line.extend(arg);
        } else {
            enclose_for_shell(&mut line, arg);
        }
    }
    line.push(unit('"'));
    checked(line, LONGEST_SCRIPT)
}

/// In quotation marks both for `cmd.exe` and for the program that the script hands it to. A doubled
/// mark is one mark to the program, and to `cmd.exe` it leaves and enters the quotation at once.
fn enclose_for_shell(line: &mut Vec<u16>, word: &[u16]) {
    let special = [unit('"'), unit('%')];
    enclose(
        line,
        word,
        |line, u| line.extend(units(if u == unit('%') { PERCENT } else { "\"\"" })),
        &special,
    );
}

/// Puts a word in quotation marks. Backslashes count double before a mark, and only there.
fn enclose(
    line: &mut Vec<u16>,
    word: &[u16],
    mut escape: impl FnMut(&mut Vec<u16>, u16),
    special: &[u16],
) {
    line.push(unit('"'));
    let mut backslashes = 0;
    for u in word {
        if *u == unit('"') {
            line.extend(std::iter::repeat_n(unit('\\'), backslashes));
        }
        backslashes = if *u == unit('\\') { backslashes + 1 } else { 0 };
        if special.contains(u) { escape(line, *u) } else { line.push(*u) }
    }
    line.extend(std::iter::repeat_n(unit('\\'), backslashes));
    line.push(unit('"'));
}

fn checked(line: Vec<u16>, longest: usize) -> Result<Vec<u16>, Unquotable> {
    if line.contains(&0) {
        return Err(Unquotable::Zero);
    }
    if line.len() >= longest { Err(Unquotable::TooLong(longest - 1)) } else { Ok(line) }
}

/// An ASCII character as a unit.
fn unit(c: char) -> u16 {
    c as u16
}

fn units(text: &str) -> impl Iterator<Item = u16> {
    text.encode_utf16()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        units(text).collect()
    }

    fn words(args: &[&str]) -> Vec<Vec<u16>> {
        args.iter().map(|arg| wide(arg)).collect()
    }

    fn plainly(args: &[&str]) -> String {
        String::from_utf16(&plain(&wide(r"C:\a b\x.exe"), &words(args)).unwrap()).unwrap()
    }

    fn scripted(args: &[&str]) -> String {
        let line = script(&wide(r"C:\w\cmd.exe"), &wide(r"C:\a b\npx.cmd"), &words(args)).unwrap();
        String::from_utf16(&line).unwrap()
    }

    /// Takes a line apart as the C runtime does, from its documented rules.
    fn apart(line: &str) -> Vec<String> {
        let (mut found, mut word, mut open, mut quoted) = (Vec::new(), String::new(), false, false);
        let mut rest = line.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '\\' => {
                    let mut count = 1;
                    while rest.next_if_eq(&'\\').is_some() {
                        count += 1;
                    }
                    open = true;
                    if rest.peek() == Some(&'"') {
                        word.push_str(&"\\".repeat(count / 2));
                        if count % 2 == 1 {
                            word.push('"');
                            rest.next();
                        }
                    } else {
                        word.push_str(&"\\".repeat(count));
                    }
                }
                '"' if quoted && rest.next_if_eq(&'"').is_some() => word.push('"'),
                '"' => (open, quoted) = (true, !quoted),
                ' ' | '\t' if !quoted => {
                    if open {
                        found.push(std::mem::take(&mut word));
                    }
                    open = false;
                }
                c => {
                    word.push(c);
                    open = true;
                }
            }
        }
        found.extend(open.then_some(word));
        found
    }

    /// What `cmd.exe` makes of the line behind `/c`: the outer marks go, the percent signs are
    /// read, and nothing that is not in quotation marks may be special.
    fn through_shell(line: &str) -> String {
        let (_, inner) = line.split_once(" /c \"").unwrap();
        let inner = inner.strip_suffix('"').unwrap().replace(PERCENT, "\u{1}");
        assert!(!inner.contains('%'), "a variable would be read in {inner}");
        let mut quoted = false;
        for c in inner.chars() {
            quoted ^= c == '"';
            assert!(quoted || !"&|<>^()!\r\n".contains(c), "{c} is bare in {inner}");
        }
        assert!(!quoted, "a quotation never ends in {inner}");
        inner.replace('\u{1}', "%")
    }

    const ARGUMENTS: &[&str] = &[
        "",
        "-y",
        "a b",
        "a\tb",
        r#"say "hi""#,
        r"C:\dir\",
        r"C:\a dir\",
        r#"back\"slash"#,
        r#"two\\"marks""#,
        r#"""#,
        r"\",
        r"\\",
        "@scope/pkg@1.2",
        "100%",
        "%PATH%",
        "%",
        "a&calc",
        r#"a"&calc"#,
        r#"" & calc & ""#,
        "x|y<z>w^v(u)",
        "!delayed!",
        "k=v,w;x",
        "naïve ünïcode 日本 🤠",
    ];

    #[test]
    fn the_runtime_reads_what_was_meant() {
        let mut expected = vec![r"C:\a b\x.exe".to_owned()];
        expected.extend(ARGUMENTS.iter().map(|a| (*a).to_owned()));
        assert_eq!(apart(&plainly(ARGUMENTS)), expected);
        for one in ARGUMENTS {
            assert_eq!(apart(&plainly(&[one, "last"]))[1..], [*one, "last"], "{one}");
        }
    }

    #[test]
    fn what_needs_no_quotes_gets_none() {
        assert_eq!(plainly(&["-y", r"C:\x\", "a&b"]), r#""C:\a b\x.exe" -y C:\x\ a&b"#);
        assert_eq!(plainly(&["a b\\"]), r#""C:\a b\x.exe" "a b\\""#);
    }

    #[test]
    fn a_script_reads_what_was_meant_and_starts_nothing_else() {
        for one in ARGUMENTS {
            let line = through_shell(&scripted(&[one, "last"]));
            assert_eq!(apart(&line), [r"C:\a b\npx.cmd", one, "last"], "{one}");
        }
    }

    #[test]
    fn a_script_is_run_by_the_shell_without_its_habits() {
        assert_eq!(
            scripted(&["-y", "@scope/pkg"]),
            r#""C:\w\cmd.exe" /e:ON /v:OFF /d /s /c ""C:\a b\npx.cmd" -y @scope/pkg""#
        );
        assert_eq!(
            scripted(&["50%"]),
            r#""C:\w\cmd.exe" /e:ON /v:OFF /d /s /c ""C:\a b\npx.cmd" "50%%cd:~,%"""#
        );
    }

    #[test]
    fn what_cannot_be_said_safely_is_refused() {
        let (shell, npx) = (wide("cmd.exe"), wide("npx.cmd"));
        let said = |arg: &str| script(&shell, &npx, &words(&[arg]));
        assert_eq!(said("a\nb"), Err(Unquotable::Newline));
        assert_eq!(said("a\rb"), Err(Unquotable::Newline));
        assert_eq!(said("a\0b"), Err(Unquotable::Zero));
        assert_eq!(said(&"x".repeat(8200)), Err(Unquotable::TooLong(8190)));
        let far = wide(&format!("C:\\{}.cmd", "x".repeat(260)));
        assert_eq!(script(&shell, &far, &[]), Err(Unquotable::PathTooLong(259)));
        assert_eq!(plain(&npx, &words(&["a\0b"])), Err(Unquotable::Zero));
        assert_eq!(plain(&wide("a\"b"), &[]), Err(Unquotable::Quotation));
        assert_eq!(script(&shell, &wide("a\"b.cmd"), &[]), Err(Unquotable::Quotation));
        assert_eq!(plain(&npx, &words(&[&"x".repeat(33_000)])), Err(Unquotable::TooLong(32_766)));
        assert!(plain(&npx, &words(&["a\nb"])).is_ok(), "only a shell minds");
        assert!(said(&"x".repeat(8000)).is_ok());
    }
}
