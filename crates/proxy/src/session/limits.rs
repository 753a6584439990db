//! What comes of a limit that is reached: a statement is cancelled, anything else ends the session.

use std::task::Context;

use protocol::message::TxStatus;

use super::deadline::{Doing, Limit, Limits, Ordinal};
use super::{End, Session};

impl Session {
    /// The limits in force, if there are any.
    pub(super) fn limits(&mut self) -> Option<Limits> {
        let limits = Limits::from(&**self.config.load());
        (!limits.are_off()).then_some(limits)
    }

    /// The client has its turn, and no backend.
    pub(super) fn idle_too_long(&mut self, cx: &mut Context<'_>) -> Option<End> {
        let limits = self.limits()?;
        let (doing, transaction) = match self.status() {
            TxStatus::Idle => (Doing::Idle, None),
            _ => (Doing::IdleInTransaction, Some(0)),
        };
        self.keep_in_time(cx, &limits, doing, transaction)
    }

    /// The client waits for a backend.
    pub(super) fn waited_too_long(&mut self, cx: &mut Context<'_>) -> Option<End> {
        let limits = self.limits()?;
        let transaction = self.lazy.is_open().then_some(0);
        self.keep_in_time(cx, &limits, Doing::Other, transaction)
    }

    /// Acts on the limit that is reached, and wakes the task when the next one is.
    pub(super) fn keep_in_time(
        &mut self,
        cx: &mut Context<'_>,
        limits: &Limits,
        doing: Doing,
        transaction: Option<Ordinal>,
    ) -> Option<End> {
        while let Some(limit) = self.deadline.poll(cx, limits, doing, transaction) {
            tracing::info!(client = self.client.entry.id, limit = limit.as_str(), "time limit reached");
            if limit != Limit::Query {
                return Some(End::Overdue(limit));
            }
            self.cancel_statement();
        }
        None
    }

    /// Asks the server to end what it does for this session; its answer goes to the client as any other. The
    /// backend stays with the session until the request is there.
    fn cancel_statement(&self) {
        let Some(on_its_way) = self.client.entry.begin_cancel() else { return };
        let load = self.worker.shared.loads.node(on_its_way.node());
        self.worker.tasks.spawn("cancel", async move {
            if let Err(error) = on_its_way.carry_out(load.cancels()).await {
                tracing::warn!(error = %error, "cannot cancel an overdue statement");
            }
        });
    }
}
