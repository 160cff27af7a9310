//! What in a config is a server: how it is started, whether it is wrapped, and why not every one is.

use super::tree::{Node, Pair, Value};
use super::yaml::ALIAS;
use std::path::Path;

/// One server as a file has it.
pub(crate) struct Server<'t> {
    pub(crate) name: String,
    /// The way to it from the root.
    pub(crate) way: Vec<Step>,
    pub(crate) node: &'t Node,
}

/// One step on a way through a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// How a server is started, with the places of all words.
pub(crate) struct Launch<'t> {
    pub(crate) form: Form<'t>,
    /// Keys from the server's own map to the one that holds the command.
    pub(crate) inside: Option<&'static str>,
    pub(crate) words: Vec<&'t Node>,
}

/// How a command is written.
#[derive(Clone, Copy)]
pub(crate) enum Form<'t> {
    /// A program, and its arguments beside it.
    Beside { map: &'t Node, command: &'t Pair, args: Option<&'t Pair> },
    /// One list with both.
    List(&'t Pair),
}

/// Who put Lariat in front of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrapping {
    Nobody,
    /// A person, who may also take it away.
    Hand,
    /// `install`. The server's own words begin at `inner`; `bare` if it had no arguments at all.
    Installed {
        inner: usize,
        bare: bool,
    },
}

/// Every server on these ways.
pub(crate) fn servers<'t>(root: &'t Node, maps: &[&[&str]]) -> Vec<Server<'t>> {
    let mut found = Vec::new();
    for map in maps {
        let mut holders = vec![(Vec::new(), root)];
        for key in *map {
            holders = holders.iter().flat_map(|(way, node)| below(way, node, key)).collect();
        }
        for (way, holder) in holders {
            let own =
                |name: &str| !maps.iter().any(|other| other.strip_prefix(*map) == Some(&[name]));
            for (step, name, node) in members(holder) {
                if own(&name) || node.get("command").is_some() {
                    let way = [&way[..], &[step]].concat();
                    found.push(Server { name, way, node });
                }
            }
        }
    }
    found
}

fn below<'t>(way: &[Step], node: &'t Node, key: &str) -> Vec<(Vec<Step>, &'t Node)> {
    let matching = |pair: &&Pair| key == "*" || pair.key == key;
    // Of two that are called the same, a host sees the last.
    let last = |pair: &&Pair| node.pair(&pair.key).is_some_and(|last| std::ptr::eq(last, *pair));
    let pairs = node.pairs().iter().filter(matching).filter(last);
    pairs.map(|pair| ([way, &[Step::Key(pair.key.clone())]].concat(), &pair.value)).collect()
}

/// Servers are a map by name, or a list whose items have one.
fn members(holder: &Node) -> Vec<(Step, String, &Node)> {
    match &holder.value {
        Value::Map(_) => below(&[], holder, "*")
            .into_iter()
            .filter_map(|(mut way, node)| match way.pop()? {
                Step::Key(name) => Some((Step::Key(name.clone()), name, node)),
                Step::Index(_) => None,
            })
            // A merge key is no server.
            .filter(|(_, name, _)| name != "<<")
            .collect(),
        Value::List(items) => items
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let name = node.get("name").and_then(Node::text);
                (
                    Step::Index(index),
                    name.map_or_else(|| format!("#{}", index + 1), str::to_owned),
                    node,
                )
            })
            .collect(),
        Value::Text(_) | Value::Other(_) => Vec::new(),
    }
}

impl<'t> Launch<'t> {
    /// How this server is started, or why it is not ours to wrap.
    pub(crate) fn of(server: &Server<'t>, command: &str) -> Result<Launch<'t>, String> {
        let node = server.node;
        if !matches!(node.value, Value::Map(_)) {
            return Err("it is not written as a map of keys".into());
        }
        if let Some(why) = elsewhere(node) {
            return Err(why);
        }
        let (map, key, inside) = match node.get(command) {
            // As Zed once had it.
            Some(inner) if matches!(inner.value, Value::Map(_)) => (inner, "path", Some("command")),
            _ => (node, command, None),
        };
        if node.fixed == Some(ALIAS) {
            return Err("its entry is an alias of another".into());
        }
        let merged = map.get("<<").is_some();
        let Some(pair) = once(map, key)? else {
            let merged = "its command comes from a merge key";
            return Err(if map.get("<<").is_some() { merged } else { "it has no command" }.into());
        };
        if pair.value.items().is_some() {
            return Launch::list(pair, inside);
        }
        let args = once(map, "args")?;
        if merged && args.is_none() {
            return Err("its arguments come from a merge key".into());
        }
        let program = pair.value.text().ok_or("its command is not a text")?;
        if program.trim().is_empty() {
            return Err("it has no command".into());
        }
        if program.contains(char::is_whitespace) && !Path::new(program).is_file() {
            return Err("its command is a line for a shell, not a program".into());
        }
        let mut words = vec![&pair.value];
        if let Some(args) = args {
            words.extend(list_of_words(&args.value)?);
        }
        Ok(Launch { form: Form::Beside { map, command: pair, args }, inside, words })
    }

    fn list(pair: &'t Pair, inside: Option<&'static str>) -> Result<Launch<'t>, String> {
        let words = list_of_words(&pair.value)?;
        match words.first().and_then(|word| word.text()) {
            Some(program) if !program.trim().is_empty() => {}
            _ => return Err("it has no command".into()),
        }
        Ok(Launch { form: Form::List(pair), inside, words })
    }

