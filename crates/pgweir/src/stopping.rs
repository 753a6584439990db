//! Coming to an end: which mode, and when the next stricter one is due. Pure.

use std::time::Duration;

use admin::view::Shutdown;
use cluster::Moment;

/// How long a fast stop may take before the process ends anyway.
const FAST_LIMIT: Duration = Duration::from_secs(10);

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stopping {
    begun: Option<(Shutdown, Moment)>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Stop in that mode.
    Begin(Shutdown),
    /// A mode at least as strict is under way.
    Nothing,
}

impl Stopping {
    /// The mode that is under way.
    pub(crate) fn mode(&self) -> Option<Shutdown> {
        self.begun.map(|(mode, _)| mode)
    }

    /// Somebody asks for a stop in that mode.
    pub(crate) fn ask(&mut self, mode: Shutdown, now: Moment) -> Step {
        if self.mode().is_some_and(|under_way| strictness(under_way) >= strictness(mode)) {
            return Step::Nothing;
        }
        self.begun = Some((mode, now));
        Step::Begin(mode)
    }

    /// SIGTERM: smart, and the second time fast.
    pub(crate) fn terminate(&mut self, now: Moment) -> Step {
        let mild = self.mode().is_none_or(|mode| mode == Shutdown::Patient);
        let mode = if mild { Shutdown::Smart } else { Shutdown::Fast };
        self.ask(mode, now)
    }

    /// When the mode under way has had its time; `shutdown_timeout` is the smart mode's. The patient one has no end.
    pub(crate) fn deadline(&self, shutdown_timeout: Duration) -> Option<Moment> {
        let (mode, since) = self.begun?;
        let limit = match mode {
            Shutdown::Patient => return None,
            Shutdown::Smart => shutdown_timeout,
            Shutdown::Fast => FAST_LIMIT,
            Shutdown::Immediate => Duration::ZERO,
        };
        Some(Moment(since.0.saturating_add(limit)))
    }

    /// The mode under way has had its time.
    pub(crate) fn escalate(&mut self, now: Moment) -> Step {
        match self.mode() {
            Some(Shutdown::Patient) => Step::Nothing,
            Some(Shutdown::Smart) => self.ask(Shutdown::Fast, now),
            Some(Shutdown::Fast | Shutdown::Immediate) => self.ask(Shutdown::Immediate, now),
            None => Step::Nothing,
        }
    }
}

fn strictness(mode: Shutdown) -> u8 {
    match mode {
        Shutdown::Patient => 0,
        Shutdown::Smart => 1,
        Shutdown::Fast => 2,
        Shutdown::Immediate => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_second_term_is_now() {
        let mut stopping = Stopping::default();
        assert_eq!(stopping.deadline(TIMEOUT), None);
        assert_eq!(stopping.terminate(at(1)), Step::Begin(Shutdown::Smart));
        assert_eq!(stopping.deadline(TIMEOUT), Some(at(61)));
        assert_eq!(stopping.terminate(at(2)), Step::Begin(Shutdown::Fast));
        assert_eq!(stopping.deadline(TIMEOUT), Some(at(12)));
        assert_eq!(stopping.terminate(at(3)), Step::Nothing);
    }

    #[test]
    fn time_makes_it_stricter_and_nothing_makes_it_milder() {
        let mut stopping = Stopping::default();
        assert_eq!(stopping.escalate(at(0)), Step::Nothing);
        assert_eq!(stopping.ask(Shutdown::Smart, at(0)), Step::Begin(Shutdown::Smart));
        assert_eq!(stopping.escalate(at(60)), Step::Begin(Shutdown::Fast));
        assert_eq!(stopping.ask(Shutdown::Smart, at(61)), Step::Nothing);
        assert_eq!(stopping.escalate(at(70)), Step::Begin(Shutdown::Immediate));
        assert_eq!(stopping.ask(Shutdown::Fast, at(71)), Step::Nothing);
        assert_eq!(stopping.escalate(at(71)), Step::Nothing);
    }
}
