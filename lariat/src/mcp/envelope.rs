//! One JSON-RPC line, taken apart without being changed. Pure.
//!
//! The pieces point into the line, so that a token can be replaced where it stands. Nothing is ever
//! written anew: key order, unknown fields, escapes and numbers that fit no machine word stay as
//! they were. A key that occurs twice makes a line unreadable, because two readers could disagree
//! about what it says.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

/// A list with more items is unreadable: an item of two bytes would cost us sixteen.
const MOST_ITEMS: usize = 10_000;

/// What a line turned out to be.
#[derive(Debug)]
pub(crate) enum Line<'a> {
    /// A message.
    One(Envelope<'a>),
    /// A batch of what may be messages.
    Many(Items<'a>),
    /// JSON, but no message.
    Odd,
    /// Not JSON.
    Noise,
}

/// The members of a message. One that is there and `null` is there.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "words")]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) error: Option<&'a RawValue>,
}

/// The members of `params` and of `result` that say where a message belongs.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Members<'a> {
    #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "progressToken", deserialize_with = "present")]
    pub(crate) progress_token: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "requestId", deserialize_with = "present")]
    pub(crate) request_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) task: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) tools: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) uri: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) level: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "taskId", deserialize_with = "present")]
    pub(crate) task_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) status: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) tasks: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "elicitationId", deserialize_with = "present")]
    pub(crate) elicitation_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) elicitations: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "protocolVersion", deserialize_with = "present")]
    pub(crate) protocol_version: Option<&'a RawValue>,
}

/// The same inside their `_meta`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Meta<'a> {
    #[serde(borrow, default, rename = "progressToken", deserialize_with = "present")]
    pub(crate) progress_token: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/subscriptionId",
        deserialize_with = "present"
    )]
    pub(crate) subscription: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/related-task",
        deserialize_with = "present"
    )]
    pub(crate) related_task: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/logLevel",
        deserialize_with = "present"
    )]
    pub(crate) log_level: Option<&'a RawValue>,
}

/// The members of `error` that say more than that something failed.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Failure<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) code: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) data: Option<&'a RawValue>,
}

impl<'a> Failure<'a> {
    /// Of an object, like [`Members::of`].
    pub(crate) fn of(object: Option<&'a RawValue>) -> Option<Failure<'a>> {
        members(object)
    }

    pub(crate) fn has_code(&self, code: i64) -> bool {
        self.code.and_then(|raw| raw.get().parse().ok()) == Some(code)
    }
}

/// The items of a list: a batch, or tools.
#[derive(Debug, Default)]
pub(crate) struct Items<'a>(pub(crate) Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Items<'a>, D::Error> {
        struct Few;
        impl<'de> Visitor<'de> for Few {
            type Value = Items<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST_ITEMS}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                    if items.len() > MOST_ITEMS {
                        return Err(A::Error::invalid_length(items.len(), &self));
                    }
                }
                Ok(Items(items))
            }
        }
        from.deserialize_seq(Few)
    }
}

/// What a message is for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Wants an answer.
    Request,
    /// Wants none.
    Notification,
    /// Is one.
    Response,
    /// Makes no sense.
    Odd,
}

/// Takes a line apart.
pub(crate) fn read(line: &[u8]) -> Line<'_> {
    // Checked as a whole: what is skipped while parsing would not be.
    std::str::from_utf8(line).map_or(Line::Noise, read_text)
}

/// The same for what is known to be text.
pub(crate) fn read_text(text: &str) -> Line<'_> {
    let parsed = match text.trim_start().as_bytes().first() {
        Some(b'{') => serde_json::from_str(text).map(Line::One),
        Some(b'[') => serde_json::from_str(text).map(Line::Many),
        _ => serde_json::from_str::<&RawValue>(text).map(|_| Line::Odd),
    };
    parsed.unwrap_or_else(|error| if error.is_data() { Line::Odd } else { Line::Noise })
}

impl<'a> Envelope<'a> {
    pub(crate) fn shape(&self) -> Shape {
        match (&self.method, self.id) {
            (Some(_), Some(id)) if is_token(id) => Shape::Request,
            (Some(_), None) => Shape::Notification,
            (None, Some(_)) if self.result.is_some() || self.error.is_some() => Shape::Response,
            _ => Shape::Odd,
        }
    }
}

impl<'a> Members<'a> {
    /// Of an object; anything else has no members. `None` if a key occurs twice.
    pub(crate) fn of(object: Option<&'a RawValue>) -> Option<Members<'a>> {
        members(object)
    }

    /// What `_meta` says. `None` if a key occurs twice.
    pub(crate) fn meta(&self) -> Option<Meta<'a>> {
        members(self.meta)
    }
}

