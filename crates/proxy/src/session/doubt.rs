//! Waiting until it is known what the names in a statement mean, when that takes no more than a moment.

use std::time::Duration;

use super::{End, Session};
use crate::catalog::State;
use crate::engine::Unit;

/// How long the first statements of a database wait until its catalog is known.
const FIRST: Duration = Duration::from_secs(1);
/// How long a statement waits that names what is not known.
const LATER: Duration = Duration::from_millis(250);

impl Session {
    /// The unit at the front of the client's buffer, judged by what is known after a moment, if it must be. What is
    /// not known then goes to the primary.
    pub(super) async fn without_doubt(&mut self, unit: Unit) -> Result<Unit, End> {
        let first = self.knowledge.load().state == State::Loading;
        if !first && !unit.verdict.is_in_doubt() {
            return Ok(unit);
        }
        // In a transaction that may write it does not matter.
        let mut next = self.catalog.ask();
        let Some(answers) = &mut next else { return Ok(unit) };
        // However it ends: what is known then counts.
        let _ = tokio::time::timeout(if first { FIRST } else { LATER }, answers.changed()).await;
        self.next_unit().await
    }
}
