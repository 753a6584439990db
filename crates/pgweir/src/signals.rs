//! The signals of the process, as what they ask for.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// HUP.
    Reload,
    /// TERM: smart; a second one: now.
    Terminate,
    /// INT.
    Fast,
    /// QUIT.
    Immediate,
    /// USR1.
    ReopenLogs,
    /// USR2: nothing. It is PgBouncer's RESUME, and left to the system it would end the process.
    Resume,
}

/// Catches the signals from when it is made.
pub(crate) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Takes over the signals.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.quit.recv() => Asked::Immediate,
            _ = self.interrupt.recv() => Asked::Fast,
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.hangup.recv() => Asked::Reload,
            _ = self.user1.recv() => Asked::ReopenLogs,
            _ = self.user2.recv() => Asked::Resume,
        }
    }
}
