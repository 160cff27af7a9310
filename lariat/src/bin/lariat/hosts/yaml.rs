//! YAML, read as events with places by the `saphyr-parser` package, and brought into our shape.
//!
//! An alias stands in the tree as a copy of what it means, with the place of the alias itself: a host
//! reads it so, and an edit elsewhere that changes its meaning is noticed by comparing meanings. A merge
//! key is a key like any other here.

use super::tree::{Broken, Node, Pair, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::HashMap;
use std::ops::Range;

const DEEPEST: usize = 200;

/// Copies that aliases may make: a few lines can ask for more than there is memory.
const MOST_COPIES: usize = 100_000;

const ANCHORED: &str = "it has an anchor or a tag";
pub(crate) const ALIAS: &str = "it is an alias";
const BLOCK: &str = "it is written as a block of lines";

/// Reads a whole text.
pub(crate) fn parse(text: &str) -> Result<Node, Broken> {
    let places = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut reader = Reader {
        text,
        places,
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        copies: 0,
    };
    let empty = Node::new(text.len()..text.len(), Value::Map(Vec::new()));
    let mut tree = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(tree.unwrap_or(empty)),
            (Event::DocumentStart(_), span) => {
                let first = reader.next()?;
                let node = reader.node(first, 0)?;
                if tree.is_some() {
                    return Err(Broken::at(text, reader.at(span).start, "a second document"));
                }
                let nothing = matches!(&node.value, Value::Other(said) if said == "null");
                tree = Some(if nothing { empty.clone() } else { node });
            }
            _ => {}
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    /// Where each character begins: the events count characters.
    places: Vec<usize>,
    events: Parser<'t, saphyr_parser::StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    copies: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Broken> {
        let complaint = |error: ScanError| {
            let at = self.places.get(error.marker().index()).copied();
            Broken::at(self.text, at.unwrap_or(self.text.len()), error.info())
        };
        match self.events.next_event() {
            Some(event) => event.map_err(complaint),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn at(&self, span: Span) -> Range<usize> {
        let place = |index: usize| self.places.get(index).copied().unwrap_or(self.text.len());
        place(span.start.index())..place(span.end.index())
    }

    /// The end of a list or a map: of its bracket, and not of the comment behind it.
    fn end_at(&self, span: Span) -> usize {
        let at = self.at(span);
        let bracket = self.text[at.start..].starts_with([']', '}']);
        if bracket { at.start + 1 } else { at.end }
    }

    fn node(&mut self, (event, span): (Event<'t>, Span), depth: usize) -> Result<Node, Broken> {
        let mut at = self.at(span);
        if depth == DEEPEST {
            return Err(Broken::at(self.text, at.start, "too many levels"));
        }
        let (value, anchor, tagged) = match event {
            Event::Alias(id) => return self.copy(id, at),
            Event::Scalar(said, style, anchor, tag) => {
                // The end of a quoted one is told as where the next thing begins.
                at.end = at.start + written_length(&self.text[at.clone()]);
                let mut node = self.scalar(&said, style, at);
                if anchor > 0 || tag.is_some() {
                    node.fixed = Some(ANCHORED);
                }
                if anchor > 0 {
                    self.anchors.insert(anchor, node.clone());
                }
                return Ok(node);
            }
            Event::SequenceStart(anchor, tag) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, end) => break at.end = self.end_at(end),
                        event => items.push(self.node(event, depth + 1)?),
                    }
                }
                (Value::List(items), anchor, tag.is_some())
            }
            Event::MappingStart(anchor, tag) => {
                let mut pairs = Vec::new();
                loop {
                    match self.next()? {
                        (Event::MappingEnd, end) => break at.end = self.end_at(end),
                        event => {
                            let key = self.node(event, depth + 1)?;
                            let value = self.next()?;
                            let value = self.node(value, depth + 1)?;
                            pairs.push(Pair { key: name(&key), key_span: key.span, value });
                        }
                    }
                }
                (Value::Map(pairs), anchor, tag.is_some())
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => {
                return Err(Broken::at(self.text, at.start, "a value is missing"));
            }
        };
        let fixed = (anchor > 0 || tagged).then_some(ANCHORED);
        let node = Node { span: at, value, fixed };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn scalar(&self, said: &str, style: ScalarStyle, at: Range<usize>) -> Node {
        let plain = style == ScalarStyle::Plain;
        let value = match said {
            "" | "~" | "null" | "Null" | "NULL" if plain => Value::Other("null".into()),
            said if plain && is_other(said) => Value::Other(said.into()),
            said => Value::Text(said.into()),
        };
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let spread = block || (plain && self.text[at.clone()].contains('\n'));
        Node { span: at, value, fixed: spread.then_some(BLOCK) }
    }

    fn copy(&mut self, id: usize, at: Range<usize>) -> Result<Node, Broken> {
        let Some(target) = self.anchors.get(&id) else {
            return Err(Broken::at(self.text, at.start, "an alias of something that is not there"));
        };
        self.copies += size(target);
        if self.copies > MOST_COPIES {
            return Err(Broken::at(self.text, at.start, "too many aliases"));
        }
        Ok(Node { span: at, value: target.value.clone(), fixed: Some(ALIAS) })
    }
}

/// How much of this is the literal that it begins with.
fn written_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let Some(quote @ (b'"' | b'\'')) = bytes.first() else { return text.trim_end().len() };
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'\\' if *quote == b'"' => 2,
            b'\'' if *quote == b'\'' && bytes.get(at + 1) == Some(&b'\'') => 2,
            byte if byte == quote => return at + 1,
            _ => 1,
        };
    }
    text.len()
}

