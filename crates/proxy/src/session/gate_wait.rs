//! Waiting until the database is resumed.

use std::time::Instant;

use super::Session;
use super::acquire::Interrupt;
use super::refusal::Refusal;
use crate::registry::{ClientState, WaitsFor};
use crate::stats::Count;

impl Session {
    /// Whether the database is paused.
    pub(super) fn is_gated(&self) -> bool {
        self.worker.shared.gates.is_paused(&self.identity.database)
    }

    /// Waits while the database is paused, as long as for any backend.
    pub(super) async fn pass_gate(&mut self) -> Result<(), Interrupt> {
        let (began, limit) = (Instant::now(), self.config.get().query_wait_timeout);
        self.client.entry.set_waiting(WaitsFor::Resume);
        let shared = std::sync::Arc::clone(&self.worker.shared);
        let database = std::sync::Arc::clone(&self.identity.database);
        let resumed = async {
            loop {
                let changed = shared.gates.changed();
                if !shared.gates.is_paused(&database) {
                    return;
                }
                changed.await;
            }
        };
        let resumed = Box::pin(async { tokio::time::timeout(limit, resumed).await.is_ok() });
        let outcome = self.watched_or_cancelled(resumed).await;
        self.tally.add_time(Count::WaitNanos, began.elapsed());
        self.client.entry.set_state(ClientState::Idle);
        if outcome? {
            return Ok(());
        }
        self.worker.shared.deps.metrics.query_wait_timeouts.inc();
        Err(Refusal::Paused(limit).into())
    }
}
