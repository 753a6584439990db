//! Sessions change their worker: what each worker asks of its sessions, and who looks at the load.
//!
//! A session looks at one number of its worker when its client has nothing for it, the moment in which it holds no
//! backend and nothing of it is on its way. When that number is new it is counted as one that does something, and may
//! be told to go on elsewhere.
//!
//! Invariant: without the system's word for how long a thread ran, nobody is moved.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::rebalance::{Load, Order, Rebalancer};
use crate::shared::{Shared, Worker};
use crate::workers::Workers;

/// How often the load is looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// A look at the load, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look(u32);

/// Who is to go on where.
#[derive(Debug)]
struct Away {
    to: Weak<Worker>,
    left: u32,
}

/// What a worker asks of its sessions. See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    look: AtomicU32,
    movable: AtomicU32,
    away: Mutex<Option<Away>>,
    /// How long its thread has run.
    clock: OnceLock<Option<CpuClock>>,
}

impl Migration {
    /// The last look. A session that comes begins with it.
    pub(crate) fn look(&self) -> Look {
        Look(self.look.load(Ordering::Relaxed))
    }

    /// A session could go, for the first time since that look: where to, if it should.
    pub(crate) fn pass(&self) -> Option<Arc<Worker>> {
        self.movable.fetch_add(1, Ordering::Relaxed);
        let mut away = self.away.lock();
        let order = away.as_mut().filter(|order| order.left > 0)?;
        order.left -= 1;
        order.to.upgrade()
    }

    /// The thread that calls is the worker's.
    pub(crate) fn runs_here(&self) {
        self.clock.get_or_init(CpuClock::of_this_thread);
    }

    /// Waits until the worker's thread has said that it is.
    pub(crate) fn wait_for_thread(&self) {
        self.clock.wait();
    }

    fn ran(&self) -> Option<Duration> {
        self.clock.get()?.as_ref()?.read()
    }

    fn begin(&self, away: Option<Away>) {
        *self.away.lock() = away;
        self.look.fetch_add(1, Ordering::Relaxed);
    }
}

/// How long a thread has run, as the system tells it.
#[derive(Debug)]
struct CpuClock(File);

impl CpuClock {
    fn of_this_thread() -> Option<Self> {
        // "PID/task/TID"
        let link = std::fs::read_link("/proc/thread-self").ok()?;
        let path = Path::new("/proc/self/task").join(link.file_name()?).join("schedstat");
        let clock = Self(File::open(path).ok()?);
        clock.read().map(|_| clock)
    }

    fn read(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.0.read_at(&mut text, 0).ok()?;
        // "NANOSECONDS-RUN NANOSECONDS-WAITED SLICES"
        let run = text.get(..len)?.split(|byte| *byte == b' ').next()?;
        str::from_utf8(run).ok()?.parse().ok().map(Duration::from_nanos)
    }
}

/// What was read of a worker last.
struct Read {
    worker: Arc<Worker>,
    ran: Duration,
}

impl Read {
    fn new(worker: &Arc<Worker>) -> Option<Self> {
        Some(Self { worker: Arc::clone(worker), ran: worker.migration.ran()? })
    }

    /// Since the last look, `elapsed` ago.
    fn load(&mut self, elapsed: Duration) -> Load {
        let movable = self.worker.migration.movable.swap(0, Ordering::Relaxed);
        let now = self.worker.migration.ran().unwrap_or(self.ran);
        let ran = now.saturating_sub(self.ran);
        self.ran = now;
        Load { busy: (ran.as_secs_f64() / elapsed.as_secs_f64()).min(1.0), movable }
    }
}

/// Looks at the load for ever, on the control plane.
pub(crate) async fn run(shared: Arc<Shared>, workers: Arc<Workers>) {
    shared.deps.metrics.workers_used.set(i64::try_from(workers.all().count()).unwrap_or(i64::MAX));
    let reads: Option<Vec<_>> = workers.all().map(Read::new).collect();
    let Some(mut reads) = reads else {
        return tracing::info!("the system does not say how long threads run: sessions keep their workers");
    };
    let (mut rebalancer, mut looked) = (Rebalancer::default(), Instant::now());
    while reads.len() > 1 {
        shared.deps.metrics.workers_used.set(i64::try_from(rebalancer.used()).unwrap_or(i64::MAX));
        tokio::time::sleep(PERIOD).await;
        let elapsed = looked.elapsed();
        looked += elapsed;
        let loads: Vec<_> = reads.iter_mut().map(|read| read.load(elapsed)).collect();
        let used = rebalancer.used();
        let orders = rebalancer.look(&loads);
        if rebalancer.used() != used {
            tracing::debug!(
                workers = rebalancer.used(),
                before = used,
                ?loads,
                "another number of workers is used"
            );
        }
        for (at, read) in reads.iter().enumerate() {
            let order = orders.iter().find(|order| order.from == at);
            read.worker.migration.begin(order.and_then(|order| away(order, &reads)));
        }
    }
}

fn away(order: &Order, reads: &[Read]) -> Option<Away> {
    let to = reads.get(order.to)?;
    Some(Away { to: Arc::downgrade(&to.worker), left: order.sessions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_how_long_it_ran() {
        if !Path::new("/proc/thread-self/schedstat").exists() {
            return assert!(CpuClock::of_this_thread().is_none());
        }
        let clock = CpuClock::of_this_thread().unwrap();
        let (before, began) = (clock.read().unwrap(), Instant::now());
        while clock.read().unwrap() < before + Duration::from_millis(5) {
            assert!(began.elapsed() < Duration::from_secs(60), "the clock stands still");
        }
    }

    #[test]
    fn so_many_go_and_no_more() {
        let migration = Migration::default();
        let look = migration.look();
        migration.begin(Some(Away { to: Weak::new(), left: 2 }));
        assert_ne!(migration.look(), look);
        for _ in 0..5 {
            assert!(migration.pass().is_none(), "that worker is gone");
        }
        assert_eq!(migration.away.lock().as_ref().map(|away| away.left), Some(0));
        assert_eq!(migration.movable.load(Ordering::Relaxed), 5);
    }
}
