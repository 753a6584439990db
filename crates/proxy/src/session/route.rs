//! Where a unit of work goes: what the session and the configuration add to what its text says.

use cluster::NodeId;
use config::{Consistency, DisableLoadBalanceOnWrite, RedirectTarget};
use router::{Access, Hint, Isolation, Policy, Reason, Redirect, Target, TxMode, TxView, decide};

use super::Session;
use crate::engine::{Boundary, Unit, is_early};
use crate::registry::Peer;
use crate::settings::{Setting, Settings};

/// The parameter that says where a session's reads go.
pub(super) const ROUTE: &str = "pgweir.route";
/// The settings that a transaction begins with.
const DEFAULTS: [&str; 2] = ["default_transaction_read_only", "default_transaction_isolation"];

/// What a session has written, as far as its reads depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wrote {
    /// Anything.
    anything: bool,
    /// In an explicit transaction.
    in_transaction: bool,
}

impl Wrote {
    /// Something was written.
    pub(super) fn note(&mut self, in_transaction: bool) {
        self.anything = true;
        self.in_transaction |= in_transaction;
    }
}

impl Session {
    /// Where a unit goes.
    pub(super) fn route(&mut self, unit: &Unit) -> (Target, Reason) {
        let verdict = &unit.verdict;
        let view = self.view();
        let mut policy =
            self.policy(view.in_transaction || matches!(verdict.tx, router::TxControl::Begin(_)));
        policy.early_reads &= is_early(unit, view.mode);
        let may_write = unit.boundary == Boundary::FlushedRun && !view.in_transaction;
        match decide(verdict, &view, &policy) {
            (Target::Read | Target::Prefer(_) | Target::Anywhere, _) if may_write => {
                (Target::Primary, Reason::OpenBatch)
            }
            routed => routed,
        }
    }

    /// The transaction that what comes next is in, or begins.
    pub(super) fn view(&mut self) -> TxView {
        let mut view = self.lazy.view();
        let known = self.knowledge.load().default_mode(&self.identity.user);
        let asked = default_mode(self.engine.settings());
        view.mode = known.overlaid(asked).overlaid(view.mode);
        view
    }

    /// What the configuration and the session say, for this time.
    pub(super) fn policy(&mut self, in_transaction: bool) -> Policy {
        let read_only = self.is_read_only();
        // A standby need not show what others write while the transaction is there.
        let early_reads = !self.lazy.has_moved() && self.consistency() != Consistency::Global;
        let config = self.config.load();
        let after_write = match config.disable_load_balance_on_write {
            // A transaction that has written is on the primary to its end anyway.
            DisableLoadBalanceOnWrite::Off | DisableLoadBalanceOnWrite::Transaction => false,
            DisableLoadBalanceOnWrite::TransTransaction => in_transaction && self.wrote.in_transaction,
            DisableLoadBalanceOnWrite::Always => self.wrote.anything,
        };
        Policy {
            load_balance: config.load_balance_mode,
            read_only,
            route: self.lazy.route().unwrap_or_else(|| route_of(self.engine.settings())),
            after_write,
            early_reads: early_reads && config.transaction_load_balance,
            redirect: self.redirect(),
        }
    }

    /// The session asks for a standby, or a node that may be one, whatever it does.
    pub(super) fn is_routed_to_standby(&mut self) -> bool {
        let route = self.lazy.route().unwrap_or_else(|| route_of(self.engine.settings()));
        matches!(route, Some(Hint::Standby | Hint::Node(_)))
    }

    /// Whether the unit's answer tells how fast the node is: that of a lone read.
    pub(super) fn times(&mut self, unit: &Unit) -> bool {
        let alone = matches!(unit.boundary, Boundary::Query | Boundary::Sync)
            && unit.verdict.access == Access::Read
            && unit.verdict.tx == router::TxControl::None;
        alone && self.config.load().load_balance == config::LoadBalance::Latency
    }

    /// The client came by `read_only_port`.
    pub(super) fn is_read_only(&mut self) -> bool {
        let port = self.config.load().read_only_port;
        matches!(self.client.entry.local, Peer::Tcp(address) if Some(address.port()) == port)
    }

