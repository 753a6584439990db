//! Where sessions belong: on as few workers as their load needs, and evenly on those.
//!
//! A busy thread finds more to do each time it wakes up, and lends a backend without asking another thread: few
//! workers that are half busy cost less and answer sooner than many that sleep between two messages. When they get
//! busy one more takes its share at once; it gives it back only after a calm while.
//!
//! Pure: it is told how busy the workers were and says who should go on where.

/// Busier than this, and one more worker is used (share of a core).
const CROWDED: f64 = 0.7;
/// How busy each of the workers that are used should be behind a change.
const AIM: f64 = 0.5;
/// So busy may those that are left become when one fewer is used; well below [`AIM`], or it would be used again.
const CALM: f64 = 0.4;
/// So many looks in a row must be calm.
const CALM_LOOKS: u32 = 50;
/// Workers that differ by more are evened out (share of a core).
const UNEVEN: f64 = 0.2;
/// So many looks lie between two attempts to even out: what it brought must have been seen.
const UNEVEN_LOOKS: u32 = 5;

/// What was seen of a worker since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// The share of a core that it used, 0 to 1.
    pub(crate) busy: f64,
    /// Sessions that did something, and could go on elsewhere.
    pub(crate) movable: u32,
}

/// So many sessions of a worker go on with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// By position.
    pub(crate) from: usize,
    /// By position.
    pub(crate) to: usize,
    /// The first so many that can.
    pub(crate) sessions: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Rebalancer {
    /// The first so many workers are used.
    used: usize,
    calm: u32,
    /// Looks until the workers may be evened out.
    settling: u32,
}

impl Default for Rebalancer {
    fn default() -> Self {
        Self { used: 1, calm: 0, settling: 0 }
    }
}

impl Rebalancer {
    /// How many workers are used.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// One look: `loads` of all workers, in their order.
    pub(crate) fn look(&mut self, loads: &[Load]) -> Vec<Order> {
        self.settling = self.settling.saturating_sub(1);
        let before = self.used;
        self.count_used(loads);
        let (used, unused) = loads.split_at_checked(self.used).unwrap_or((loads, &[]));
        let Some(idlest) = position(used, |load| -load.busy) else { return Vec::new() };
        let leave = |at: usize| Order { from: used.len() + at, to: idlest, sessions: u32::MAX };
        let mut orders: Vec<_> = (0..unused.len()).map(leave).collect();
        if used.len() > before || self.settling == 0 {
            orders.extend(even_out(used, idlest).inspect(|_| self.settling = UNEVEN_LOOKS));
        }
        orders
    }

    fn count_used(&mut self, loads: &[Load]) {
        let total: f64 = loads.iter().map(|load| load.busy).sum();
        let used = loads.iter().take(self.used);
        // One session alone cannot be divided.
        if used.clone().any(|load| load.busy > CROWDED && load.movable > 1) {
            self.calm = 0;
            let (most, wanted) = (loads.len().max(1), self.used + 1);
            self.used = (wanted..most).find(|used| total <= AIM * share(*used)).unwrap_or(most);
            return;
        }
        let fewer = self.used.saturating_sub(1);
        self.calm = if fewer > 0 && total < CALM * share(fewer) { self.calm + 1 } else { 0 };
        if self.calm >= CALM_LOOKS {
            self.calm = 0;
            self.used = fewer;
        }
    }
}

/// From the busiest worker to the idlest, half of what they differ by.
fn even_out(used: &[Load], idlest: usize) -> Option<Order> {
    let busiest = position(used, |load| load.busy)?;
    let (from, to) = (used.get(busiest)?, used.get(idlest)?);
    let surplus = from.busy - to.busy;
    if surplus <= UNEVEN || from.movable < 2 {
        return None;
    }
    let part = surplus / 2.0 / from.busy;
    let wanted = (1..from.movable).take_while(|count| f64::from(*count) <= f64::from(from.movable) * part);
    Some(Order { from: busiest, to: idlest, sessions: wanted.last().unwrap_or(1) })
}

fn position(loads: &[Load], key: impl Fn(&Load) -> f64) -> Option<usize> {
    let keys = loads.iter().map(key).enumerate();
    // Of those alike the first.
    keys.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
}

