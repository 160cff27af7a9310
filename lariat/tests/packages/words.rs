//! Completions, manual pages and the unit, each read by the program that it is for.

use super::{Test, lariat, pages, root, said};
use crate::place::Place;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("bash completes", &["bash"], bash),
    ("zsh completes", &["zsh"], zsh),
    ("fish completes", &["fish"], fish),
    ("man pages are clean", &["groff"], man),
    ("the unit is understood", &["systemd-analyze"], unit),
];

fn completions(place: &Place, shell: &str) -> PathBuf {
    let file = place.path(shell);
    fs::write(&file, said(lariat().args(["completions", shell]))).unwrap();
    file
}

/// A shell that reads nobody's settings and has the completions as its first argument.
fn shell(place: &Place, name: &str, options: &[&str], script: &str) -> String {
    let file = completions(place, name);
    let mut command = Command::new(name);
    command.args(options).arg(script).env("HOME", place.path("")).current_dir(place.path(""));
    command.env("LARIAT_COMPLETIONS", file);
    said(&mut command)
}

fn bash() {
    let script = "source \"$LARIAT_COMPLETIONS\" && complete -p lariat &&
        COMP_WORDS=(lariat session o) COMP_CWORD=2 && _lariat lariat o session &&
        echo \"${COMPREPLY[@]}\"";
    let text = shell(&Place::new(), "bash", &["--norc", "--noprofile", "-c"], script);
    let [how, what] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(how.ends_with("-F _lariat lariat"), "{text}");
    assert_eq!(what, "open");
}

fn zsh() {
    let script = "autoload -Uz compinit && compinit -u -D && source \"$LARIAT_COMPLETIONS\" &&
        print -- $_comps[lariat] && whence -w _lariat__subcmd__session_commands";
    let text = shell(&Place::new(), "zsh", &["-f", "-c"], script);
    assert_eq!(text, "_lariat\n_lariat__subcmd__session_commands: function\n");
}

fn fish() {
    let script = "source $LARIAT_COMPLETIONS; complete -C 'lariat session o'";
    let text = shell(&Place::new(), "fish", &["--no-config", "-c"], script);
    assert!(text.starts_with("open\t"), "{text}");
}

fn man() {
    let place = Place::new();
    let pages = pages(&place);
    // A letter that it cannot read is heard, so silence means something.
    let bad = place.path("bad.1");
    fs::write(&bad, ".TH BAD 1\n.SH NAME\n…\n").unwrap();
    let groff = |page: &PathBuf| {
        let mut groff = Command::new("groff");
        groff.args(["-wall", "-man", "-Tutf8", "-z"]).arg(page);
        groff
    };
    let output = groff(&bad).output().unwrap();
    assert!(!output.stderr.is_empty());
    let first = fs::read_to_string(place.path("man/lariat.1")).unwrap();
    for page in &pages {
        said(&mut groff(page));
        let name = page.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains(".SH SYNOPSIS") && text.is_ascii(), "{name}");
        // Each is found from the first, or from the one above it.
        let known = name == "lariat" || first.contains(&name.replace('-', "\\-"));
        assert!(known || name.starts_with("lariat-session-"), "{name} is not in lariat.1");
    }
}

fn unit() {
    let place = Place::new();
    let text = fs::read_to_string(root("packaging/systemd/lariat.service")).unwrap();
    let verify = |text: &str| {
        let file = place.path("lariat.service");
        fs::write(&file, text.replace("/usr/bin/lariat", env!("CARGO_BIN_EXE_lariat"))).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--user", "--man=no"]).arg(file);
        verify.env("XDG_RUNTIME_DIR", place.path("")).env("HOME", place.path(""));
        let output = verify.output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(verify(&text), "");
    assert!(verify(&text.replace("KillMode=mixed", "KillMode=mixd")).contains("kill mode"));
}