fn size(node: &Node) -> usize {
    let below: usize = match &node.value {
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(pairs) => pairs.iter().map(|pair| size(&pair.value)).sum(),
        Value::Text(_) | Value::Other(_) => 0,
    };
    below + 1
}

/// A truth value or a number, by the rules of YAML 1.2 and the words of 1.1.
fn is_other(said: &str) -> bool {
    const WORDS: [&str; 6] = ["true", "false", "yes", "no", "on", "off"];
    WORDS.contains(&said.to_lowercase().as_str())
        || (said.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            && said.parse::<f64>().is_ok())
        || said.strip_prefix("0x").is_some_and(|hex| i64::from_str_radix(hex, 16).is_ok())
}

fn name(key: &Node) -> String {
    match &key.value {
        Value::Text(text) | Value::Other(text) => text.clone(),
        // No host names a server so.
        Value::List(_) | Value::Map(_) => format!("? at {}", key.span.start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written<'t>(text: &'t str, node: &Node) -> &'t str {
        &text[node.span.clone()]
    }

    #[test]
    fn places_are_those_of_the_literals() {
        let text = "# gr\u{fc}\u{df}e\r\na: &x plain words  # c\r\nb: [ 'o''ne' , \"t\\n\" ,three ]\r\nc:\r\n- -y\r\n-   *x\r\nd: *x\r\n";
        let tree = parse(text).unwrap();
        let a = tree.get("a").unwrap();
        assert!(written(text, a).ends_with("plain words"), "{:?}", written(text, a));
        assert_eq!(a.fixed, Some(ANCHORED));
        let b = tree.get("b").unwrap();
        assert_eq!(written(text, b), "[ 'o''ne' , \"t\\n\" ,three ]");
        let items: Vec<&str> = b.items().unwrap().iter().map(|item| written(text, item)).collect();
        assert_eq!(items, ["'o''ne'", "\"t\\n\"", "three"]);
        let c = tree.get("c").unwrap().items().unwrap();
        assert_eq!(written(text, &c[0]), "-y");
        assert_eq!((c[1].text(), c[1].fixed), (Some("plain words"), Some(ALIAS)));
        assert_eq!(written(text, &c[1]), "*x");
        assert_eq!(&text[tree.pair("d").unwrap().key_span.clone()], "d");
    }

    #[test]
    fn what_is_broken_is_pointed_at() {
        let broken = parse("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(broken.line >= 2, "{broken}");
        assert!(parse("a: 1\n---\nb: 2\n").is_err());
        assert!(parse("a: *nowhere\n").is_err());
        assert!(parse(&"[".repeat(50_000)).is_err());
        let laughs: String = (1..12)
            .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")))
            .collect();
        assert!(parse(&format!("a0: &a0 ha\n{laughs}")).unwrap_err().why.contains("aliases"));
    }

    #[test]
    fn an_empty_file_has_no_servers() {
        for text in ["", "# nothing\n", "---\n", "null\n"] {
            assert!(parse(text).unwrap().pairs().is_empty(), "{text:?}");
        }
    }
}
