//! A client that has said goodbye, or whose stream has ended, while it has a backend.

use std::task::Context;

use super::{End, GRACE, Leaving, Relay, Session};

impl Session {
    /// The client is leaving: is everything done that it asked for?
    pub(super) fn left(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Option<End> {
        let leaving = relay.leaving.filter(|_| !relay.anew)?;
        // Behind the error that Terminate gives inside of a COPY the server says one thing more.
        let owes = self.engine.tracker().owes() || self.engine.has_said_goodbye();
        let done = self.to_server.is_empty() && (self.engine.is_settled() || !owes);
        if done && (self.to_client.is_empty() || leaving == Leaving::Terminated) {
            return Some(match leaving {
                Leaving::Terminated => End::Terminated,
                Leaving::EndOfStream => End::ClientLeft,
            });
        }
        if leaving == Leaving::EndOfStream || self.engine.has_said_goodbye() {
            let deadline = relay.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(GRACE)));
            if deadline.as_mut().poll(cx).is_ready() {
                return Some(End::ClientLeft);
            }
        }
        None
    }

    /// A server that reads COPY data takes Terminate for an error, tells the client, and ends the session.
    pub(super) fn passes_goodbye(&mut self, relay: &Relay) -> bool {
        let passes = relay.leaving == Some(Leaving::Terminated) && self.engine.tracker().in_copy();
        if passes {
            self.engine.say_goodbye(&mut self.to_server);
        }
        passes
    }

    /// Why the session ends whose server has answered Terminate.
    pub(super) fn as_goodbye(&self, relay: &Relay, end: End) -> End {
        match end {
            End::NodeLost(_) if relay.leaving.is_some() && self.engine.has_said_goodbye() => End::Terminated,
            end => end,
        }
    }
}
