//! Units that pgweir answers itself, in an ordinary session: `SHOW POOL_NODES` and its kin.

use protocol::console::{Caller, Context, Next, Status};
use protocol::frame::{HEADER_LEN, frontend_header};
use protocol::message::TxStatus;

use super::{End, Session};
use crate::engine::{Boundary, Unit, Violation};

impl Session {
    /// Runs the unit at the front of the client's buffer on the console.
    pub(super) async fn answer_locally(&mut self, unit: Unit) -> Result<(), End> {
        let caller = self.caller();
        let status = self.status();
        let mut left = unit.len;
        while left > 0 {
            let header = frontend_header(self.from_client.filled()).map_err(Violation::from)?;
            let Some(header) = header.filter(|header| self.from_client.filled().len() >= header.len) else {
                return Err(End::Terminated);
            };
            let message = self.from_client.filled().get(..header.len).unwrap_or_default().to_vec();
            self.from_client.consume(header.len);
            left = left.saturating_sub(header.len);
            if !feed(self, &caller, status, header.tag, message.get(HEADER_LEN..).unwrap_or_default()).await {
                return Err(End::Terminated);
            }
        }
        if unit.boundary == Boundary::Query {
            self.engine.drop_unnamed();
        }
        if self.local.is_skipping() {
            self.skip_to_sync = true;
            self.local = protocol::console::LocalServer::new();
        }
        self.flush().await
    }

    fn caller(&mut self) -> Caller {
        let config = self.config.load();
        let user = self.identity.user.to_string();
        Caller {
            admin: config.admin_users.contains(&user),
            stats: config.stats_users.contains(&user),
            database: self.identity.database.to_string(),
            user,
            in_admin_database: false,
            session: self.client.entry.id,
        }
    }
}

/// Feeds one message; false when the client says goodbye.
async fn feed(session: &mut Session, caller: &Caller, status: TxStatus, tag: u8, body: &[u8]) -> bool {
    let console = std::sync::Arc::clone(&session.worker.shared.deps.console);
    let context = Context { console: &*console, caller, status: Status::Session(status.as_byte()) };
    let local = &mut session.local;
    let mut next = Next::Wait;
    session.to_client.own(|own| next = local.feed(&context, tag, body, own));
    loop {
        match next {
            Next::Run(sql) => {
                let result = console.run(caller, &sql).await;
                let local = &mut session.local;
                let mut after = Next::Wait;
                session.to_client.own(|own| after = local.answer(&context, result, own));
                next = after;
            }
            Next::Wait => return true,
            _ => return false,
        }
    }
}
