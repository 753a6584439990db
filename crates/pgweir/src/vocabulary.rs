//! The words of the other crates, in the order of their enums, as the metrics' labels.

use cluster::{ConnectFailure, Role};
use proxy::login::LoginError;
use router::{PinReason, Reason};
use telemetry::metrics::Vocabulary;

const CONNECT_FAILURES: [ConnectFailure; 5] = [
    ConnectFailure::Unreachable,
    ConnectFailure::TimedOut,
    ConnectFailure::NotReady,
    ConnectFailure::Rejected,
    ConnectFailure::Protocol,
];
const ROLES: [Role; 3] = [Role::Unknown, Role::Primary, Role::Standby];

/// The words, in the order in which the other crates count by position.
pub(crate) struct Words {
    route_reasons: Vec<&'static str>,
    pin_reasons: Vec<&'static str>,
    connect_failures: Vec<&'static str>,
    roles: Vec<&'static str>,
}

impl Words {
    /// Collects them.
    pub(crate) fn new() -> Self {
        Self {
            route_reasons: Reason::ALL.iter().map(|reason| reason.as_str()).collect(),
            pin_reasons: PinReason::ALL.iter().map(|reason| reason.as_str()).collect(),
            connect_failures: CONNECT_FAILURES.iter().map(|failure| failure.as_str()).collect(),
            roles: ROLES.iter().map(|role| role.as_str()).collect(),
        }
    }

    /// As the metrics take them.
    pub(crate) fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            version: env!("CARGO_PKG_VERSION"),
            route_reasons: &self.route_reasons,
            pin_reasons: &self.pin_reasons,
            login_failures: LoginError::KINDS,
            connect_failures: &self.connect_failures,
            roles: &self.roles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_that_others_count_by() {
        for (position, failure) in CONNECT_FAILURES.into_iter().enumerate() {
            assert_eq!(failure as usize, position);
        }
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, position);
        }
    }

    #[test]
    fn the_metrics_take_the_words() {
        let words = Words::new();
        telemetry::Metrics::new(&words.vocabulary(), std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
}
