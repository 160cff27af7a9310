//! Putting Lariat in front of a server, and taking it away: cuts in a text, nothing else.
//!
//! The server's own words are moved as they are written. All that is needed to go back is in the new
//! words themselves (`--installed`, and `--installed=bare` where there were no arguments), so it
//! survives a host that writes its file anew.

use super::entry::{Form, Launch};
use super::tree::{Format, Node, Pair, Plain};
use super::yaml::ALIAS;
use lariat::id::ServerName;
use std::ops::Range;

/// What is to be put in front.
#[derive(Default)]
pub(crate) struct Wish {
    /// The program, by a path that every host can start.
    pub(crate) lariat: String,
    /// What `--idle` is to be. Unsaid, what is there stays, and a new one is `auto`.
    pub(crate) idle: Option<String>,
    /// The servers that hosts are to use together, by name. Of the others, what is there stays.
    pub(crate) share: Vec<String>,
    /// Those that each host is to have for itself again.
    pub(crate) unshare: Vec<String>,
}

/// Our own words that `--share` goes together with.
const SHARED: [&str; 7] =
    ["--installed", "--name", "--idle", "--share", "--socket", "--state-dir", "--init-timeout"];

fn is_share(word: &str) -> bool {
    word == "--share" || word.starts_with("--share=")
}

/// A change of one server: where to cut, and what its keys mean afterwards.
pub(crate) struct Edit {
    pub(crate) cuts: Vec<(Range<usize>, String)>,
    /// Keys of the map that holds the command. Nothing: the key is gone.
    pub(crate) keys: Vec<(String, Option<Plain>)>,
    /// The words afterwards.
    pub(crate) words: Vec<String>,
}

/// How our own words are written: so that JSON, TOML and YAML read the same.
fn quoted(word: &str) -> String {
    serde_json::Value::from(word).to_string()
}

/// Cuts a text, in one pass: some hosts keep megabytes in their config.
pub(crate) fn apply(text: &str, mut cuts: Vec<(Range<usize>, String)>) -> String {
    cuts.sort_by_key(|(range, _)| range.start);
    let (mut new, mut at) = (String::with_capacity(text.len()), 0);
    for (range, with) in cuts {
        new.push_str(&text[at..range.start]);
        new.push_str(&with);
        at = range.end;
    }
    new + &text[at..]
}

/// A text, and how it is written.
#[derive(Clone, Copy)]
pub(crate) struct Page<'t> {
    pub(crate) text: &'t str,
    pub(crate) format: Format,
}