/// A derived struct would also read an array by position, so only objects get that far.
fn members<'a, T: Default + Deserialize<'a>>(object: Option<&'a RawValue>) -> Option<T> {
    match object {
        Some(object) if object.get().starts_with('{') => serde_json::from_str(object.get()).ok(),
        _ => Some(T::default()),
    }
}

/// True for what may be an id or a token: a string or a number.
pub(crate) fn is_token(raw: &RawValue) -> bool {
    raw.get().starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

/// The listen that a notification belongs to, by its id as it is written.
pub(crate) fn subscription_of<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    Some(Members::of(envelope.params)?.meta()?.subscription?.get())
}

/// Reads a token that we have made ourselves.
pub(crate) fn own(raw: &RawValue) -> Option<u64> {
    raw.get().parse().ok()
}

/// The words of a string.
pub(crate) fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inside = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    match inside.contains('\\') {
        true => serde_json::from_str(raw.get()).ok().map(Cow::Owned),
        false => Some(Cow::Borrowed(inside)),
    }
}

/// An id or a token, exactly as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Token {
    /// Digits, and nothing that the number would not be written with again.
    Number(u64),
    Text(Arc<str>),
}

impl From<u64> for Token {
    fn from(number: u64) -> Token {
        Token::Number(number)
    }
}

impl From<&str> for Token {
    fn from(raw: &str) -> Token {
        match raw.parse::<u64>() {
            // JSON has neither a plus sign nor zeros in front, but this may be called with both.
            Ok(number) if raw == "0" || raw.starts_with(|c: char| matches!(c, '1'..='9')) => {
                Token::Number(number)
            }
            _ => Token::Text(raw.into()),
        }
    }
}

impl From<String> for Token {
    fn from(raw: String) -> Token {
        Token::from(&*raw)
    }
}

impl From<&RawValue> for Token {
    fn from(raw: &RawValue) -> Token {
        Token::from(raw.get())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Number(number) => write!(f, "{number}"),
            Token::Text(text) => f.write_str(text),
        }
    }
}

/// Replacements in a line. All else keeps its bytes.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// Most lines have one, and need no list.
    first: Option<(Range<usize>, Token)>,
    more: Vec<(Range<usize>, Token)>,
}

impl Edits {
    /// Puts `new` where `old` stands, which is a piece of `line`.
    pub(crate) fn put(&mut self, line: &[u8], old: &RawValue, new: impl Into<Token>) {
        let start = old.get().as_ptr().addr().wrapping_sub(line.as_ptr().addr());
        let place = start..start.wrapping_add(old.get().len());
        debug_assert_eq!(line.get(place.clone()), Some(old.get().as_bytes()));
        if self.first.is_none() {
            self.first = Some((place, new.into()));
        } else {
            self.more.push((place, new.into()));
        }
    }

    /// The line as it should be.
    pub(crate) fn apply(mut self, mut line: Vec<u8>) -> Vec<u8> {
        if self.more.is_empty() {
            self.first.into_iter().for_each(|(place, new)| splice(&mut line, place, &new));
            return line;
        }
        self.more.extend(self.first);
        // From the back, so that what is in front stays where it was found.
        self.more.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
        for (place, new) in self.more {
            splice(&mut line, place, &new);
        }
        line
    }
}

fn splice(line: &mut Vec<u8>, place: Range<usize>, new: &Token) {
    let mut digits = Digits::default();
    let new = match new {
        Token::Text(text) => text.as_bytes(),
        Token::Number(number) => {
            // Twenty digits hold any number of 64 bits.
            let _fits = write!(digits, "{number}");
            &digits.0[..digits.1]
        }
    };
    match line.get_mut(place.clone()) {
        Some(old) if old.len() == new.len() => old.copy_from_slice(new),
        _ => drop(line.splice(place, new.iter().copied())),
    }
}

#[derive(Default)]
struct Digits([u8; 20], usize);

impl fmt::Write for Digits {
    fn write_str(&mut self, digits: &str) -> fmt::Result {
        let end = self.1 + digits.len();
        self.0.get_mut(self.1..end).ok_or(fmt::Error)?.copy_from_slice(digits.as_bytes());
        self.1 = end;
        Ok(())
    }
}

fn words<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    Ok(Option::<Words<'a>>::deserialize(from)?.map(|Words(words)| words))
}

