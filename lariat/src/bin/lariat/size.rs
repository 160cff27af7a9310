//! Sizes and shares as people write them: `512m`, `2g`, plain bytes; `1.5` CPUs.

/// Less memory than this starts no program at all.
const SMALLEST: u64 = 1 << 20;

/// More CPUs than this is a typing error, as is less than a hundredth of one.
const SHARES: std::ops::RangeInclusive<f64> = 0.01..=4096.0;

/// Parses an amount of memory into bytes. A unit is a power of 1024, as it is for containers.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("`{unit}` is not a unit: write 512m, 2g or a number of bytes")),
    };
    let number: u64 =
        number.parse().map_err(|_| "write 512m, 2g or a number of bytes".to_string())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes < SMALLEST => Err("at least 1m".into()),
        // The kernel counts in signed numbers.
        Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err("more memory than there can be".into()),
    }
}

/// Parses a number of CPUs.
pub(crate) fn cpus(text: &str) -> Result<f64, String> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match text.parse::<f64>() {
        Ok(cpus) if plain && SHARES.contains(&cpus) => Ok(cpus),
        Ok(_) if plain => Err("from 0.01 to 4096".into()),
        _ => Err("write a number of CPUs: 0.5, 1 or 1.5".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        assert_eq!(memory("1048576"), Ok(1 << 20));
        assert_eq!(memory("2048k"), Ok(2 << 20));
        assert_eq!(memory("512m"), Ok(512 << 20));
        assert_eq!(memory("512MiB"), Ok(512 << 20));
        assert_eq!(memory("2G"), Ok(2 << 30));
        assert_eq!(cpus("1.5"), Ok(1.5));
        assert_eq!(cpus(".5"), Ok(0.5));
        assert_eq!(cpus("2"), Ok(2.0));
    }

    #[test]
    fn nonsense_is_refused() {
        let sizes = ["", "m", "-1m", "1.5g", "2 g", "1x", "0", "4096", "1023k", "9999999t", "1e9"];
        for bad in sizes {
            assert!(memory(bad).is_err(), "{bad}");
        }
        // Too long for any number, and with a unit that is half of a letter.
        assert!(memory(&"9".repeat(40)).is_err());
        assert!(memory("1é").is_err());
        for bad in ["", ".", "-1", "0", "0.001", "1e2", "NaN", "inf", "99999", "half", "1,5"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
