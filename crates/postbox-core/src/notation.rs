//! How durations and sizes are written in configurations and in options of sinks: `500ms`, `7d`, `16MiB`.

use std::time::Duration;

/// One hour in milliseconds.
pub const HOUR_MS: u64 = 3_600_000;
/// One day in milliseconds.
pub const DAY_MS: u64 = 24 * HOUR_MS;
/// One KiB in bytes.
pub const KIB: u64 = 1_024;
/// One GiB in bytes.
pub const GIB: u64 = 1_024 * 1_024 * KIB;

/// Digits alone; too many of them are the largest number, which no bound allows.
pub fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
}

fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Reads a duration with its unit, within bounds given in milliseconds.
///
/// # Errors
/// The reason follows the value, as in `"x" is not a duration`.
pub fn duration(text: &str, min_ms: u64, max_ms: u64) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => HOUR_MS,
        "d" => DAY_MS,
        "" if !number.is_empty() && number.bytes().all(|b| b == b'0') => 1,
        "" if !number.is_empty() => {
            return Err("has no unit: seconds are `s`, milliseconds `ms`".to_owned());
        }
        _ => return Err("is not a duration".to_owned()),
    };
    let number = digits(number).ok_or("is not a duration")?;
    let ms = number.saturating_mul(unit_ms);
    match ms {
        _ if ms < min_ms => Err(format!("is less than {}", show_ms(min_ms))),
        _ if ms > max_ms => Err(format!("is more than {}", show_ms(max_ms))),
        _ => Ok(Duration::from_millis(ms)),
    }
}

/// What [`duration`] takes, to follow "set … to".
pub fn accepted_durations(min_ms: u64, max_ms: u64) -> String {
    format!("a duration such as 500ms, 1s, 1m, 168h or 7d, from {} to {}", show_ms(min_ms), show_ms(max_ms))
}

fn show_ms(ms: u64) -> String {
    show_duration(Duration::from_millis(ms))
}

/// A duration in the largest unit that divides it, as it may be written.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let unit = [(u128::from(DAY_MS), "d"), (u128::from(HOUR_MS), "h"), (60_000, "m"), (1_000, "s")]
        .into_iter()
        .find(|(size, _)| ms >= *size && ms.is_multiple_of(*size));
    match unit {
        Some((size, unit)) => format!("{}{unit}", ms / size),
        None if ms == 0 => "0".to_owned(),
        None => format!("{ms}ms"),
    }
}

/// Reads a number of bytes, within bounds.
///
/// # Errors
/// The reason follows the value, as in `"x" is not a size`.
pub fn size(text: &str, min: u64, max: u64) -> Result<usize, String> {
    let (number, unit) = split_unit(text);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => KIB,
        "mib" => KIB * KIB,
        "gib" => GIB,
        "kb" | "mb" | "gb" | "k" | "m" | "g" => {
            return Err("has a unit of unclear size: write KiB, MiB or GiB".to_owned());
        }
        _ => return Err("is not a size".to_owned()),
    };
    let number = digits(number).ok_or("is not a size")?;
    let bytes = number.saturating_mul(unit);
    match bytes {
        _ if bytes < min => Err(format!("is less than {}", show_size(min))),
        _ if bytes > max => Err(format!("is more than {}", show_size(max))),
        _ => usize::try_from(bytes).map_err(|_| "is more than this machine can address".to_owned()),
    }
}

/// What [`size`] takes, to follow "set … to".
pub fn accepted_sizes(min: u64, max: u64) -> String {
    format!("a size such as 16MiB, 512KiB or plain bytes, from {} to {}", show_size(min), show_size(max))
}

/// A number of bytes in the largest unit that divides it.
fn show_size(bytes: u64) -> String {
    [(GIB, "GiB"), (KIB * KIB, "MiB"), (KIB, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}
