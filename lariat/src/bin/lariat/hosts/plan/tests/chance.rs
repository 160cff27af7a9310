//! Configs by chance, with everything that people put into them.

use crate::hosts::tree::Format;

/// Small, and the same every time.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next(of.len())]
    }

    fn chance(&mut self, in_a_hundred: usize) -> bool {
        self.next(100) < in_a_hundred
    }
}

/// What arguments and commands are: plain, odd, secret, of other systems.
const WORDS: [&str; 18] = [
    "npx",
    "-y",
    "@scope/server",
    "--token=s3cret",
    "${workspaceFolder}",
    "C:\\Users\\me\\x.exe",
    "gr\u{fc}\u{df}e",
    "a b",
    "it's",
    "say \"hi\"",
    "",
    "--",
    "#no",
    "a: b",
    "1",
    "true",
    "${input:key}",
    "\u{1f402}",
];
const PROGRAMS: [&str; 8] = [
    "npx",
    "uvx",
    "/opt/my-server",
    "C:\\nodejs\\npx.cmd",
    "./gr\u{fc}n",
    "node",
    "docker",
    "${HOME}/bin/x",
];

/// A config with some servers in it.
pub(super) fn text(format: Format, seed: u64) -> String {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let count = 1 + dice.next(7);
    let text = match format {
        Format::Json => json(&mut dice, count),
        Format::Toml => toml(&mut dice, count),
        Format::Yaml => yaml(&mut dice, count),
    };
    let text = if dice.chance(25) { text.replace('\n', "\r\n") } else { text };
    if dice.chance(10) { format!("\u{feff}{text}") } else { text }
}

/// The same, of a size.
pub(super) fn many(format: Format, count: usize) -> String {
    let mut dice = Dice(18_881);
    match format {
        Format::Json => json(&mut dice, count),
        Format::Toml => toml(&mut dice, count),
        Format::Yaml => yaml(&mut dice, count),
    }
}

/// A config with a few bytes that do not belong there.
pub(super) fn damaged(format: Format, seed: u64) -> String {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let mut text: Vec<char> = text(format, seed).chars().collect();
    for _ in 0..=dice.next(2) {
        let at = dice.next(text.len());
        match dice.next(3) {
            0 => drop(text.remove(at)),
            1 => {
                text[at] = dice
                    .one(&["\"", "{", "]", ",", ":", "#", "\n", "'", " ", "-", "&", "*"])
                    .chars()
                    .next()
                    .unwrap()
            }
            _ => text.insert(at, text[dice.next(text.len())]),
        }
    }
    text.into_iter().collect()
}

fn words(dice: &mut Dice) -> Vec<&'static str> {
    let count = dice.next(5);
    (0..count).map(|_| dice.one(&WORDS)).collect()
}

fn json_literal(dice: &mut Dice, word: &str) -> String {
    let literal = serde_json::Value::from(word).to_string();
    match dice.next(5) {
        0 => literal.replace('\u{fc}', "\\u00fc").replace('/', "\\/"),
        1 if !word.contains(['\'', '"', '\\']) => format!("'{word}'"),
        _ => literal,
    }
}

fn json(dice: &mut Dice, count: usize) -> String {
    let pretty = dice.chance(70);
    let indent = dice.one(&["  ", "\t", "    "]);
    let nl =
        |level: usize| if pretty { format!("\n{}", indent.repeat(level)) } else { String::new() };
    let mut out = String::new();
    if dice.chance(30) {
        out += "// mine\n";
    }
    out += "{";
    let list_form = dice.chance(20);
    out += &format!(
        "{}\"{}\"{}{{",
        nl(1),
        if list_form { "mcp" } else { "mcpServers" },
        dice.one(&[":", ": ", " : "])
    );
    for n in 0..count {
        out += &format!("{}\"s{n}\": {{", nl(2));
        let mut pairs = Vec::new();
        let args = words(dice);
        let program = dice.one(&PROGRAMS);
        let list = |dice: &mut Dice, words: &[&str]| {
            let deep = pretty && dice.chance(50);
            let mut list = String::from("[");
            for (at, word) in words.iter().enumerate() {
                if deep {
                    list += &nl(4);
                } else if dice.chance(20) {
                    list += " /* x */ ";
                }
                list += &json_literal(dice, word);
                if at + 1 < words.len() || dice.chance(20) {
                    list += ",";
                }
                if deep && dice.chance(20) {
                    list += " // why";
                    list += &nl(4);
                }
            }
            list + &if deep { nl(3) } else { String::new() } + "]"
        };
        if list_form {
            let all: Vec<&str> = [&[program][..], &args].concat();
            pairs.push(format!("\"command\": {}", list(dice, &all)));
        } else {
            let key = dice.one(&["\"command\"", "command", "'command'"]);
            pairs.push(format!("{key}: {}", json_literal(dice, program)));
            if dice.chance(75) {
                pairs.push(format!("\"args\":{}", list(dice, &args)));
            }
        }
        pairs.push("\"env\": {\"API_KEY\": \"s3cret\", \"args\": [\"x\"]}".into());
        if dice.chance(30) {
            pairs.push("\"disabled\": true".into());
        }
        let turn = dice.next(pairs.len());
        pairs.rotate_left(turn);
        for (at, pair) in pairs.iter().enumerate() {
            out += &format!("{}{pair}", nl(3));
            out += if at + 1 < pairs.len() || dice.chance(10) { "," } else { "" };
            if pretty && dice.chance(15) {
                out += " // said";
            }
            if !pretty && dice.chance(30) {
                out += " ";
            }
        }
        out += &format!("{}}}", nl(2));
        out += if n + 1 < count || dice.chance(10) { "," } else { "" };
    }
    out += &format!("{}}}{}}}", nl(1), nl(0));
    out + dice.one(&["", "\n", "\n\n"])
}

