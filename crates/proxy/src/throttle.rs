//! Failed logins are rate-limited, by address and user and by address alone.
//!
//! Who has failed too often waits before the next attempt begins, so that guessing many passwords takes long however
//! many connections do it; when the wait would be too long, it is refused. Other addresses notice nothing, and neither
//! do other users of the same address unless it fails on a large scale. Unix sockets are not limited.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures that cost nothing, and the time one more takes, for an address and a user.
const OF_USER: Rate = Rate { burst: 10, each: Duration::from_secs(1) };
/// The same for an address, whoever it says it is.
const OF_ADDRESS: Rate = Rate { burst: 200, each: Duration::from_millis(50) };
/// A longer wait is a refusal.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How many addresses and users are remembered. Beyond it those are forgotten who waited longest for nothing.
const MAX_DEBTORS: usize = 20_000;

#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    each: Duration,
}

/// Whether an attempt may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// After this time.
    After(Duration),
    /// It may not.
    Refused,
}

/// See the module's documentation. A debtor is known by the moment at which its failures are paid off.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    debtors: Mutex<HashMap<Key, Instant>>,
}

/// An address, and a user or everybody.
type Key = (IpAddr, Option<String>);

fn keys(address: IpAddr, user: &str) -> [(Key, Rate); 2] {
    [((address, Some(user.to_owned())), OF_USER), ((address, None), OF_ADDRESS)]
}

impl Throttle {
    /// Asked before a login that can fail.
    pub(crate) fn judge(&self, address: IpAddr, user: &str, now: Instant) -> Verdict {
        let mut debtors = self.debtors.lock();
        let mut wait = Duration::ZERO;
        for (key, rate) in keys(address, user) {
            let Some(paid) = debtors.get_mut(&key) else { continue };
            let over = paid.saturating_duration_since(now).saturating_sub(rate.each * rate.burst);
            if over > LONGEST_WAIT {
                return Verdict::Refused;
            }
            if !over.is_zero() {
                // Whoever waits beside it waits its turn.
                *paid += rate.each;
            }
            wait = wait.max(over);
        }
        Verdict::After(wait)
    }

    /// A login failed for want of the right secret.
    pub(crate) fn failed(&self, address: IpAddr, user: &str, now: Instant) {
        let mut debtors = self.debtors.lock();
        if debtors.len() >= MAX_DEBTORS {
            debtors.retain(|_, paid| *paid > now);
        }
        if debtors.len() >= MAX_DEBTORS {
            debtors.clear();
        }
        for (key, rate) in keys(address, user) {
            let paid = debtors.entry(key).or_insert(now);
            *paid = (*paid).max(now) + rate.each;
        }
    }

    /// A login succeeded: who has the secret does not guess.
    pub(crate) fn succeeded(&self, address: IpAddr, user: &str) {
        let mut debtors = self.debtors.lock();
        if !debtors.is_empty() {
            debtors.remove(&(address, Some(user.to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const NOW: Verdict = Verdict::After(Duration::ZERO);

    #[test]
    fn guessing_becomes_slow_and_others_notice_nothing() {
        let throttle = Throttle::default();
        let start = Instant::now();
        for _ in 0..OF_USER.burst {
            assert_eq!(throttle.judge(HERE, "joe", start), NOW);
            throttle.failed(HERE, "joe", start);
        }
        assert_eq!(throttle.judge(HERE, "joe", start), NOW);
        throttle.failed(HERE, "joe", start);
        assert_eq!(throttle.judge(HERE, "joe", start), Verdict::After(OF_USER.each));
        assert_eq!(throttle.judge(HERE, "jim", start), NOW);
        assert_eq!(throttle.judge(THERE, "joe", start), NOW);
        for _ in 0..10 {
            throttle.failed(HERE, "joe", start);
        }
        assert_eq!(throttle.judge(HERE, "joe", start), Verdict::Refused);
        assert_eq!(throttle.judge(HERE, "joe", start + Duration::from_secs(60)), NOW);
        throttle.succeeded(HERE, "joe");
        assert_eq!(throttle.judge(HERE, "joe", start), NOW);
    }

    #[test]
    fn many_names_from_one_address_are_one_guesser() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let failures = OF_ADDRESS.burst + 200;
        (0..failures).for_each(|n| throttle.failed(HERE, &n.to_string(), start));
        assert_eq!(throttle.judge(HERE, "anybody", start), Verdict::Refused);
        assert_eq!(throttle.judge(THERE, "anybody", start), NOW);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = Throttle::default();
        let start = Instant::now();
        (0..MAX_DEBTORS + 10).for_each(|n| throttle.failed(HERE, &n.to_string(), start));
        assert!(throttle.debtors.lock().len() <= MAX_DEBTORS + 2);
    }
}