/// A string that is copied only if it has escapes. What is derived for `Option<Cow>` always copies.
struct Words<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Words<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Words<'a>, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Words<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, words: &'de str) -> Result<Words<'de>, E> {
                Ok(Words(Cow::Borrowed(words)))
            }

            fn visit_str<E: Error>(self, words: &str) -> Result<Words<'de>, E> {
                Ok(Words(Cow::Owned(words.into())))
            }
        }
        from.deserialize_str(Read)
    }
}

fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Envelope<'_> {
        match read(line.as_bytes()) {
            Line::One(envelope) => envelope,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn messages_are_told_apart() {
        for (line, shape) in [
            (r#"{"id":1,"method":"a"}"#, Shape::Request),
            (r#"{"id":"","method":"a"}"#, Shape::Request),
            (r#"{"id":-1.5e3,"method":"a","result":1}"#, Shape::Request),
            (r#"{"method":"a"}"#, Shape::Notification),
            (r#"{"id":1,"result":null}"#, Shape::Response),
            (r#"{"id":null,"error":{}}"#, Shape::Response),
            (r#"{"id":null,"method":"a"}"#, Shape::Odd),
            (r#"{"id":[1],"method":"a"}"#, Shape::Odd),
            (r#"{"id":1}"#, Shape::Odd),
            (r#"{"result":1}"#, Shape::Odd),
            ("{}", Shape::Odd),
        ] {
            assert_eq!(one(line).shape(), shape, "{line}");
        }
    }

    #[test]
    fn an_id_of_null_is_not_no_id() {
        assert_eq!(one(r#"{"id" : null}"#).id.map(RawValue::get), Some("null"));
        assert!(one("{}").id.is_none());
    }

    #[test]
    fn what_is_no_message_is_seen() {
        for line in ["", "Listening on 3000", "{", "{}{}", r#"{"id":1,}"#, "\u{feff}{}", "[1,"] {
            assert!(matches!(read(line.as_bytes()), Line::Noise), "{line}");
        }
        assert!(matches!(read(b"{\"a\":\"\xff\"}"), Line::Noise), "not even text");
        for line in ["1", "null", r#""x""#, r#"{"method":1}"#, r#"{"id":1,"id":2}"#] {
            assert!(matches!(read(line.as_bytes()), Line::Odd), "{line}");
        }
        let Line::Many(Items(parts)) = read(b" [1, {\"id\":2}]") else { panic!("a batch") };
        assert_eq!(parts[1].get(), r#"{"id":2}"#);
        let many = |n| format!("[{}1]", "1,".repeat(n - 1));
        assert!(matches!(read(many(MOST_ITEMS).as_bytes()), Line::Many(_)));
        assert!(matches!(read(many(MOST_ITEMS + 1).as_bytes()), Line::Odd));
    }

    #[test]
    fn only_what_is_replaced_changes() {
        let line = concat!(
            r#" { "z":1e400, "params" : {"_meta":{"progressToken" :"\u0061", "x":{}},"#,
            r#""progressToken":7,"requestId":"r" ,"n":12345678901234567890123} ,"id": 1e2,"#,
            "\"method\":\"m\",\"a\":\"\\ud800\"}\t"
        );
        let envelope = one(line);
        let params = Members::of(envelope.params).unwrap();
        let mut edits = Edits::default();
        edits.put(line.as_bytes(), params.request_id.unwrap(), "22");
        edits.put(line.as_bytes(), envelope.id.unwrap(), "4711");
        edits.put(line.as_bytes(), params.meta().unwrap().progress_token.unwrap(), "3");
        edits.put(line.as_bytes(), params.progress_token.unwrap(), r#""seven""#);
        let expected = line
            .replace(r#""\u0061""#, "3")
            .replace(":7,", r#":"seven","#)
            .replace(r#""r""#, "22")
            .replace("1e2,", "4711,");
        let edited = edits.apply(line.as_bytes().to_vec());
        assert_eq!(String::from_utf8(edited).unwrap(), expected);
    }

    #[test]
    fn a_key_twice_is_not_read_either_way() {
        let twice = one(r#"{"params":{"name":"a","name":"b"}}"#);
        assert!(Members::of(twice.params).is_none());
        let escaped = one(r#"{"params":{"name":"a","n\u0061me":"b"}}"#);
        assert!(Members::of(escaped.params).is_none());
        let inside = one(r#"{"params":{"_meta":{"progressToken":1,"progressToken":2}}}"#);
        assert!(Members::of(inside.params).unwrap().meta().is_none());
        let by_position = one(r#"{"params":[1,2,3]}"#);
        assert!(Members::of(by_position.params).unwrap().progress_token.is_none());
    }
}