fn share(workers: usize) -> f64 {
    f64::from(u32::try_from(workers).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(busy: f64, movable: u32) -> Load {
        Load { busy, movable }
    }

    fn draw(seed: &mut u32, below: u32) -> u32 {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 8) % below
    }

    /// Sessions of given weights (shares of a core) on workers, and what looking at them does.
    struct Stage {
        rebalancer: Rebalancer,
        sessions: Vec<(f64, usize)>,
        workers: usize,
        moves: usize,
        seed: u32,
    }

    impl Stage {
        fn new(workers: usize, weights: &[f64]) -> Self {
            let sessions = weights.iter().enumerate().map(|(at, weight)| (*weight, at % workers)).collect();
            Self { rebalancer: Rebalancer::default(), sessions, workers, moves: 0, seed: 7 }
        }

        fn loads(&self) -> Vec<Load> {
            let of =
                |worker| self.sessions.iter().filter(move |session| session.1 == worker && session.0 > 0.0);
            let busy = |worker| of(worker).map(|session| session.0).sum::<f64>().min(1.0);
            let count = |worker| u32::try_from(of(worker).count()).unwrap();
            (0..self.workers).map(|worker| load(busy(worker), count(worker))).collect()
        }

        fn look(&mut self, times: usize) {
            for _ in 0..times {
                for Order { from, to, sessions } in self.rebalancer.look(&self.loads()) {
                    assert!(from != to && to < self.rebalancer.used(), "{from} to {to}");
                    let can_go = |session: &(f64, usize)| session.1 == from && session.0 > 0.0;
                    for _ in 0..sessions {
                        let there = self.sessions.iter().filter(|session| can_go(session)).count();
                        if there == 0 {
                            break;
                        }
                        let at = draw(&mut self.seed, u32::try_from(there).unwrap());
                        let mut going = self.sessions.iter_mut().filter(|session| can_go(session));
                        going.nth(usize::try_from(at).unwrap()).unwrap().1 = to;
                        self.moves += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn little_work_is_done_by_one_worker() {
        let mut stage = Stage::new(4, &[0.01; 20]);
        stage.look(1);
        assert!(stage.sessions.iter().all(|session| session.1 == 0), "{:?}", stage.sessions);
        let moves = stage.moves;
        stage.look(500);
        assert_eq!((stage.rebalancer.used(), stage.moves), (1, moves));
    }

    #[test]
    fn much_work_takes_all_workers_at_once_and_is_even() {
        let mut stage = Stage::new(4, &[0.03; 100]);
        stage.look(40);
        assert_eq!(stage.rebalancer.used(), 4);
        let loads = stage.loads();
        assert!(loads.iter().all(|load| (0.6..0.95).contains(&load.busy)), "{loads:?}");
        let moves = stage.moves;
        stage.look(500);
        assert_eq!(stage.moves, moves, "nothing moves any more");
    }

    #[test]
    fn a_worker_is_given_back_behind_a_calm_while_and_not_taken_again() {
        let mut stage = Stage::new(2, &[0.02; 60]);
        stage.look(20);
        assert_eq!(stage.rebalancer.used(), 2);
        stage.sessions.iter_mut().for_each(|session| session.0 = 0.005);
        stage.look(CALM_LOOKS as usize - 1);
        assert_eq!(stage.rebalancer.used(), 2);
        stage.look(2);
        assert_eq!(stage.rebalancer.used(), 1);
        assert!(stage.sessions.iter().all(|session| session.1 == 0));
        stage.look(500);
        assert_eq!(stage.rebalancer.used(), 1);
    }

    /// Whatever the weights: no load makes sessions wander for ever, none that fits stays crowded.
    #[test]
    fn it_settles() {
        let mut seed = 7_u32;
        let mut draw = |below: u32| draw(&mut seed, below);
        for round in 0..300 {
            let workers = draw(7) as usize + 1;
            let weights: Vec<f64> = (0..=draw(80)).map(|_| f64::from(draw(50)) / 1000.0).collect();
            let mut stage = Stage::new(workers, &weights);
            stage.look(300);
            let (moves, loads) = (stage.moves, stage.loads());
            stage.look(300);
            assert!(stage.moves <= moves + 3, "round {round}: {} moves more, {loads:?}", stage.moves - moves);
            let total: f64 = weights.iter().sum();
            if total < 0.5 * workers as f64 {
                assert!(loads.iter().all(|load| load.busy < 0.9), "round {round}: {loads:?}");
            }
        }
    }

    #[test]
    fn one_heavy_session_is_left_alone() {
        let mut stage = Stage::new(2, &[1.0]);
        stage.look(100);
        assert_eq!((stage.rebalancer.used(), stage.moves), (1, 0));
    }

    #[test]
    fn those_beside_a_heavy_session_leave_it() {
        let mut stage = Stage::new(2, &[0.9, 0.05, 0.05]);
        stage.look(200);
        let heavy = stage.sessions[0].1;
        assert!(stage.sessions[1..].iter().all(|session| session.1 != heavy), "{:?}", stage.sessions);
    }

    #[test]
    fn without_workers_nothing_is_asked() {
        assert!(Rebalancer::default().look(&[]).is_empty());
    }
}
