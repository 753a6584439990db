//! The one door for spawning: every task has a name, is counted, and its panic is logged.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Spawns on one runtime and counts what is alive.
#[derive(Debug, Clone)]
pub struct Tasks {
    handle: Handle,
    alive: Arc<AtomicUsize>,
}

/// Lowers the count when the task ends, by return, panic or cancellation.
struct Alive(Arc<AtomicUsize>, &'static str);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        if std::thread::panicking() {
            tracing::error!(task = self.1, "task panicked");
        }
    }
}

/// Runs work that may block on a thread for that, and waits for it; `None` when it panicked, which is logged.
pub async fn off_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.inspect_err(|error| tracing::error!(task = name, %error, "task panicked")).ok()
}

impl Tasks {
    /// Spawns on the runtime behind `handle`.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self { handle, alive: Arc::new(AtomicUsize::new(0)) }
    }

    /// The same runtime, with a count of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::new(self.handle.clone())
    }

    /// How many tasks are alive.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// Runs `future` as a task called `name`.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.alive.fetch_add(1, Ordering::Relaxed);
        let alive = Alive(Arc::clone(&self.alive), name);
        self.handle.spawn(async move {
            let _alive = alive;
            future.await
        })
    }
}
