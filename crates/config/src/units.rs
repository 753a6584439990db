//! Numbers with units: `500ms`, `5min`, `64kB`, `0777`.
//!
//! The units are PostgreSQL's, letter for letter: `us ms s min h d` and `B kB MB GB TB` (1024 each).

use std::time::Duration;

use crate::yaml::Node;

/// What a bare number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Things.
    Count,
    /// Permission bits, written with a leading zero.
    Octal,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Minutes.
    Minutes,
    /// Hours.
    Hours,
}

impl Unit {
    /// The unit's name in the plural.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Count => "things",
            Self::Octal => "octal digits",
            Self::Bytes => "bytes",
            Self::Milliseconds => "milliseconds",
            Self::Seconds => "seconds",
            Self::Minutes => "minutes",
            Self::Hours => "hours",
        }
    }

    fn micros(self) -> u64 {
        match self {
            Self::Milliseconds => 1_000,
            Self::Minutes => 60_000_000,
            Self::Hours => 3_600_000_000,
            Self::Seconds | Self::Count | Self::Octal | Self::Bytes => 1_000_000,
        }
    }
}

/// Units of time in microseconds, largest first.
const TIMES: &[(&str, u64)] = &[
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Units of size in bytes, largest first.
const SIZES: &[(&str, u64)] = &[("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10), ("B", 1)];

/// Reads a whole number, in bytes for sizes.
pub(crate) fn number(unit: Unit, node: &Node) -> Option<u64> {
    match (unit, node) {
        (Unit::Octal, Node::Text(text)) if text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        // YAML 1.1 and 1.2 disagree about what 777 with or without a zero is: only text is safe.
        (Unit::Octal, Node::Int(0)) => Some(0),
        (Unit::Octal, _) => None,
        (_, Node::Int(value)) => u64::try_from(*value).ok(),
        (Unit::Bytes, Node::Text(text)) => scaled(text, SIZES),
        _ => None,
    }
}

/// Reads a duration; fractions are allowed, down to the microsecond.
pub(crate) fn duration(unit: Unit, node: &Node) -> Option<Duration> {
    match node {
        Node::Int(value) => {
            let micros = u64::try_from(*value).ok()?.checked_mul(unit.micros())?;
            Some(Duration::from_micros(micros))
        }
        Node::Float(value) => {
            let micros = Duration::from_micros(unit.micros()).as_secs_f64() * value;
            Duration::try_from_secs_f64(micros).ok()
        }
        Node::Text(text) => scaled(text, TIMES).map(Duration::from_micros),
        _ => None,
    }
}

/// `1.5 h` to a whole number of the smallest unit; `None` unless it is one exactly.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (digits, unit) = (text.get(..end)?, text.get(end..)?.trim_start());
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let whole = whole.parse::<u64>().ok()?.checked_mul(*scale)?;
    let decimals = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = fraction.parse::<u64>().ok()?.checked_mul(*scale)?;
    if part % decimals != 0 {
        return None;
    }
    whole.checked_add(part / decimals)
}

/// The shortest exact form: `90s`, `5min`, `1h`, `0`.
pub(crate) fn duration_text(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    scaled_text(micros, TIMES)
}

/// A number in the unit's own spelling.
pub(crate) fn number_text(unit: Unit, number: u64) -> String {
    match unit {
        Unit::Octal => format!("0{number:o}"),
        Unit::Bytes => scaled_text(number, SIZES),
        _ => number.to_string(),
    }
}

fn scaled_text(number: u64, units: &[(&str, u64)]) -> String {
    let unit = units.iter().find(|(_, scale)| number.is_multiple_of(*scale));
    match unit {
        Some((name, scale)) if number > 0 => format!("{}{name}", number / scale),
        _ => number.to_string(),
    }
}

/// "found" for a duration out of range: a bare number is told with its unit, the usual cause.
pub(crate) fn found_duration(unit: Unit, node: &Node) -> String {
    let found = crate::value::describe(node);
    if matches!(node, Node::Int(_) | Node::Float(_)) { format!("{found} ({})", unit.plural()) } else { found }
}

/// Follows a duration's range where there is no other list of units at hand.
pub(crate) const TIME_UNITS: &str = " with the unit us, ms, s, min, h or d";

/// The same for sizes.
pub(crate) const SIZE_UNITS: &str = " with the unit B, kB, MB, GB or TB";

/// What is accepted.
pub(crate) fn expects(unit: Unit, min: u64, max: u64) -> String {
    match unit {
        Unit::Count if max >= u64::from(u32::MAX) => format!("a number, at least {min}"),
        Unit::Count => format!("a number from {min} to {max}"),
        Unit::Octal => format!("an octal number from 0 to 0{max:o} with a leading zero, such as 0777"),
        Unit::Bytes => {
            let (min, max) = (scaled_text(min, SIZES), scaled_text(max, SIZES));
            format!("a size from {min} to {max}{SIZE_UNITS}; a bare number is in bytes")
        }
        _ => {
            let text = |millis| duration_text(Duration::from_millis(millis));
            let (min, max, plural) = (text(min), text(max), unit.plural());
            format!("a duration from {min} to {max}{TIME_UNITS}; a bare number is in {plural}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Node {
        Node::Text(text.to_owned())
    }

    #[test]
    fn durations() {
        let read = |node: &Node| duration(Unit::Seconds, node).map(|duration| duration.as_micros());
        for (written, micros) in [
            ("500ms", Some(500_000)),
            ("10s", Some(10_000_000)),
            ("5min", Some(300_000_000)),
            ("5 min", Some(300_000_000)),
            ("1h", Some(3_600_000_000)),
            ("1d", Some(86_400_000_000)),
            ("7us", Some(7)),
            ("1.5h", Some(5_400_000_000)),
            ("0.25s", Some(250_000)),
            ("0s", Some(0)),
            ("0.0000001s", None),
            ("1.s", None),
            (".5s", None),
            ("1.2.3s", None),
            ("5m", None),
            ("5 Min", None),
            ("5MIN", None),
            ("5", None),
            ("-5s", None),
            ("s", None),
            ("", None),
            ("5min 3s", None),
            ("1e3s", None),
            ("99999999999999999999s", None),
            ("9999999999999999999d", None),
            ("0.00000000000000000000000000001s", None),
        ] {
            assert_eq!(read(&text(written)), micros, "{written}");
        }
        assert_eq!(read(&Node::Int(3)), Some(3_000_000));
        assert_eq!(read(&Node::Float(0.5)), Some(500_000));
        assert_eq!(read(&Node::Int(-1)), None);
        assert_eq!(read(&Node::Float(-0.5)), None);
        assert_eq!(read(&Node::Float(f64::NAN)), None);
        assert_eq!(read(&Node::Float(1e300)), None);
        assert_eq!(read(&Node::Int(i128::MAX)), None);
        assert_eq!(duration(Unit::Milliseconds, &Node::Int(3)), Some(Duration::from_millis(3)));
        assert_eq!(duration(Unit::Hours, &Node::Int(2)), Some(Duration::from_secs(7200)));
    }

    #[test]
    fn sizes_and_modes() {
        for (unit, node, expected) in [
            (Unit::Bytes, text("64kB"), Some(65_536)),
            (Unit::Bytes, text("16 MB"), Some(16 << 20)),
            (Unit::Bytes, text("1.5GB"), Some(3 << 29)),
            (Unit::Bytes, text("10B"), Some(10)),
            (Unit::Bytes, text("64KB"), None),
            (Unit::Bytes, text("64k"), None),
            (Unit::Bytes, text("0.3B"), None),
            (Unit::Bytes, text("99999999TB"), None),
            (Unit::Bytes, Node::Int(4096), Some(4096)),
            (Unit::Bytes, Node::Int(-1), None),
            (Unit::Count, text("10"), None),
            (Unit::Count, Node::Float(1.0), None),
            (Unit::Octal, text("0777"), Some(0o777)),
            (Unit::Octal, text("0"), Some(0)),
            (Unit::Octal, text("0888"), None),
            (Unit::Octal, text("0+77"), None),
            (Unit::Octal, Node::Int(777), None),
        ] {
            assert_eq!(number(unit, &node), expected, "{unit:?} {node:?}");
        }
    }

    #[test]
    fn text_is_the_shortest_exact_form() {
        for (micros, expected) in
            [(0, "0"), (90_000_000, "90s"), (300_000_000, "5min"), (3_600_000_000, "1h"), (1_500, "1500us")]
        {
            assert_eq!(duration_text(Duration::from_micros(micros)), expected);
        }
        assert_eq!(number_text(Unit::Bytes, 65_536), "64kB");
        assert_eq!(number_text(Unit::Bytes, 1000), "1000B");
        assert_eq!(number_text(Unit::Octal, 0o700), "0700");
    }
}
