//! The Debian package: made, put into a directory as if that were the machine, and taken out again.

use super::{Test, heard, lariat, pages, root, said};
use crate::place::Place;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const TESTS: &[Test] =
    &[("debian package", &["dpkg-deb", "dpkg", "strip", "objdump", "gzip"], package)];

fn package() {
    let place = Place::new();
    let first = build(&place, "first");
    // Whoever builds it again has the same bytes.
    let again = build(&place, "again");
    assert_eq!(first.file_name(), again.file_name());
    assert!(fs::read(&first).unwrap() == fs::read(&again).unwrap(), "not reproducible");

    let depends = said(Command::new("dpkg-deb").arg("-f").arg(&first).arg("Depends"));
    assert!(depends.starts_with("libc6 (>= 2."), "{depends}");

    let machine = place.path("machine");
    install(&machine, &first);
    let at = |path: &str| machine.join(path);
    let version = said(Command::new(at("usr/bin/lariat")).arg("--version"));
    assert_eq!(version, said(lariat().arg("--version")));
    for page in pages(&place) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(at(&format!("usr/share/man/man1/{name}.gz")).is_file(), "{name}");
    }
    for file in [
        "usr/lib/systemd/user/lariat.service",
        "usr/share/bash-completion/completions/lariat",
        "usr/share/doc/lariat/changelog.gz",
        "usr/share/doc/lariat/copyright",
        "usr/share/doc/lariat/docs/guide/hosts/codex.md",
        "usr/share/fish/vendor_completions.d/lariat.fish",
        "usr/share/zsh/vendor-completions/_lariat",
    ] {
        assert!(at(file).is_file(), "{file}");
    }
    let unit = fs::read_to_string(at("usr/lib/systemd/user/lariat.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/lariat daemon\n"));

    if is_root() {
        assert_eq!(said(dpkg(&machine).args(["--verify", "lariat"])), "");
        heard(dpkg(&machine).args(["--purge", "lariat"]));
        assert!(!at("usr/bin/lariat").exists());
        assert!(!at("usr/share/doc/lariat").exists());
    }
}

fn build(place: &Place, name: &str) -> PathBuf {
    let mut build = Command::new(root("packaging/debian/build"));
    build.arg(env!("CARGO_BIN_EXE_lariat")).arg(place.path(name));
    build.env("TMPDIR", place.path("")).env("DPKG_DEB_COMPRESSION", "1");
    build.env("SOURCE_DATE_EPOCH", "1800000000");
    let (text, _) = heard(&mut build);
    PathBuf::from(text.lines().last().unwrap())
}

/// With dpkg where its own files can be owned by root, or else only unpacked.
fn install(machine: &Path, package: &Path) {
    for dir in ["info", "updates", "triggers"] {
        fs::create_dir_all(machine.join("var/lib/dpkg").join(dir)).unwrap();
    }
    fs::write(machine.join("var/lib/dpkg/status"), "").unwrap();
    if is_root() {
        // What it depends on is on the real machine.
        heard(dpkg(machine).args(["--force-depends", "--install"]).arg(package));
    } else {
        said(Command::new("dpkg-deb").arg("--extract").arg(package).arg(machine));
    }
}

fn dpkg(machine: &Path) -> Command {
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("--root").arg(machine).args(["--log", "/dev/null"]);
    dpkg
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
