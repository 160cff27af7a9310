//! Which file a command's name means on Windows, as hosts have it: `npx` is `npx.cmd`.
//!
//! A bare name is looked for in `PATH`, in each directory with the endings of `PATHEXT` in their
//! order. Only endings that can be executed count: `.com` and `.exe` by themselves, `.bat` and `.cmd`
//! through `cmd.exe`. A file without an ending is not found this way: the script for Unix shells
//! that lies beside `npx.cmd` is none of ours. The working directory is not searched: a server must
//! not be replaced by a file that lies where the host happens to be.
//!
//! Pure: units of UTF-16 in and out, and a question whether a file is there.

/// Where to look.
#[derive(Debug)]
pub(crate) struct Search<'a> {
    /// What `PATH` says to the command.
    pub(crate) path: &'a [u16],
    /// What `PATHEXT` says to the command.
    pub(crate) extensions: Option<&'a [u16]>,
    /// The directory in which the command will be, whole.
    pub(crate) directory: &'a [u16],
}

/// A file that was found, by its whole path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The system can execute it.
    Program(Vec<u16>),
    /// `cmd.exe` can.
    Script(Vec<u16>),
}

/// If nobody says otherwise.
const EXTENSIONS: &str = ".COM;.EXE;.BAT;.CMD";
/// The longest path, zero included, that needs no prefix.
const LONGEST: usize = 260;

/// Finds the file that a command's name means.
pub(crate) fn resolve(
    name: &[u16],
    search: &Search<'_>,
    mut is_file: impl FnMut(&[u16]) -> bool,
) -> Option<Found> {
    // The system takes dots and spaces at the end away; so `x.bat .` is a script all the same.
    let end = name.iter().rposition(|u| !is(*u, ". "))? + 1;
    let name = &name[..end];
    let extensions = runnable(search.extensions);
    let explicit = name.iter().any(|u| is(*u, r"\/")) || name.get(1).is_some_and(|u| is(*u, ":"));
    let directories = if explicit { vec![Vec::new()] } else { directories(search.path) };
    for directory in directories {
        let base = join(search.directory, &directory, name);
        let mut candidates = Vec::new();
        if kind(&base).is_some() {
            candidates.push(base.clone());
        }
        candidates.extend(extensions.iter().map(|ending| [base.as_slice(), ending].concat()));
        if explicit {
            // Whoever names a file without an ending means that file.
            candidates.push(base);
        }
        if let Some(path) = candidates.into_iter().map(lengthened).find(|path| is_file(path)) {
            let script = kind(&path).is_some_and(|runs_itself| !runs_itself);
            return Some(if script { Found::Script(path) } else { Found::Program(path) });
        }
    }
    None
}

/// Whether a file runs by itself (true) or through `cmd.exe` (false), by its ending.
fn kind(path: &[u16]) -> Option<bool> {
    let dot = path.iter().rposition(|u| is(*u, r".\/")).filter(|at| is(path[*at], "."))?;
    let ending = String::from_utf16_lossy(&path[dot..]).to_ascii_lowercase();
    match ending.as_str() {
        ".com" | ".exe" => Some(true),
        ".bat" | ".cmd" => Some(false),
        _ => None,
    }
}

fn runnable(extensions: Option<&[u16]>) -> Vec<Vec<u16>> {
    let default: Vec<u16> = EXTENSIONS.encode_utf16().collect();
    let extensions = extensions.filter(|text| !text.is_empty()).unwrap_or(&default);
    let endings = extensions.split(|u| is(*u, ";"));
    endings.filter(|ending| kind(ending).is_some()).map(<[u16]>::to_vec).collect()
}

/// The directories of `PATH`. A semicolon in quotation marks is part of a name.
fn directories(path: &[u16]) -> Vec<Vec<u16>> {
    let (mut found, mut quoted) = (vec![Vec::new()], false);
    for u in path {
        match u {
            u if is(*u, "\"") => quoted = !quoted,
            u if is(*u, ";") && !quoted => found.push(Vec::new()),
            u => found.last_mut().into_iter().for_each(|last| last.push(*u)),
        }
    }
    found.retain(|directory| !directory.is_empty());
    found
}

/// `name` in `directory`, each seen from the one before unless it is a whole path.
fn join(base: &[u16], directory: &[u16], name: &[u16]) -> Vec<u16> {
    let mut path = base.to_vec();
    for part in [directory, name].into_iter().filter(|part| !part.is_empty()) {
        let rooted = is(part[0], r"\/") || part.get(1).is_some_and(|u| is(*u, ":"));
        if rooted {
            path.clear();
        } else if !path.last().is_none_or(|u| is(*u, r"\/")) {
            path.push(u16::from(b'\\'));
        }
        path.extend(part);
    }
    path
}

