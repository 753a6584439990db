//! The commands that the console may give, on their way to the supervisor.

use admin::AdminControl;
use admin::view::{Outcome, Shutdown};
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use tokio::sync::{mpsc, oneshot};

use crate::reload::ReloadError;

/// Commands that wait for the supervisor.
const CHANNEL: usize = 16;
/// PostgreSQL's code for a configuration file that cannot be used.
const CONFIG_FILE_ERROR: SqlState = SqlState(*b"F0000");

/// What the supervisor is asked to do, and where the answer goes.
pub(crate) enum Command {
    Reload(oneshot::Sender<Result<String, ReloadError>>),
    Shutdown(Shutdown, oneshot::Sender<Result<(), Already>>),
}

/// The process is ending already, in a mode at least as strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Already;

/// The console's end.
pub(crate) struct Control(mpsc::Sender<Command>);

/// The two ends.
pub(crate) fn channel() -> (Control, mpsc::Receiver<Command>) {
    let (sender, receiver) = mpsc::channel(CHANNEL);
    (Control(sender), receiver)
}

impl Control {
    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, PgError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(make(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

fn gone() -> PgError {
    PgError::error(SqlState::ADMIN_SHUTDOWN, "pgweir is ending")
}

impl AdminControl for Control {
    fn reload(&self) -> Outcome<'_, String> {
        Box::pin(async {
            self.ask(Command::Reload).await?.map_err(|error| {
                PgError::error(CONFIG_FILE_ERROR, "the configuration is refused; nothing has changed")
                    .with_detail(error.to_string())
            })
        })
    }

    fn shutdown(&self, mode: Shutdown) -> Outcome<'_, ()> {
        Box::pin(async move {
            self.ask(|reply| Command::Shutdown(mode, reply)).await?.map_err(|Already| {
                let code = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
                PgError::error(code, "pgweir is ending already")
            })
        })
    }
}
