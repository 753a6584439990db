//! Where a unit of work goes.

use router::{Isolation, Policy, Reason, Target, TxMode, decide};

use super::Session;
use crate::engine::{Boundary, Unit};
use crate::settings::{Setting, Settings};

impl Session {
    /// Where a unit goes.
    pub(super) fn route(&mut self, unit: &Unit) -> (Target, Reason) {
        let policy = Policy { load_balance: self.config.load().load_balance_mode };
        let mut view = self.lazy.view();
        view.mode = default_mode(self.engine.settings()).overlaid(view.mode);
        let routed = decide(&unit.verdict, &view, &policy);
        let may_write = unit.boundary == Boundary::FlushedRun && !view.in_transaction;
        match routed {
            (Target::Read | Target::Anywhere, _) if may_write => (Target::Primary, Reason::OpenBatch),
            routed => routed,
        }
    }
}

/// The transaction modes that the client asked for at start-up; SET of them pins.
fn default_mode(settings: &Settings) -> TxMode {
    let value = |name| match settings.get(name) {
        Some(Setting::Value(value)) => Some(value.to_ascii_lowercase()),
        _ => None,
    };
    let isolation = value("default_transaction_isolation").and_then(|value| match value.as_str() {
        "serializable" => Some(Isolation::Serializable),
        _ => None,
    });
    let read_only = value("default_transaction_read_only");
    let read_only = read_only.map(|value| matches!(value.as_str(), "on" | "true" | "yes" | "1" | "t" | "y"));
    TxMode { read_only, isolation, deferrable: None }
}
