//! JSON and its dialects, read with places.
//!
//! Hosts differ in what they allow: comments, trailing commas, bare keys, single quotes. All of it
//! is read for every host. It is the host that judges its own file; here the question is only
//! where things are.

use super::tree::{Broken, Node, Pair, Value};

/// Deeper than any config; the reader calls itself once per level.
const DEEPEST: usize = 200;

/// Reads a whole text.
pub(crate) fn parse(text: &str) -> Result<Node, Broken> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.blank()?;
    if reader.at == text.len() {
        return Ok(Node::new(text.len()..text.len(), Value::Map(Vec::new())));
    }
    let node = reader.value()?;
    reader.blank()?;
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.broken("something follows the end")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn broken(&self, why: &str) -> Broken {
        Broken::at(self.text, self.at, why)
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.at += wanted.len_utf8();
        }
        there
    }

    /// White space and comments.
    fn blank(&mut self) -> Result<(), Broken> {
        loop {
            let rest = &self.text[self.at..];
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or_else(|| self.broken("this comment has no end"))?;
                self.at += end + 2;
            } else {
                let trimmed =
                    rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
                if trimmed.len() == rest.len() {
                    return Ok(());
                }
                self.at += rest.len() - trimmed.len();
            }
        }
    }

    fn value(&mut self) -> Result<Node, Broken> {
        let start = self.at;
        let value = match self.peek() {
            None => return Err(self.broken("a value is missing at the end")),
            Some('{') => self.nested(Reader::map)?,
            Some('[') => self.nested(Reader::list)?,
            Some(quote @ ('"' | '\'')) => Value::Text(self.string(quote)?),
            Some(_) => Value::Other(self.word()?),
        };
        Ok(Node::new(start..self.at, value))
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Value, Broken>,
    ) -> Result<Value, Broken> {
        if self.depth == DEEPEST {
            return Err(self.broken("too many levels"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn map(&mut self) -> Result<Value, Broken> {
        let mut pairs = Vec::new();
        loop {
            self.blank()?;
            if self.eat('}') {
                return Ok(Value::Map(pairs));
            }
            let start = self.at;
            let key = match self.peek() {
                Some(quote @ ('"' | '\'')) => self.string(quote)?,
                _ => self.bare_key()?,
            };
            let key_span = start..self.at;
            self.blank()?;
            if !self.eat(':') {
                return Err(self.broken("a colon is missing"));
            }
            self.blank()?;
            let value = self.value()?;
            pairs.push(Pair { key, key_span, value });
            self.blank()?;
            if !self.eat(',') && self.peek() != Some('}') {
                return Err(self.broken("a comma or a closing brace is missing"));
            }
        }
    }

    fn list(&mut self) -> Result<Value, Broken> {
        let mut items = Vec::new();
        loop {
            self.blank()?;
            if self.eat(']') {
                return Ok(Value::List(items));
            }
            items.push(self.value()?);
            self.blank()?;
            if !self.eat(',') && self.peek() != Some(']') {
                return Err(self.broken("a comma or a closing bracket is missing"));
            }
        }
    }

    fn bare_key(&mut self) -> Result<String, Broken> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_$".contains(c)));
        let key = &rest[..end.unwrap_or(rest.len())];
        if key.is_empty() {
            return Err(self.broken("a key is missing"));
        }
        self.at += key.len();
        Ok(key.to_owned())
    }

    /// A number, `true`, `false`, `null` and their kin.
    fn word(&mut self) -> Result<String, Broken> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
        let word = &rest[..end.unwrap_or(rest.len())];
        let number = word.trim_start_matches(['+', '-']);
        let known = ["true", "false", "null"].contains(&word)
            || ["Infinity", "NaN"].contains(&number)
            || number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        if !known {
            return Err(self.broken("this is no value"));
        }
        self.at += word.len();
        Ok(word.to_owned())
    }

    fn string(&mut self, quote: char) -> Result<String, Broken> {
        let start = self.at;
        let unended = |reader: &Self| Broken::at(reader.text, start, "this text has no end");
        self.at += 1;
        let mut said = String::new();
        loop {
            let c = self.peek().ok_or_else(|| unended(self))?;
            match c {
                '\n' | '\r' => return Err(unended(self)),
                '\\' => {
                    self.at += 1;
                    self.escape(&mut said)?;
                    continue;
                }
                c if c == quote => {
                    self.at += 1;
                    return Ok(said);
                }
                c => said.push(c),
            }
            self.at += c.len_utf8();
        }
    }

    /// What follows a backslash.
    fn escape(&mut self, said: &mut String) -> Result<(), Broken> {
        let c = self.peek().ok_or_else(|| self.broken("this text has no end"))?;
        match c {
            'u' => {
                self.at += 1;
                let first = self.hex(4)?;
                let second = self.text[self.at..].strip_prefix("\\u").and_then(low_half);
                let c = match (first, second) {
                    (0xd800..0xdc00, Some(low)) => {
                        self.at += 6;
                        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00))
                    }
                    _ => char::from_u32(first),
                };
                said.push(c.unwrap_or('\u{fffd}'));
                return Ok(());
            }
            'x' => {
                self.at += 1;
                let code = self.hex(2)?;
                said.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                return Ok(());
            }
            'b' => said.push('\u{8}'),
            'f' => said.push('\u{c}'),
            'n' => said.push('\n'),
            'r' => said.push('\r'),
            't' => said.push('\t'),
            'v' => said.push('\u{b}'),
            '0' => said.push('\0'),
            // The text goes on in the next line.
            '\r' => drop(self.text[self.at..].starts_with("\r\n").then(|| self.at += 1)),
            '\n' => {}
            c => said.push(c),
        }
        self.at += c.len_utf8();
        Ok(())
    }

    fn hex(&mut self, digits: usize) -> Result<u32, Broken> {
        let code = self.text.get(self.at..self.at + digits);
        let code = code.filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let code = code.ok_or_else(|| self.broken("this is no character"))?;
        self.at += digits;
        Ok(code)
    }
}

