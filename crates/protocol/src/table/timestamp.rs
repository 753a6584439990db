//! `timestamp with time zone`: microseconds since 1970-01-01 00:00 UTC on our side, since
//! 2000-01-01 in the binary format, ISO 8601 in UTC as text.

/// From 1970-01-01 to 2000-01-01.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;
const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// The binary value.
pub(super) fn encode(unix_micros: i64) -> Option<i64> {
    unix_micros.checked_sub(POSTGRES_EPOCH_MICROS)
}

/// As `timestamptz_out` writes it with `TimeZone = UTC`: `2026-01-31 12:00:00.5+00`.
pub(super) fn format(unix_micros: i64) -> String {
    let (seconds, micros) =
        (unix_micros.div_euclid(MICROS_PER_SECOND), unix_micros.rem_euclid(MICROS_PER_SECOND));
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match micros {
        0 => String::new(),
        _ => format!(".{micros:06}").trim_end_matches('0').to_owned(),
    };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}+00")
}

/// Reads `2026-01-31 12:00:00[.123456][+01[:30]]`; no offset means UTC. `None` for anything else.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut parts = date.splitn(3, '-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let split = time.find(['+', '-', 'Z']).unwrap_or(time.len());
    let (clock, zone) = time.split_at_checked(split)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day) && year <= 9999;
    if !valid || hour > 23 || minute > 59 || second > 60 || fraction.len() > 6 {
        return None;
    }
    let micros = number(&format!("{fraction:0<6}"))?;
    let days = days_of(year, month, day);
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset(zone)?;
    Some(seconds * MICROS_PER_SECOND + micros)
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.is_empty() || zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':').unwrap_or((rest, "0"));
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours <= 15 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

/// A number of at most six digits and nothing else.
fn number(text: &str) -> Option<i64> {
    let fits = (1..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Years are counted from March, so
/// that the leap day is the last; 400 years have 146,097 days.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The date of a number of days since 1970-01-01: the inverse of [`days_of`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_moments() {
        assert_eq!(format(0), "1970-01-01 00:00:00+00");
        assert_eq!(format(POSTGRES_EPOCH_MICROS), "2000-01-01 00:00:00+00");
        assert_eq!(format(1_709_210_096_120_000), "2024-02-29 12:34:56.12+00");
        assert_eq!(format(-1), "1969-12-31 23:59:59.999999+00");
        assert_eq!(parse("2024-02-29 12:34:56.12+00"), Some(1_709_210_096_120_000));
        assert_eq!(parse("2024-02-29 13:34:56.12+01"), Some(1_709_210_096_120_000));
        assert_eq!(parse("2024-02-29T12:34:56"), Some(1_709_210_096_000_000));
        assert_eq!(encode(POSTGRES_EPOCH_MICROS), Some(0));
        for bad in ["", "2024-02-29", "2024-13-01 00:00:00", "x", "2024-02-29 12:34", "2024-02-29 12:34:56x"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn reads_back(micros in -60_000_000_000_000_000i64..250_000_000_000_000_000) {
            prop_assert_eq!(parse(&format(micros)), Some(micros));
        }

        #[test]
        fn any_text_is_no_panic(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