    /// The words as the host reads them.
    pub(crate) fn said(&self) -> Vec<String> {
        self.words.iter().map(|word| said(word)).collect()
    }
}

/// The one line of a key. Two of them are read differently by different hosts.
fn once<'t>(map: &'t Node, key: &str) -> Result<Option<&'t Pair>, String> {
    let mut pairs = map.pairs().iter().filter(|pair| pair.key == key);
    let first = pairs.next();
    if pairs.next().is_some() {
        return Err(format!("it has the key `{key}` twice"));
    }
    Ok(first)
}

fn list_of_words(node: &Node) -> Result<Vec<&Node>, String> {
    if node.fixed == Some(ALIAS) {
        return Err("its arguments are an alias".into());
    }
    let items = node.items().ok_or("its arguments are not a list")?;
    let is_word = |item: &Node| matches!(item.value, Value::Text(_) | Value::Other(_));
    if !items.iter().all(is_word) {
        return Err("its arguments are not a list of words".into());
    }
    Ok(items.iter().collect())
}

fn said(word: &Node) -> String {
    match &word.value {
        Value::Text(text) | Value::Other(text) => text.clone(),
        Value::List(_) | Value::Map(_) => String::new(),
    }
}

/// Why a server does not run as a process of this machine that the host starts from this file.
fn elsewhere(node: &Node) -> Option<String> {
    const ADDRESSES: [&str; 4] = ["url", "serverUrl", "httpUrl", "uri"];
    let text = |key: &str| node.get(key).and_then(Node::text);
    if let Some(address) =
        ADDRESSES.into_iter().find(|key| text(key).is_some_and(|url| !url.is_empty()))
    {
        return Some(format!("it is remote (`{address}`)"));
    }
    for key in ["type", "transport"] {
        match text(key).map(str::to_lowercase).as_deref() {
            None | Some("" | "stdio" | "local") => {}
            Some("builtin" | "platform" | "frontend" | "inline_python") => {
                return Some("it is a part of the host".into());
            }
            Some(kind @ ("http" | "sse" | "remote" | "ws" | "websocket")) => {
                return Some(format!("it is remote ({kind})"));
            }
            Some(kind) if kind.starts_with("streamable") => {
                return Some(format!("it is remote ({kind})"));
            }
            Some(_) => return Some(format!("its `{key}` is not known here")),
        }
    }
    if node.get("bundled").is_some_and(|bundled| said(bundled) == "true") {
        return Some("it is a part of the host".into());
    }
    match text("environment_id") {
        None | Some("" | "local") => None,
        Some(_) => Some("it runs elsewhere (`environment_id`)".into()),
    }
}

/// Who wrapped a command, if anybody.
pub(crate) fn wrapping(words: &[String]) -> Wrapping {
    let Some((program, rest)) = words.split_first() else { return Wrapping::Nobody };
    let end = rest.iter().position(|word| word == "--").unwrap_or(0);
    let mark = rest[..end].iter().find_map(|word| match word.as_str() {
        "--installed" => Some(false),
        "--installed=bare" => Some(true),
        _ => None,
    });
    let whole = |_: &bool| rest[0] == "run" && rest.len() > end + 1 && may_be_ours(program);
    if let Some(bare) = mark.filter(whole) {
        return Wrapping::Installed { inner: end + 2, bare };
    }
    let runs =
        |words: &[String]| is_lariat(&words[0]) && ["run", "connect"].contains(&words[1].as_str());
    // Also behind a launcher.
    if is_lariat(program) || rest.windows(2).any(runs) { Wrapping::Hand } else { Wrapping::Nobody }
}

/// True if `install` may have written this program. The mark alone is not enough: other programs have a
/// `run --installed` too. Somebody may call ours `lariat-next`, or anything while it runs from there.
fn may_be_ours(program: &str) -> bool {
    let name = program.rsplit(['/', '\\']).next().unwrap_or(program);
    name.starts_with("lariat") || std::env::current_exe().is_ok_and(|own| own == Path::new(program))
}

fn is_lariat(program: &str) -> bool {
    let name = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let name = name.split('@').next().unwrap_or(name);
    name.trim_end_matches(".exe") == "lariat"
}
