//! Waiting until it is known what the names in a statement mean, when that takes no more than a moment.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use super::relay::Relay;
use super::{End, Session};
use crate::catalog::State;
use crate::engine::Unit;
use crate::registry::Flag;

/// How long the first statements of a database wait until its catalog is known.
const FIRST: Duration = Duration::from_secs(1);
/// How long a statement waits that names what is not known.
const LATER: Duration = Duration::from_millis(250);

/// What ends when more is known, or has not become so in time.
pub(super) type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Session {
    /// Whether more may be known about the unit in a moment.
    pub(super) fn is_in_doubt(&mut self, unit: &Unit) -> bool {
        self.knowledge.load().state == State::Loading || unit.verdict.is_in_doubt()
    }

    /// The unit at the front of the client's buffer, judged by what is known after a moment. What is not known then
    /// goes to the primary.
    pub(super) async fn without_doubt(&mut self, unit: Unit) -> Result<Unit, End> {
        let patience = if self.knowledge.load().state == State::Loading { FIRST } else { LATER };
        let Some(mut answers) = self.catalog.ask() else { return Ok(unit) };
        // However it ends: what is known then counts.
        if tokio::time::timeout(patience, answers.changed()).await.is_err() {
            self.catalog.is_late();
        }
        self.next_unit().await
    }

    /// What `PGWEIR EXPLAIN` in the next `len` bytes tells is what a statement would meet that waited.
    pub(super) async fn know_for_explain(&mut self, len: usize) {
        const WORD: &[u8] = b"explain";
        let message = self.from_client.filled().get(..len).unwrap_or_default();
        if !message.windows(WORD.len()).any(|word| word.eq_ignore_ascii_case(WORD)) {
            return;
        }
        if let Some(mut answers) = self.catalog.ask() {
            // However it ends: what is known then is told.
            let _ = tokio::time::timeout(LATER, answers.changed()).await;
        }
    }

    /// The message at the front names what is not known, on a standby that it cannot leave: it waits a moment, if there is
    /// anybody to ask, and the client may cancel it meanwhile.
    pub(super) fn begin_doubt(&mut self, relay: &mut Relay) {
        match self.catalog.ask_anew() {
            Some(answered) => {
                relay.doubt = Some(Box::pin(async {
                    // However it ends: what is known then counts.
                    let _ = tokio::time::timeout(LATER, answered).await;
                }));
                self.client.entry.runs_here(true);
            }
            None => self.engine.judge(),
        }
    }

    /// Whether the message at the front need not wait for that, or not any longer.
    pub(super) fn is_past_doubt(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> bool {
        let Some(doubt) = &mut relay.doubt else { return true };
        if self.client.entry.is_raised(Flag::Cancel, cx) {
            self.engine.cancel_doubt();
        } else if doubt.as_mut().poll(cx).is_pending() {
            return false;
        } else {
            self.engine.judge();
        }
        relay.doubt = None;
        self.client.entry.runs_here(false);
        // One that came too late is not for what follows.
        self.client.entry.lower(Flag::Cancel);
        true
    }
}
