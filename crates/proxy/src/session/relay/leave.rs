//! A client that has said goodbye, or whose stream has ended, while it has a backend.

use std::task::Context;

use super::{End, GRACE, Leaving, Relay, Session};

impl Session {
    /// The client is leaving: is everything done that it asked for?
    pub(super) fn left(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Option<End> {
        let leaving = relay.leaving.filter(|_| !relay.anew)?;
        let tracker = self.engine.tracker();
        let waits_for_data = leaving == Leaving::Terminated && tracker.in_copy();
        let done =
            self.to_server.is_empty() && (self.engine.is_settled() || !tracker.owes() || waits_for_data);
        if done && (self.to_client.is_empty() || leaving == Leaving::Terminated) {
            return Some(match leaving {
                Leaving::Terminated => End::Terminated,
                Leaving::EndOfStream => End::ClientLeft,
            });
        }
        if leaving == Leaving::EndOfStream {
            let deadline = relay.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(GRACE)));
            if deadline.as_mut().poll(cx).is_ready() {
                return Some(End::ClientLeft);
            }
        }
        None
    }
}
