//! A relay that has nothing to do for now: what it counts as, and for how long it may last.

use std::task::Context;

use protocol::message::TxStatus;

use super::super::deadline::Doing;
use super::{End, Relay, Session};
use crate::registry::ClientState;

impl Session {
    pub(super) fn overdue_in_relay(&mut self, relay: &Relay, cx: &mut Context<'_>) -> Option<End> {
        let limits = self.limits()?;
        let doing = self.doing(relay);
        let between = self.engine.is_settled() && self.engine.status() == TxStatus::Idle;
        let transaction = (!between).then(|| relay.watch.ended());
        self.keep_in_time(cx, &limits, doing, transaction)
    }

    fn doing(&self, relay: &Relay) -> Doing {
        let tracker = self.engine.tracker();
        // A server that waits for COPY data hears no cancel request, as little as its own statement_timeout.
        let gives = tracker.in_copy() && self.to_server.is_empty();
        if self.engine.is_waiting() && !gives {
            return Doing::Running(tracker.next_push().unwrap_or(tracker.last_push()));
        }
        if gives
            || relay.doubt.is_some()
            || relay.leaving.is_some()
            || !self.to_client.is_empty()
            || !self.to_server.is_empty()
        {
            return Doing::Other;
        }
        match self.engine.status() {
            TxStatus::Idle if self.engine.is_settled() && relay.watch.listens() => Doing::Other,
            TxStatus::Idle if self.engine.is_settled() => Doing::Idle,
            _ => Doing::IdleInTransaction,
        }
    }

    /// Nothing to do for now.
    pub(super) fn pause(&mut self) {
        self.reclaim();
        self.client.entry.set_state(match self.engine.status() {
            _ if self.engine.is_waiting() => ClientState::Active,
            TxStatus::Idle => ClientState::Held,
            _ => ClientState::InTransaction,
        });
        let pin = self.engine.pin();
        if pin == self.client.entry.pin() {
            return;
        }
        self.client.entry.set_pin(pin);
        if let Some(pin) = pin {
            let position = router::PinReason::ALL.iter().position(|known| *known == pin);
            self.worker.shared.deps.metrics.pins.inc(position.unwrap_or_default());
            tracing::debug!(client = self.client.entry.id, reason = pin.as_str(), "session pinned");
        }
    }
}