impl Page<'_> {
    /// Puts Lariat in front of a server that nobody wrapped, and tells it what the user calls it.
    pub(crate) fn wrap(self, launch: &Launch<'_>, name: &str, wish: &Wish) -> Result<Edit, String> {
        let bare = matches!(launch.form, Form::Beside { args: None, .. });
        let mark = if bare { "--installed=bare" } else { "--installed" };
        let idle = wish.idle.as_deref().unwrap_or("auto");
        let shared = wish.share.iter().any(|one| one == name);
        let name = ServerName::given(name).filter(|name| !name.as_str().starts_with('-'));
        let mut ours = vec![wish.lariat.as_str(), "run", mark];
        ours.extend(name.iter().flat_map(|name| ["--name", name.as_str()]));
        ours.extend(shared.then_some("--share"));
        ours.extend(["--idle", idle, "--"]);
        let mut literals: Vec<String> = ours.iter().map(|word| quoted(word)).collect();
        let words = ours.iter().map(ToString::to_string).chain(launch.said()).collect();
        let mut meant: Vec<Plain> = ours.iter().map(|word| Plain::Text(word.to_string())).collect();
        meant.extend(launch.words.iter().map(|word| word.plain()));
        match launch.form {
            Form::List(pair) => {
                let cuts = vec![self.before_first(&pair.value, &literals)?];
                let keys = vec![(pair.key.clone(), Some(Plain::List(meant)))];
                Ok(Edit { cuts, keys, words })
            }
            Form::Beside { map, command, args } => {
                if let Some(why) = command.value.fixed.filter(|why| *why != ALIAS) {
                    return Err(format!("its command cannot be moved: {why}"));
                }
                literals.push(self.text[command.value.span.clone()].to_owned());
                let program = literals.remove(0);
                let insertion = match args {
                    Some(args) => self.before_first(&args.value, &literals)?,
                    None => self.new_args(map, command, &literals)?,
                };
                let cuts = vec![(command.value.span.clone(), program), insertion];
                let keys = vec![
                    (command.key.clone(), Some(meant.remove(0))),
                    ("args".into(), Some(Plain::List(meant))),
                ];
                Ok(Edit { cuts, keys, words })
            }
        }
    }

    /// Gives a server back its own words, of which the first is at `inner`. If they cannot stand at
    /// their old place as they are written, they are written anew.
    pub(crate) fn unwrap(
        self,
        launch: &Launch<'_>,
        inner: usize,
        bare: bool,
        as_written: bool,
    ) -> Edit {
        let own = &launch.words[inner..];
        let words = launch.said().split_off(inner);
        let meant = |nodes: &[&Node]| Plain::List(nodes.iter().map(|node| node.plain()).collect());
        match launch.form {
            Form::List(pair) => Edit {
                cuts: vec![(launch.words[0].span.start..own[0].span.start, String::new())],
                keys: vec![(pair.key.clone(), Some(meant(own)))],
                words,
            },
            Form::Beside { map, command, args } => {
                let program = match as_written {
                    true => self.text[own[0].span.clone()].to_owned(),
                    false => quoted(&words[0]),
                };
                let mut cuts = vec![(command.value.span.clone(), program)];
                let mut keys = vec![(command.key.clone(), Some(own[0].plain()))];
                // There always are some: `run` was one of them.
                if let Some(args) = args {
                    match bare.then(|| self.whole_line(map, args, command)).flatten() {
                        Some(line) if own.len() == 1 => {
                            cuts.push((line, String::new()));
                            keys.push(("args".into(), None));
                        }
                        _ => {
                            cuts.push(self.without(args, own.get(1)));
                            keys.push(("args".into(), Some(meant(&own[1..]))));
                        }
                    }
                }
                Edit { cuts, keys, words }
            }
        }
    }

    /// Brings one that `install` wrapped up to date. Nothing if it is.
    pub(crate) fn renew(
        self,
        launch: &Launch<'_>,
        inner: usize,
        name: &str,
        wish: &Wish,
    ) -> Result<Option<Edit>, String> {
        let mut words = launch.said();
        let (share, dropped) = sharing(&words[..inner - 1], name, wish)?;
        let mut cuts = Vec::new();
        let mut replace = |at: usize, with: String| {
            if words[at] != with {
                cuts.push((launch.words[at].span.clone(), quoted(&with)));
                words[at] = with;
            }
        };
        replace(0, wish.lariat.clone());
        let mut missing = None;
        if let Some(idle) = &wish.idle {
            missing = Some(idle);
            // Every one of them: which of two would count is not for us to say.
            for (at, word) in launch.said()[..inner - 1].iter().enumerate() {
                if word == "--idle" && at + 2 < inner {
                    replace(at + 1, idle.clone());
                } else if word.starts_with("--idle=") {
                    replace(at, format!("--idle={idle}"));
                } else {
                    continue;
                }
                missing = None;
            }
        }
        let mut added: Vec<String> =
            missing.into_iter().flat_map(|idle| ["--idle".into(), idle.clone()]).collect();
        added.extend(share.then(|| "--share".into()));
        for &at in &dropped {
            // With what stands between it and the next; the last of ours is `--`.
            let span = launch.words[at].span.start..launch.words[at + 1].span.start;
            cuts.push((span, String::new()));
        }
        if !added.is_empty() {
            let list = match launch.form {
                Form::List(pair) | Form::Beside { args: Some(pair), .. } => &pair.value,
                Form::Beside { args: None, .. } => return Err("it has no arguments".into()),
            };
            let literals: Vec<String> = added.iter().map(|word| quoted(word)).collect();
            cuts.push(self.before_word(list, launch.words[inner - 1], &literals)?);
        }
        if cuts.is_empty() {
            return Ok(None);
        }
        let changed = launch.words.iter().zip(&words);
        let mut meant: Vec<Plain> = changed
            .map(|(node, word)| {
                let same =
                    matches!(node.plain(), Plain::Text(said) | Plain::Other(said) if said == *word);
                if same { node.plain() } else { Plain::Text(word.clone()) }
            })
            .collect();
        for &at in dropped.iter().rev() {
            meant.remove(at);
            words.remove(at);
        }
        // In front of our `--`.
        let end = inner - 1 - dropped.len();
        meant.splice(end..end, added.iter().cloned().map(Plain::Text));
        words.splice(end..end, added);
        let keys = match launch.form {
            Form::List(pair) => vec![(pair.key.clone(), Some(Plain::List(meant)))],
            Form::Beside { command, .. } => vec![
                (command.key.clone(), Some(meant.remove(0))),
                ("args".into(), Some(Plain::List(meant))),
            ],
        };
        Ok(Some(Edit { cuts, keys, words }))
    }

    /// Words in front of all others of a list.
    fn before_first(
        self,
        list: &Node,
        literals: &[String],
    ) -> Result<(Range<usize>, String), String> {
        let written = &self.text[list.span.clone()];
        let flow = written.starts_with('[');
        let Some(first) = list.items().and_then(<[Node]>::first) else {
            // A comment in it stays before.
            return match flow && written.ends_with(']') {
                true => Ok((list.span.end - 1..list.span.end - 1, literals.join(", "))),
                false => Err("its list of arguments is written in an unusual way".into()),
            };
        };
        self.before_word(list, first, literals)
    }

    /// Words in front of one of a list.
    fn before_word(
        self,
        list: &Node,
        word: &Node,
        literals: &[String],
    ) -> Result<(Range<usize>, String), String> {
        let flow = self.text[list.span.clone()].starts_with('[');
        let at = word.span.start;
        let before = self.line_before(at);
        let [between, after] = if flow {
            let alone = before.trim().is_empty();
            [", ".into(), if alone { format!(",{}{before}", self.newline()) } else { ", ".into() }]
        } else {
            // One item in each line, under one another.
            let item = before.trim_start().strip_prefix('-');
            if item.is_none_or(|rest| !rest.trim().is_empty()) {
                return Err("its list of arguments is written in an unusual way".into());
            }
            let next = format!("{}{before}", self.newline());
            [next.clone(), next]
        };
        Ok((at..at, literals.join(&between) + &after))
    }

    /// A list of arguments where there was none: in front of the command, in the same manner.
    fn new_args(
        self,
        map: &Node,
        command: &Pair,
        literals: &[String],
    ) -> Result<(Range<usize>, String), String> {
        let at = command.key_span.start;
        let list = literals.join(", ");
        let pair = match self.format {
            Format::Toml => format!("args = [{list}]"),
            Format::Yaml => format!("args: [{list}]"),
            Format::Json => {
                let quote = self.text[at..].chars().next().filter(|c| ['"', '\''].contains(c));
                let quote = quote.map(String::from).unwrap_or_default();
                format!("{quote}args{quote}: [{list}]")
            }
        };
        let after = self.between(map, at).ok_or("its command is written in an unusual way")?;
        Ok((at..at, pair + &after))
    }

    /// What stands between a new line of a map and the one that begins at `at`.
    fn between(self, map: &Node, at: usize) -> Option<String> {
        let before = self.line_before(at);
        let alone = before.trim().is_empty();
        if self.text[map.span.start..].starts_with('{') {
            let dotted = self.text[..at].trim_end().ends_with('.');
            return match alone {
                true => Some(format!(",{}{before}", self.newline())),
                false if dotted => None,
                false => Some(", ".into()),
            };
        }
        let indent = match self.format {
            // Also the first words of a dotted key.
            Format::Toml => before.to_owned(),
            Format::Yaml | Format::Json => {
                before.chars().map(|c| if c == '\t' { c } else { ' ' }).collect()
            }
        };
        Some(format!("{}{indent}", self.newline()))
    }

    /// The line of the arguments, if that is all there is: up to the command, where `install` puts it, or
    /// from the key before, where a host may have put it since.
    fn whole_line(self, map: &Node, args: &Pair, command: &Pair) -> Option<Range<usize>> {
        self.up_to_command(map, args, command).or_else(|| {
            let ends = map.pairs().iter().map(|pair| self.end_of(&pair.value));
            let before = ends.filter(|end| *end <= args.key_span.start).max()?;
            let between = self.text.get(before..args.key_span.start)?;
            let blank = between.chars().all(|c| c.is_whitespace() || c == ',');
            (!between.is_empty() && blank).then_some(before..self.end_of(&args.value))
        })
    }

    /// Where a value ends. A list in lines ends with its last item.
    fn end_of(self, node: &Node) -> usize {
        match node.items().and_then(<[Node]>::last) {
            Some(last) if !self.text[node.span.clone()].starts_with('[') => self.end_of(last),
            _ => node.span.end,
        }
    }

    fn up_to_command(self, map: &Node, args: &Pair, command: &Pair) -> Option<Range<usize>> {
        let line = args.key_span.start..command.key_span.start;
        let between = self.text.get(args.value.span.end..line.end)?;
        let ours = self.between(map, line.start).is_some_and(|ours| ours == between);
        let blank = between.trim_matches(|c: char| c.is_whitespace() || c == ',').is_empty();
        (line.start < line.end && (ours || blank)).then_some(line)
    }

    /// Takes away all items of a list before `first`, or all.
    fn without(self, args: &Pair, first: Option<&&Node>) -> (Range<usize>, String) {
        let list = &args.value;
        let items = list.items().unwrap_or_default();
        let nothing = String::new();
        let (Some(start), Some(last)) = (items.first(), items.last()) else {
            return (list.span.start..list.span.start, nothing);
        };
        if let Some(first) = first {
            return (start.span.start..first.span.start, nothing);
        }
        if self.text[list.span.clone()].starts_with('[') {
            return (start.span.start..self.past_comma(last.span.end), nothing);
        }
        // Of lines that each begin with a dash, none is left.
        (args.key_span.end..last.span.end, ": []".into())
    }

    fn past_comma(self, at: usize) -> usize {
        let rest = &self.text[at..];
        let trimmed = rest.trim_start();
        if trimmed.starts_with(',') { at + rest.len() - trimmed.len() + 1 } else { at }
    }

    /// The line up to here.
    fn line_before(&self, at: usize) -> &str {
        let before = &self.text[..at];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        before[start..].trim_start_matches('\u{feff}')
    }

    fn newline(self) -> &'static str {
        let first = self.text.find('\n');
        if first.is_some_and(|at| self.text[..at].ends_with('\r')) { "\r\n" } else { "\n" }
    }
}

/// Whether `--share` is to be added to our own words, and which of them are to go.
fn sharing(ours: &[String], name: &str, wish: &Wish) -> Result<(bool, Vec<usize>), String> {
    let is_named = |names: &[String]| names.iter().any(|one| one == name);
    let there: Vec<usize> = (0..ours.len()).filter(|at| is_share(&ours[*at])).collect();
    if is_named(&wish.unshare) {
        return Ok((false, there));
    }
    if !is_named(&wish.share) || !there.is_empty() {
        return Ok((false, Vec::new()));
    }
    let option = |word: &&String| {
        let name = word.split('=').next().unwrap_or_default();
        word.starts_with("--") && !SHARED.contains(&name)
    };
    match ours.iter().find(option) {
        Some(option) => Err(format!("`{option}` does not go together with --share")),
        None => Ok((true, Vec::new())),
    }
}
