//! Seats for the connections of a small server that asks nobody who they are: bounded in number, and never all taken by those
//! who only sit there.
//!
//! Invariant: whoever comes gets a seat, unless all are kept. When none is free the one who has sat longest, and has not been
//! told to keep its seat, is asked to leave: a hundred stalled connections stop no scraper, and no probe of an orchestrator.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The seats.
#[derive(Debug)]
pub(crate) struct Seats {
    most: usize,
    taken: Mutex<Taken>,
}

/// Who sits, the longest first: by the number of its seat, with what asks it to leave. Who keeps its seat has nothing.
#[derive(Debug, Default)]
struct Taken {
    next: u64,
    by: BTreeMap<u64, Option<Arc<Notify>>>,
}

/// One of them; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    leave: Arc<Notify>,
}

impl Seats {
    /// So many.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// A seat for who has come; none when all are kept.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken.lock();
        if taken.by.len() >= self.most {
            let number = taken.by.iter().find(|(_, leave)| leave.is_some()).map(|(number, _)| *number)?;
            if let Some(Some(leave)) = taken.by.remove(&number) {
                leave.notify_one();
            }
        }
        let (number, leave) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        taken.by.insert(number, Some(Arc::clone(&leave)));
        drop(taken);
        Some(Seat { seats: Arc::clone(self), number, leave })
    }
}

impl Seat {
    /// It is not asked to leave any more.
    pub(crate) fn keep(&self) {
        if let Some(leave) = self.seats.taken.lock().by.get_mut(&self.number) {
            *leave = None;
        }
    }

    /// Runs `work` to its end, unless somebody else needs the seat before; none then.
    pub(crate) async fn hold<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.leave.notified() => None,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.lock().by.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_sat_longest_leaves_unless_it_keeps_its_seat() {
        let seats = Seats::new(2);
        let (first, second) = (seats.take().unwrap(), seats.take().unwrap());
        first.keep();
        let third = seats.take().unwrap();
        assert_eq!(second.hold(std::future::pending::<()>()).await, None, "it made room");
        assert_eq!(first.hold(async { 1 }).await, Some(1));
        third.keep();
        assert!(seats.take().is_none(), "both are kept");
        drop(second);
        assert!(seats.take().is_none(), "whose seat was taken frees none when it goes");
        drop(first);
        assert!(seats.take().is_some());
    }
}