fn toml_literal(dice: &mut Dice, word: &str) -> String {
    match dice.next(4) {
        0 if !word.contains('\'') => format!("'{word}'"),
        1 => format!("\"\"\"{}\"\"\"", word.replace('\\', "\\\\").replace('"', "\\\"")),
        _ => serde_json::Value::from(word).to_string(),
    }
}

fn toml(dice: &mut Dice, count: usize) -> String {
    let mut out = String::from("# top\nmodel = \"x\"\n");
    let dotted = dice.next(count + 1);
    let array = |dice: &mut Dice, inline: bool| {
        let words = words(dice);
        let deep = !inline && dice.chance(40);
        let mut list = String::from("[");
        for (at, word) in words.iter().enumerate() {
            if deep {
                list += dice.one(&["\n  ", "\n\t", " # c\n    "]);
            }
            list += &toml_literal(dice, word);
            list += if at + 1 < words.len() || dice.chance(20) { ", " } else { "" };
        }
        list + if deep { "\n]" } else { "]" }
    };
    for n in 0..count {
        let program = dice.one(&PROGRAMS);
        let command = toml_literal(dice, program);
        let comment = dice.one(&["", "", " # why", "   "]);
        let has_args = dice.chance(75);
        if n < dotted {
            if dice.chance(50) {
                out += &format!("mcp_servers.s{n}.command = {command}{comment}\n");
                if has_args {
                    out += &format!("mcp_servers.s{n}.args = {}\n", array(dice, false));
                }
            } else {
                let args = if has_args {
                    format!(", args = {}", array(dice, true))
                } else {
                    String::new()
                };
                let env = dice.one(&["", ", env = { K = \"s3cret\" }"]);
                let [open, close] = [dice.one(&["{", "{ "]), dice.one(&["}", " }"])];
                out += &format!(
                    "mcp_servers.s{n} = {open}command = {command}{args}{env}{close}{comment}\n"
                );
            }
            continue;
        }
        out += &format!(
            "\n[mcp_servers.{}]{comment}\n",
            dice.one(&["sN", "\"sN\"", "'sN'"]).replace('N', &n.to_string())
        );
        let indent = dice.one(&["", "  "]);
        let mut lines = vec![format!("{indent}command = {command}{comment}\n")];
        if has_args {
            lines.push(format!("{indent}args={}{comment}\n", array(dice, false)));
        }
        lines.push(format!("{indent}startup_timeout_sec = 20\n"));
        let turn = dice.next(lines.len());
        lines.rotate_left(turn);
        out += &lines.concat();
        if dice.chance(30) {
            out += &format!("[mcp_servers.s{n}.env]\nTOKEN = \"s3cret\"\n");
        }
    }
    out
}

fn yaml_literal(dice: &mut Dice, word: &str, program: bool) -> String {
    let plain = !word.is_empty()
        && !word.contains(['@', '"', '\'', '#', ':', '{', '\\', ',', '[', '$', '&', '*'])
        && (program || !["1", "true", "--"].contains(&word));
    match dice.next(3) {
        0 if plain => word.to_owned(),
        1 => format!("'{}'", word.replace('\'', "''")),
        _ => serde_json::Value::from(word).to_string(),
    }
}

fn yaml(dice: &mut Dice, count: usize) -> String {
    let as_list = dice.chance(25);
    let mut out = String::from(dice.one(&[
        "",
        "---\n",
        "# top\n",
        "GOOSE_MODEL: x\nanchor: &v [1, 2]\nagain: *v\n",
    ]));
    out += if as_list { "mcpServers:\n" } else { "extensions:\n" };
    let step = dice.one(&["  ", "    "]);
    for n in 0..count {
        let program = dice.one(&PROGRAMS);
        let words = words(dice);
        let has_args = dice.chance(75);
        if dice.chance(15) && !as_list {
            let items: Vec<String> =
                words.iter().map(|word| yaml_literal(dice, word, false)).collect();
            let args =
                if has_args { format!("args: [{}], ", items.join(", ")) } else { String::new() };
            let program = yaml_literal(dice, program, true);
            out += &format!("{step}s{n}: {{type: stdio, {args}cmd: {program}}} # flow\n");
            continue;
        }
        let inner = if as_list { format!("{step}  ") } else { step.repeat(2) };
        let comment = dice.one(&["", "", "  # why"]);
        let mut lines = vec![format!("cmd: {}{comment}\n", yaml_literal(dice, program, true))];
        if has_args && (words.is_empty() || dice.chance(40)) {
            let items: Vec<String> =
                words.iter().map(|word| yaml_literal(dice, word, false)).collect();
            let sep = dice.one(&[", ", " , ", ","]);
            lines.push(format!("args: [{}]{comment}\n", items.join(sep)));
        } else if has_args {
            let deeper = dice.one(&["", "  "]);
            let mut block = format!("args:{comment}\n");
            for word in &words {
                block +=
                    &format!("{inner}{deeper}- {}{comment}\n", yaml_literal(dice, word, false));
            }
            lines.push(block);
        }
        lines.push(format!("envs:\n{inner}  KEY: s3cret\n"));
        lines.push("description: >-\n".to_owned() + &format!("{inner}  two\n{inner}  lines\n"));
        let turn = dice.next(lines.len());
        lines.rotate_left(turn);
        if as_list {
            out += &format!("{step}- name: s{n}\n");
        } else {
            out += &format!("{step}s{n}:\n");
        }
        for line in lines {
            out += &format!("{inner}{line}");
        }
    }
    out
}
