//! Numbers to read: medians, tables, bars.

use serde_json::json;

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which that share of the values lies.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// The median of the ratios within each round: what drifts from round to round falls out.
pub(crate) fn ratio(values: &[f64], to: &[f64]) -> f64 {
    let ratios: Vec<f64> = values.iter().zip(to).map(|(value, base)| value / base).collect();
    median(&ratios)
}

/// What was measured, printed as it comes or at the end as JSON.
pub(crate) struct Report {
    json: bool,
    tables: Vec<serde_json::Value>,
    bars: Vec<serde_json::Value>,
    lines: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Report {
        Report { json, tables: vec![], bars: vec![], lines: vec![], skipped: vec![] }
    }

    /// Something that is not measured, and why.
    pub(crate) fn skip(&mut self, what: String) {
        eprintln!("skipped {what}");
        self.skipped.push(what);
    }

    /// A table: one name per row, one number per column.
    pub(crate) fn table(&mut self, title: &str, columns: &[&str], rows: &[(String, Vec<f64>)]) {
        let numbers = |row: &[f64]| -> serde_json::Map<String, serde_json::Value> {
            columns.iter().zip(row).map(|(name, n)| (name.to_string(), json!(n))).collect()
        };
        let shown: Vec<_> =
            rows.iter().map(|(name, row)| json!({"name": name, "values": numbers(row)})).collect();
        self.tables.push(json!({"title": title, "rows": shown}));
        if self.json {
            return;
        }
        let widest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(12);
        println!("\n{title}");
        let heads: String = columns.iter().map(|head| format!("{head:>13}")).collect();
        println!("  {:widest$}{heads}", "");
        for (name, row) in rows {
            let cells: String = row.iter().map(|n| format!("{:>13}", cell(*n))).collect();
            println!("  {name:widest$}{cells}");
        }
    }

    /// A bar: the value may not exceed the limit.
    pub(crate) fn bar(&mut self, what: &str, value: f64, limit: f64, unit: &str) {
        let verdict = if value <= limit { "PASS" } else { "MISS" };
        let line = format!("{verdict}  {what}: {} (at most {}) {unit}", cell(value), cell(limit));
        self.lines.push(line.trim_end().to_owned());
        self.bars.push(json!({
            "what": what, "value": value, "limit": limit, "unit": unit, "pass": value <= limit,
        }));
    }

    /// Prints what is left to print.
    pub(crate) fn finish(self) {
        if self.json {
            println!(
                "{:#}",
                json!({"tables": self.tables, "bars": self.bars, "skipped": self.skipped})
            );
            return;
        }
        println!("\nbars");
        self.lines.iter().for_each(|line| println!("  {line}"));
        self.skipped.iter().for_each(|what| println!("  skipped {what}"));
    }
}

/// As many digits as mean something.
fn cell(number: f64) -> String {
    match number.abs() {
        n if n.is_nan() => "-".into(),
        n if n >= 1000.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        0.0 => "0".into(),
        _ => format!("{number:.3}"),
    }
}