    /// Where the lists send this read.
    fn redirect(&mut self) -> Option<Redirect> {
        let rules = &self.knowledge.load().rules;
        if !rules.redirects() {
            return None;
        }
        let application = self.engine.settings().get("application_name").and_then(value_of);
        let application = application.unwrap_or_default();
        let found = rules.redirect(&self.identity.database, &self.identity.user, &application);
        let (target, share) = found?;
        if share < 1.0 && rand::random::<f64>() >= share {
            return None;
        }
        Some(match target {
            RedirectTarget::Primary => Redirect::Primary,
            RedirectTarget::Standby => Redirect::Standby,
            RedirectTarget::Node(id) => Redirect::Node(NodeId(id)),
        })
    }
}

/// `SET pgweir.route`; what is no route there is none.
fn route_of(settings: &Settings) -> Option<Hint> {
    Hint::parse(&value_of(settings.get(ROUTE)?)?)
}

/// The text of a setting's value.
fn value_of(setting: &Setting) -> Option<String> {
    match setting {
        Setting::Value(value) => Some(value.clone()),
        Setting::Statement(statement) => router::setting_value(statement),
    }
}

/// The transaction modes that the client asked for, at start-up or by SET. One that is not understood is taken
/// for the one that needs the primary.
fn default_mode(settings: &Settings) -> TxMode {
    let careful = TxMode { isolation: Some(Isolation::Serializable), ..TxMode::default() };
    let asked = DEFAULTS.into_iter().filter_map(|name| settings.get(name).map(|setting| (name, setting)));
    let modes = asked.map(|(name, setting)| {
        value_of(setting).and_then(|value| TxMode::from_setting(name, &value)).unwrap_or(careful)
    });
    modes.fold(TxMode::default(), TxMode::overlaid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use router::Change;

    fn set(statements: &[&str]) -> Settings {
        let mut settings = Settings::default();
        for statement in statements {
            for op in router::session_ops(statement.as_bytes(), true).unwrap() {
                let router::SessionOp::Changes(changes) = op else { panic!("{statement} is not followed") };
                changes.iter().for_each(|change: &Change| settings.change(change, &Settings::default()));
            }
        }
        settings
    }

    #[test]
    fn a_route_is_read_from_what_was_set() {
        let route = |statement: &str| route_of(&set(&[statement]));
        assert_eq!(route("SET pgweir.route = 'primary'"), Some(Hint::Primary));
        assert_eq!(route("SET pgweir.route TO standby"), Some(Hint::Standby));
        assert_eq!(route("SET SESSION \"pgweir\".\"route\" = 'node=2'"), Some(Hint::Node(NodeId(2))));
        assert_eq!(route("SELECT set_config('pgweir.route', 'standby', false)"), Some(Hint::Standby));
        assert_eq!(route("SET pgweir.route = 'auto'"), None);
        assert_eq!(route_of(&set(&["SET pgweir.route = 'primary'", "RESET pgweir.route"])), None);
        let start = Settings::new([("pgweir.route".to_owned(), "standby".to_owned())]);
        assert_eq!(route_of(&start), Some(Hint::Standby));
    }

    #[test]
    fn default_modes_are_read_from_what_was_set() {
        let mode = |statement: &str| default_mode(&set(&[statement]));
        assert_eq!(mode("SET default_transaction_read_only = on").read_only, Some(true));
        assert_eq!(mode("SET default_transaction_read_only TO 'false'").read_only, Some(false));
        let serializable = Some(Isolation::Serializable);
        assert_eq!(mode("SET default_transaction_isolation = 'serializable'").isolation, serializable);
        let repeatable = Some(Isolation::RepeatableRead);
        assert_eq!(mode("SET default_transaction_isolation TO 'repeatable read'").isolation, repeatable);
        let characteristics =
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY";
        assert_eq!(mode(characteristics).isolation, serializable);
        assert_eq!(mode(characteristics).read_only, Some(true));
        // Nonsense, which the server has refused: careful.
        assert_eq!(mode("SET default_transaction_isolation = 'nonsense'").isolation, serializable);
        assert_eq!(default_mode(&Settings::default()), TxMode::default());
    }
}
