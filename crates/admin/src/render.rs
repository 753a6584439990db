//! How values look in every surface: times, delays, addresses, shares.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::{NodeState, Role};
use protocol::table::Cell;

use crate::view::{Delay, Endpoint, NodeRow};

const SECONDS_PER_DAY: u64 = 86_400;

/// `YYYY-MM-DD HH:MM:SS` in UTC, as Pgpool-II's columns have it.
pub(crate) fn time(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let of_day = seconds % SECONDS_PER_DAY;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// As [`time`] with the zone's name, as PgBouncer's columns have it.
pub(crate) fn time_with_zone(at: SystemTime) -> String {
    format!("{} UTC", time(at))
}

/// RFC 3339, for JSON.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    format!("{}Z", time(at).replacen(' ', "T", 1))
}

/// The date of a day since 1970-01-01. Years are counted from March, so that the leap day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Pgpool-II's `replication_delay`: bytes, or `0.123456 second`; empty when it is not known.
pub(crate) fn delay(delay: Option<Delay>) -> String {
    match delay {
        None => String::new(),
        Some(Delay::Bytes(bytes)) => bytes.to_string(),
        Some(Delay::Time(time)) => format!("{:.6} second", time.as_secs_f64()),
    }
}

/// What the node said of itself, as far as that still counts: one that is not in use is nobody's primary.
pub(crate) fn seen_role(node: &NodeRow) -> Role {
    let in_use = matches!(node.state, NodeState::Up | NodeState::Waiting);
    match node.seen_role {
        Role::Primary if !in_use => Role::Unknown,
        _ if node.answers == Some(false) => Role::Unknown,
        role => role,
    }
}

/// A WAL position as PostgreSQL writes `pg_lsn`.
pub(crate) fn lsn(position: u64) -> String {
    format!("{:X}/{:X}", position >> 32, position & 0xFFFF_FFFF)
}

/// Each node's share of the weights, in the order of the rows; all 0 when no node has weight.
pub(crate) fn shares(nodes: &[NodeRow]) -> Vec<f64> {
    let total: f64 = nodes.iter().map(|node| node.weight).sum();
    nodes.iter().map(|node| if total > 0.0 { node.weight / total } else { 0.0 }).collect()
}

/// PgBouncer's `addr`.
pub(crate) fn address(end: Endpoint) -> Cell {
    match end {
        Endpoint::Unix => Cell::from("unix"),
        Endpoint::Tcp(address, _) => Cell::Text(address.to_string()),
    }
}

/// PgBouncer's `port`; a Unix socket has none.
pub(crate) fn port(end: Endpoint) -> Cell {
    match end {
        Endpoint::Unix => Cell::Int(0),
        Endpoint::Tcp(_, port) => Cell::Int(i64::from(port)),
    }
}

/// Whole seconds and the microseconds that remain.
pub(crate) fn seconds_and_micros(time: Duration) -> (Cell, Cell) {
    (Cell::Int(i64::try_from(time.as_secs()).unwrap_or(i64::MAX)), Cell::from(time.subsec_micros()))
}

/// A count as a cell.
/// Events in a span of time; none in no time.
pub(crate) fn per_second(count: u64, within: Duration) -> f64 {
    // Counts of a while are far below 2^53.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let count = count as f64;
    if within.is_zero() { 0.0 } else { count / within.as_secs_f64() }
}

/// The share of each of so many.
pub(crate) fn mean(time: Duration, count: u64) -> Duration {
    time.checked_div(u32::try_from(count).unwrap_or(u32::MAX)).unwrap_or_default()
}

pub(crate) fn count(number: u64) -> Cell {
    Cell::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A length as a cell.
pub(crate) fn length(number: usize) -> Cell {
    Cell::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_right_at_the_borders_of_the_calendar() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_704_067_199, "2023-12-31 23:59:59"),
            (1_704_067_200, "2024-01-01 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(time(at(seconds)), expected);
        }
        assert_eq!(rfc3339(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time_with_zone(at(0)), "1970-01-01 00:00:00 UTC");
    }

    #[test]
    fn delays_and_positions_look_as_in_postgresql() {
        assert_eq!(delay(None), "");
        assert_eq!(delay(Some(Delay::Bytes(16))), "16");
        assert_eq!(delay(Some(Delay::Time(Duration::from_micros(123_456)))), "0.123456 second");
        assert_eq!(lsn(0x16_B374_D848), "16/B374D848");
    }
}
