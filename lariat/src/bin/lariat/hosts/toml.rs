//! TOML, read with places by the `toml` package, and brought into our shape.

use super::tree::{Broken, Node, Pair, Value};
use ::toml::de::{DeTable, DeValue};

/// Reads a whole text.
pub(crate) fn parse(text: &str) -> Result<Node, Broken> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Broken::at(text, at, error.message().lines().next().unwrap_or("this is no TOML"))
    })?;
    Ok(Node::new(0..text.len(), map(text, table.get_ref())))
}

fn map(text: &str, table: &DeTable<'_>) -> Value {
    let pair = |(key, value): (&::toml::Spanned<_>, &::toml::Spanned<DeValue<'_>>)| Pair {
        key: AsRef::<str>::as_ref(key.get_ref()).to_owned(),
        key_span: key.span(),
        value: node(text, value),
    };
    let mut pairs: Vec<Pair> = table.iter().map(pair).collect();
    pairs.sort_by_key(|pair| pair.key_span.start);
    Value::Map(pairs)
}

fn node(text: &str, value: &::toml::Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let written = || text.get(span.clone()).unwrap_or_default().to_owned();
    let said = match value.get_ref() {
        DeValue::String(said) => Value::Text(said.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(|item| node(text, item)).collect()),
        DeValue::Table(table) => map(text, table),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            Value::Other(written())
        }
    };
    Node::new(span, said)
}
