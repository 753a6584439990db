//! The one clock of the process: moments count from its start.

use std::time::{Instant, SystemTime};

use cluster::Moment;

/// Turns the system's clocks into [`Moment`]s and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    started_at: SystemTime,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), started_at: SystemTime::now() }
    }

    /// What moments count from.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Now.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.started.elapsed())
    }

    /// When the process started, by the wall clock.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// A moment by the wall clock as it was at the start; a wall clock that was set since is not followed.
    pub(crate) fn wall(&self, moment: Moment) -> SystemTime {
        self.started_at.checked_add(moment.0).unwrap_or(self.started_at)
    }
}
