//! The worker threads: a single-threaded runtime each, no work stealing.
//!
//! A session is on one worker at a time. [`Workers::of_newcomer`] chooses where one begins; where it goes on later is
//! for [`crate::rebalance`] to say.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use telemetry::Tasks;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::shared::{Shared, Worker};

/// So many tasks more than another one may a worker have that accepts, before it hands connections over.
const NEWCOMERS: usize = 4;

/// See the module's documentation.
pub struct Workers {
    workers: Vec<Arc<Worker>>,
    stop: watch::Sender<bool>,
    threads: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// The system gives no thread or no reactor.
    pub fn start(count: usize, shared: &Arc<Shared>) -> io::Result<Self> {
        let (stop, _) = watch::channel(false);
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for id in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            let worker = Arc::new(Worker::new(id, Arc::clone(shared), Tasks::new(runtime.handle().clone())));
            workers.push(Arc::clone(&worker));
            let mut stopped = stop.subscribe();
            let thread = std::thread::Builder::new().name(format!("worker-{id}")).spawn(move || {
                worker.migration.runs_here();
                drop(worker);
                // An error means that the sender is gone: stop as well.
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                runtime.shutdown_background();
            })?;
            threads.push(thread);
        }
        workers.iter().for_each(|worker| worker.migration.wait_for_thread());
        Ok(Self { workers, stop, threads: parking_lot::Mutex::new(threads) })
    }

    /// The worker with the fewest tasks.
    #[must_use]
    pub fn least_busy(&self) -> Option<&Arc<Worker>> {
        self.workers.iter().min_by_key(|worker| worker.tasks.alive())
    }

    /// Where a connection that was accepted on the worker of that number begins: there, unless another one has clearly
    /// fewer tasks, for that one must be woken. Where the session goes on is decided by what it does.
    #[must_use]
    pub fn of_newcomer(&self, accepted: usize) -> Option<&Arc<Worker>> {
        let least = self.least_busy()?;
        let near = |here: &&Arc<Worker>| here.tasks.alive() <= least.tasks.alive() + NEWCOMERS;
        self.workers.get(accepted).filter(near).or(Some(least))
    }

    /// Where the listener of that number accepts: they are spread, and do not count as busy. From the end, for as long as
    /// one worker is enough for the sessions it is the first one.
    #[must_use]
    pub fn accepting(&self, number: usize) -> Option<&Arc<Worker>> {
        self.workers.iter().rev().nth(number.checked_rem(self.workers.len())?)
    }

    /// Every worker.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.iter()
    }

    /// Ends the threads; what still runs on them is dropped.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("worker thread panicked");
            }
        }
    }
}
