//! The first page that a person reads: the verbs of `lariat --help`, by whom they are for.

use clap::Command;

/// Which verbs belong together, in the order in which a person meets them. A verb that is in none of
/// them is shown at the end.
const GROUPS: &[(&str, &[&str])] = &[
    ("Begin here", &["demo", "install", "uninstall", "hosts"]),
    (
        "See what lives, and end it",
        &["ps", "tree", "top", "open", "doctor", "reap", "logs", "events"],
    ),
    ("In front of a server", &["run", "probe"]),
    ("For scripts and other programs", &["session", "connect", "daemon"]),
    ("For whoever doubts", &["trial"]),
];

/// The same command, whose help has its verbs in groups. Clap itself has one list.
pub(super) fn grouped(command: Command) -> Command {
    let verbs: Vec<(String, String)> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            (verb.get_name().to_owned(), about.trim_end_matches('.').to_owned())
        })
        .collect();
    let width = verbs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, about): &(String, String)| format!("  {name:width$}  {about}\n");
    let mut text = String::new();
    for (title, names) in GROUPS {
        let known = names.iter().filter_map(|name| verbs.iter().find(|verb| verb.0 == *name));
        let lines: String = known.map(line).collect();
        if !lines.is_empty() {
            text += &format!("{title}:\n{lines}\n");
        }
    }
    let placed = |name: &String| GROUPS.iter().any(|(_, names)| names.contains(&name.as_str()));
    let others: String = verbs.iter().filter(|verb| !placed(&verb.0)).map(line).collect();
    text += &format!("Others:\n{others}  {:width$}  Says more about one of these\n", "help");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}\nOptions:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use clap::Command;
    use clap::error::ErrorKind;
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_verb_is_on_the_first_page_once() {
        let text = command().render_help().to_string();
        for verb in command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let begins = |line: &&str| line.split_whitespace().next() == Some(verb.get_name());
            let lines = text.lines().filter(|line| line.starts_with("  ")).filter(begins);
            assert_eq!(lines.count(), 1, "{} in\n{text}", verb.get_name());
        }
        let (groups, _) = text.split_once("Others:").unwrap();
        assert!(groups.contains("  demo "), "{text}");
        assert!(!text.contains("  man "), "{text}");
    }

    #[test]
    fn every_verb_says_what_it_does_and_shows_how() {
        let (complaints, seen) = below(&command(), &complaints);
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
        assert!(seen > 8, "saw only {seen} verbs");
    }

    #[test]
    fn a_verb_without_help_is_seen() {
        let good = Command::new("a").about("Does it").after_help("Examples:\n  lariat ps --json");
        assert_eq!(complaints(&good), [""; 0]);
        assert_eq!(complaints(&Command::new("a").after_help("Examples:\n  lariat ps")).len(), 1);
        assert_eq!(complaints(&Command::new("a").about("Does it")).len(), 1);
        for bad in ["lariat ps --no-such", "lariat no-such", "lariat run", "lariat ps | lariat nix"]
        {
            let verb = good.clone().after_help(format!("Examples:\n  {bad}"));
            assert_eq!(complaints(&verb).len(), 1, "{bad}");
        }
        let shell = "S=$(lariat session open --server a -- b)  and then\n  \
                     lariat ps 2>/dev/null | jq .\n  \
                     lariat session open --owner-pid $$ --server a -- b   # mine";
        assert_eq!(complaints(&good.after_help(format!("Examples:\n  {shell}"))), [""; 0]);
    }

    #[test]
    fn commands_in_the_guide_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (mut complaints, mut seen) = (Vec::new(), 0);
        let mut waiting = vec![root.join("README.md"), root.join("docs/guide")];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let typed = text.lines().filter_map(|line| line.strip_prefix("$ "));
            for words in typed.flat_map(commands) {
                seen += 1;
                complaints.extend(refused(&words).map(|why| format!("{}: {why}", path.display())));
            }
        }
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
        assert!(seen > 40, "saw only {seen} commands");
    }

    /// What `judge` says of every verb that does something, and how many there are.
    fn below(command: &Command, judge: &dyn Fn(&Command) -> Vec<String>) -> (Vec<String>, usize) {
        let (mut complaints, mut seen) = (Vec::new(), 0);
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let (more, verbs) = below(verb, judge);
            complaints.extend(more);
            if !verb.has_subcommands() {
                complaints.extend(judge(verb));
            }
            seen += verbs + 1;
        }
        (complaints, seen)
    }

    fn complaints(verb: &Command) -> Vec<String> {
        let (mut complaints, name) = (Vec::new(), verb.get_name());
        if verb.get_about().is_none() {
            complaints.push(format!("{name}: its help does not say what it does"));
        }
        let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        match after.strip_prefix("Examples:\n") {
            None => complaints.push(format!("{name}: its help has no `Examples:`")),
            Some(examples) => complaints.extend(
                commands(examples)
                    .filter_map(|words| refused(&words))
                    .map(|why| format!("{name}: {why}")),
            ),
        }
        complaints
    }

    /// The command lines of ours in a few lines of shell, without what is done with their output.
    fn commands(text: &str) -> impl Iterator<Item = Vec<String>> {
        text.lines().flat_map(|line| {
            // A remark is set apart by blanks.
            let line = line.trim().split("  ").next().unwrap_or("");
            let found = line.match_indices("lariat ").filter(|(at, _)| {
                let before = &line[..*at];
                before.is_empty() || before.ends_with("$(") || before.ends_with("| ")
            });
            found.map(|(at, _)| words(&line[at..])).collect::<Vec<_>>()
        })
    }

    /// Words as a shell would make them, up to where its own words begin.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in line.chars() {
            match (quote, c) {
                (Some(mark), c) if c == mark => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }

                (None, '>' | '<') => {
                    // The digit before it says which stream.
                    word = word.filter(|word| word.parse::<u8>().is_err());
                    break;
                }
                (None, ')' | '|' | ';' | '&' | '#') => break,
                (None, ' ') => words.extend(word.take()),
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    /// Why this version does not understand its own example.
    fn refused(words: &[String]) -> Option<String> {
        let error = command().try_get_matches_from(words).err()?;
        let shell = words.iter().any(|word| word.contains('$'));
        let fine = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
            // The shell puts something else there.
            ErrorKind::ValueValidation => shell,
            _ => false,
        };
        (!fine).then(|| format!("`{}`: {error}", words.join(" ")))
    }
}
