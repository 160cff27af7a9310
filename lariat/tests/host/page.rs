//! The page of the guide that says which fields there are.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/guide/json.md");

/// The fields in the first column of a section's table.
pub(crate) fn documented(section: &str) -> BTreeSet<&'static str> {
    let lines = PAGE.lines().skip_while(|line| line.trim_start_matches("## ") != section).skip(1);
    let rows =
        lines.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split(" | ").next());
    names.flat_map(|names| names.split('`').skip(1).step_by(2)).collect()
}