/// With the prefix that lifts the limit on a path's length, where that is needed. Behind it the
/// system takes every word literally, so `.`, `..` and `/` are dealt with here.
fn lengthened(path: Vec<u16>) -> Vec<u16> {
    let slash = u16::from(b'\\');
    let drive =
        path.get(1).is_some_and(|u| is(*u, ":")) && path.get(2).is_some_and(|u| is(*u, r"\/"));
    let share = path.len() > 2 && is(path[0], r"\/") && is(path[1], r"\/") && !is(path[2], "?.");
    if path.len() < LONGEST || !(drive || share) {
        return path;
    }
    let (prefix, rest) = if drive { (r"\\?\", &path[..]) } else { (r"\\?\UNC\", &path[2..]) };
    let mut words: Vec<&[u16]> = Vec::new();
    for word in rest.split(|u| is(*u, r"\/")) {
        match String::from_utf16_lossy(word).as_str() {
            "" | "." => {}
            // The drive, or the machine and its share, stay.
            ".." if words.len() > if drive { 1 } else { 2 } => drop(words.pop()),
            ".." => {}
            _ => words.push(word),
        }
    }
    prefix.encode_utf16().chain(words.join(&slash)).collect()
}

/// Whether a unit is one of these ASCII characters.
fn is(unit: u16, any_of: &str) -> bool {
    u8::try_from(unit).is_ok_and(|byte| any_of.as_bytes().contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    fn find_with(name: &str, path: &str, extensions: &str, files: &[&str]) -> Option<String> {
        let (path, extensions, directory) = (wide(path), wide(extensions), wide(r"C:\work"));
        let search = Search { path: &path, extensions: Some(&extensions), directory: &directory };
        let is_file = |path: &[u16]| {
            let path = String::from_utf16(path).unwrap();
            files.iter().any(|file| file.eq_ignore_ascii_case(&path))
        };
        resolve(&wide(name), &search, is_file).map(|found| match found {
            Found::Program(path) => format!("run {}", String::from_utf16(&path).unwrap()),
            Found::Script(path) => format!("cmd {}", String::from_utf16(&path).unwrap()),
        })
    }

    fn find(name: &str, files: &[&str]) -> Option<String> {
        find_with(name, r#"C:\Program Files\nodejs;"D:\odd;name";E:\b\"#, "", files)
    }

    #[test]
    fn a_shim_is_found_by_its_bare_name() {
        let npm = [r"C:\Program Files\nodejs\npx", r"C:\Program Files\nodejs\npx.cmd"];
        assert_eq!(find("npx", &npm).as_deref(), Some(r"cmd C:\Program Files\nodejs\npx.CMD"));
        assert_eq!(find("npx.cmd", &npm).as_deref(), Some(r"cmd C:\Program Files\nodejs\npx.cmd"));
        assert_eq!(find("npx", &npm[..1]), None, "a script for other shells");
    }

    #[test]
    fn a_program_comes_before_a_script_in_one_directory_only() {
        let uv = [r"E:\b\uvx.exe", r"E:\b\uvx.cmd"];
        assert_eq!(find("uvx", &uv).as_deref(), Some(r"run E:\b\uvx.EXE"));
        let spread = [r"E:\b\uvx.exe", r"D:\odd;name\uvx.bat"];
        assert_eq!(find("uvx", &spread).as_deref(), Some(r"cmd D:\odd;name\uvx.BAT"));
        let reversed = find_with("uvx", r"E:\b", ".CMD;.EXE", &uv);
        assert_eq!(reversed.as_deref(), Some(r"cmd E:\b\uvx.CMD"), "PATHEXT has its order");
    }

    #[test]
    fn only_what_can_be_executed_counts() {
        let files = [r"E:\b\server.js", r"E:\b\python3.11.exe"];
        assert_eq!(find_with("server", r"E:\b", ".JS;.EXE;.PY", &files), None);
        assert_eq!(find("python3.11", &files).as_deref(), Some(r"run E:\b\python3.11.EXE"));
    }

    #[test]
    fn a_path_is_seen_from_the_working_directory_and_not_searched_for() {
        let files = [r"C:\work\bin\server.exe", r"C:\work\server.exe", r"Z:\x y\tool"];
        assert_eq!(find(r"bin\server", &files).as_deref(), Some(r"run C:\work\bin\server.EXE"));
        assert_eq!(
            find(r".\server.exe", &[r"C:\work\.\server.exe"]).as_deref(),
            Some(r"run C:\work\.\server.exe")
        );
        assert_eq!(find("server", &files), None, "the working directory is not searched");
        assert_eq!(find(r"Z:\x y\tool", &files).as_deref(), Some(r"run Z:\x y\tool"));
        assert_eq!(
            find("Z:/x y/tool", &["Z:/x y/tool.bat"]).as_deref(),
            Some("cmd Z:/x y/tool.BAT")
        );
    }

    #[test]
    fn a_script_is_a_script_however_its_name_ends() {
        let files = [r"E:\b\x.bat"];
        for name in ["x", "x.bat", "x.bat.", "x.bat ", "x.bat . .", "X.BAT"] {
            assert!(find(name, &files).is_some_and(|f| f.starts_with("cmd ")), "{name}");
        }
        assert_eq!(find(" . ", &files), None);
        assert_eq!(find("", &files), None);
    }

    #[test]
    fn other_alphabets_and_spaces_are_names_like_any() {
        let files = [r"D:\odd;name\日本 🤠.exe"];
        assert_eq!(find("日本 🤠", &files).as_deref(), Some(r"run D:\odd;name\日本 🤠.EXE"));
    }

    #[test]
    fn a_long_path_gets_its_prefix() {
        let deep = "x".repeat(200);
        let long = format!(r"C:\{deep}\{deep}\s.exe");
        let prefixed = format!(r"\\?\{long}");
        assert_eq!(find(&long, &[&prefixed]), Some(format!("run {prefixed}")));
        let winding = format!(r"C:/{deep}/./y/../{deep}/s.exe");
        assert_eq!(find(&winding, &[&prefixed]), Some(format!("run {prefixed}")));
        let share = format!(r"\\host\share\..\{deep}\{deep}\s.exe");
        let whole = format!(r"\\?\UNC\host\share\{deep}\{deep}\s.exe");
        assert_eq!(find(&share, &[&whole]), Some(format!("run {whole}")));
    }
}
