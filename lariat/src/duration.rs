//! Durations as people write them: `2s`, `150ms`, `5m`, or plain seconds.

use std::time::Duration;

/// The longest a rung may last. Longer is a typing error.
const LONGEST: f64 = 24.0 * 3600.0;

/// Parses a duration.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits =
        text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is not a unit: write 150ms, 2s or 5m")),
    };
    let number: f64 = number.parse().map_err(|_| "write 150ms, 2s or 5m".to_string())?;
    let seconds = number * scale;
    if seconds > LONGEST {
        return Err("at most 24h".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The same, if it is any time at all.
pub fn some(text: &str) -> Result<Duration, String> {
    parse(text).and_then(|time| if time.is_zero() { Err("more than 0".into()) } else { Ok(time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        assert_eq!(parse("150ms"), Ok(Duration::from_millis(150)));
        assert_eq!(parse("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "-1s", "2 s", "1y", "1e99", "99999999h", "1.2.3s", "NaN", "inf"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
