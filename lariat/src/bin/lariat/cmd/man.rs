//! `lariat man`: manual pages, one for each verb, for whoever makes a package.

use crate::show;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What every page ends with.
const LAST: &str = "\
.SH FILES
.TP
\\fI~/.local/state/lariat\\fR
The books of living sessions, logs, events and backups, for this user alone.
.SH SEE ALSO
\\fBlariat\\fR(1)
";

/// Writes manual pages into a directory, one for each verb.
///
/// `lariat.1` names the others. They are written from the same definition as the help.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat man ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Where to; made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes them.
pub(crate) fn run(args: &Args, command: clap::Command) -> ExitCode {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    match fs::create_dir_all(&args.dir).and_then(|()| write(&command, &args.dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let what = format!("cannot write manual pages into {}", args.dir.display());
            show::failure(&show::plain(&what), Some(&error), "name another directory");
            ExitCode::FAILURE
        }
    }
}

/// One page, and those of the verbs below it.
fn write(command: &clap::Command, dir: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    fs::write(dir.join(format!("{name}.1")), page(command)?)?;
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .try_for_each(|verb| write(verb, dir))
}

fn page(command: &clap::Command) -> io::Result<String> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim_start();
    let examples = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone()).manual("Lariat").source(source());
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    // Its own has every option once more.
    text.extend_from_slice(section("SYNOPSIS", usage).as_bytes());
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(examples) = examples.as_deref().and_then(|text| text.strip_prefix("Examples:\n")) {
        text.extend_from_slice(section("EXAMPLES", examples).as_bytes());
    }
    text.extend_from_slice(LAST.as_bytes());
    Ok(ascii(&String::from_utf8_lossy(&text)))
}

/// The same text for a formatter that takes its input for Latin-1.
fn ascii(text: &str) -> String {
    let spell = |c: char| match c {
        c if c.is_ascii() => c.to_string(),
        c => format!("\\[u{:04X}]", u32::from(c)),
    };
    text.chars().map(spell).collect()
}

fn source() -> String {
    concat!("lariat ", env!("CARGO_PKG_VERSION")).into()
}

/// Lines that are to be shown as they are.
fn section(title: &str, lines: &str) -> String {
    let mut text = format!(".SH {title}\n.nf\n");
    for line in lines.lines() {
        // A dash is typed by the reader, a backslash is one, and a dot may begin a line.
        let line = line.strip_prefix("  ").unwrap_or(line);
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        text += &format!("\\&{line}\n");
    }
    text + ".fi\n"
}

#[cfg(test)]
mod tests {
    use super::{ascii, section};

    #[test]
    fn letters_beyond_ascii_are_spelled_out() {
        assert_eq!(ascii("a… \u{1f980}"), "a\\[u2026] \\[u1F980]");
    }

    #[test]
    fn examples_are_typed_as_they_stand() {
        let text = section("EXAMPLES", "  .run --x 'a\\b'\n    deeper");
        let expected = ".SH EXAMPLES\n.nf\n\\&.run \\-\\-x \\(aqa\\eb\\(aq\n\\&  deeper\n.fi\n";
        assert_eq!(text, expected);
    }
}
