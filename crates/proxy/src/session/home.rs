//! With which worker a session goes on, where its client has nothing for it.

use std::io;
use std::sync::Arc;

use super::Session;
use crate::migration::Look;
use crate::shared::Worker;

/// What a session knows of that.
#[derive(Debug)]
pub(super) struct Home {
    /// The last look at the load in which it was counted.
    seen: Look,
    /// Where it is to go on.
    next: Option<NextWorker>,
}

/// A worker that is not ours.
struct NextWorker(Arc<Worker>);

impl std::fmt::Debug for NextWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}", self.0.id)
    }
}

impl Home {
    pub(super) fn new(worker: &Worker) -> Self {
        Self { seen: worker.migration.look(), next: None }
    }
}

impl Session {
    /// Whether it goes on elsewhere; asked when nothing of it is on its way.
    pub(super) fn is_to_move(&mut self) -> bool {
        let look = self.worker.migration.look();
        if look == self.home.seen {
            return false;
        }
        self.home.seen = look;
        // Kept backends are watched by this worker's reactor.
        if !self.kept.is_empty() {
            return false;
        }
        self.home.next = self.worker.migration.pass().map(NextWorker);
        self.home.next.is_some()
    }

    /// Where it goes on. Nothing of it is left with its worker.
    pub(crate) fn leave(&mut self) -> Option<Arc<Worker>> {
        self.deadline.disarm();
        self.reclaim();
        self.home.next.take().map(|next| next.0)
    }

    /// Goes on with that worker, on whose thread this runs.
    ///
    /// # Errors
    /// Those of leaving one reactor and entering the other: the client is lost.
    pub(crate) fn arrive(self: Box<Self>, worker: Arc<Worker>) -> io::Result<Box<Self>> {
        let mut session = *self;
        session.stream = session.stream.rehome()?;
        session.home = Home::new(&worker);
        session.worker = worker;
        Ok(Box::new(session))
    }
}