/// The second half of a character that is written in two.
fn low_half(text: &str) -> Option<u32> {
    let code = u32::from_str_radix(text.get(..4)?, 16).ok()?;
    (0xdc00..0xe000).contains(&code).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_read_as_json_is() {
        let strict = r#"{"a": ["x\u00e9\ud83d\udc02", 1.5e3, null], "b": {"c": "d\\e"}}"#;
        let loose = "// one\n{ /* two */ a: ['x\u{e9}\u{1f402}', 1.5e3, null,], 'b': {\n c: \"d\\\n\\\\e\", }, } // end";
        assert_eq!(parse(strict).unwrap().plain(), parse(loose).unwrap().plain());
    }

    #[test]
    fn places_are_those_of_the_literals() {
        let text = "{ \"k\" : [ \"\u{e9}\\n\" , 'x' ] }";
        let tree = parse(text).unwrap();
        let pair = tree.pair("k").unwrap();
        assert_eq!(&text[pair.key_span.clone()], "\"k\"");
        let items = pair.value.items().unwrap();
        assert_eq!(&text[items[0].span.clone()], "\"\u{e9}\\n\"");
        assert_eq!(&text[items[1].span.clone()], "'x'");
    }

    #[test]
    fn what_is_broken_is_pointed_at() {
        for (text, place) in [
            ("{\n  \"a\": \n}", "3:1"),
            ("{\"a\" 1}", "1:6"),
            ("{\"a\": 1 \"b\": 2}", "1:9"),
            ("{\"a\": \"x\n\"}", "1:7"),
            ("[1, 2", "1:6"),
            ("{} x", "1:4"),
            ("/* x", "1:1"),
            ("{\"a\": yes}", "1:7"),
            ("{\"a\": \"\\u12\"}", "1:10"),
            ("{\n<<<<<<< HEAD\n}", "2:1"),
        ] {
            let broken = parse(text).unwrap_err().to_string();
            assert!(broken.starts_with(&format!("{place}: ")), "{text:?}: {broken}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn an_empty_file_has_no_servers() {
        for text in ["", " \n", "// nothing yet\n"] {
            assert!(parse(text).unwrap().pairs().is_empty(), "{text:?}");
        }
    }
}
