//! The backends of one node, database and user.
//!
//! Invariants: at most `limit` places are taken; while somebody waits nothing is idle; who waits is
//! served in order, by a backend that is handed over or by the place to make one. A [`Slot`] is a
//! place; dropping it, or the [`Backend`] that holds it, gives the place to the next waiter.

mod quota;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cluster::{Node, NodeId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::connect::NodeAddress;
use crate::load::{Counted, NodeLoad};
use crate::open::OpenAs;
use crate::retry::Retry;

use quota::Quotas;
pub use quota::{QuotaBook, QuotaLimits, Scope};

/// More pools than this are not kept when nobody uses them.
const KEPT_POOLS: usize = 1000;

/// Which pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The node.
    pub node: NodeId,
    /// The database on the node.
    pub database: Arc<str>,
    /// The user on the node.
    pub user: Arc<str>,
}

/// What a waiter is given.
#[derive(Debug)]
pub enum Grant {
    /// A backend that another session gave back.
    Backend(Box<Backend>),
    /// The place to make one.
    Place(Slot),
}

#[derive(Debug)]
struct Waiter {
    /// Rises from the front of the queue to its end.
    number: u64,
    since: Instant,
    sender: oneshot::Sender<Grant>,
}

#[derive(Debug, Default)]
struct Inner {
    limit: u32,
    /// Places beyond the limit, while somebody waits.
    reserve: u32,
    taken: u32,
    connecting: u32,
    /// By worker; the last one used is the first one lent.
    #[allow(clippy::vec_box, reason = "a backend is lent and returned in its box, never moved out of it")]
    idle: Vec<Vec<Box<Backend>>>,
    waiters: VecDeque<Waiter>,
    next_waiter: u64,
    /// Backends that were opened before are closed when they come back.
    renewed: Option<Instant>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pool {
    /// Which one.
    pub key: PoolKey,
    /// Where its node is.
    pub address: Arc<NodeAddress>,
    /// The burden of its node.
    pub load: Arc<NodeLoad>,
    /// When it may connect.
    pub retry: Retry,
    /// How the last connection that was made logged in.
    opened_as: Mutex<Option<Arc<OpenAs>>>,
    inner: Mutex<Inner>,
    quotas: Quotas,
    retired: AtomicBool,
}

/// A place in a pool; held by whoever connects, then by the backend.
#[derive(Debug)]
pub struct Slot {
    pool: Option<Arc<Pool>>,
    connecting: bool,
    connection: Option<Counted>,
}

/// A place in the queue; leaving it loses nothing.
#[derive(Debug)]
pub struct Waiting {
    pool: Arc<Pool>,
    number: u64,
    receiver: oneshot::Receiver<Grant>,
}

/// What asking for a backend gives.
#[derive(Debug)]
pub enum Acquired {
    /// Now.
    Granted(Grant),
    /// Later.
    Queued(Waiting),
}

/// How full a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// Places in all.
    pub limit: u32,
    /// On loan.
    pub active: u32,
    /// Free.
    pub idle: u32,
    /// Being made.
    pub connecting: u32,
    /// Sessions that wait.
    pub waiting: u32,
    /// Since when the first of them waits.
    pub first_wait: Option<Instant>,
}

impl PoolCounts {
    /// Places that are taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.active.saturating_add(self.idle).saturating_add(self.connecting)
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(key: PoolKey, address: Arc<NodeAddress>, load: Arc<NodeLoad>, limit: u32) -> Arc<Self> {
        Self::with_quotas(key, address, load, limit, Quotas::default())
    }

    /// As [`Pool::new`], with limits that it shares with other pools of its node.
    #[must_use]
    pub fn limited(
        key: PoolKey,
        address: Arc<NodeAddress>,
        load: Arc<NodeLoad>,
        limit: u32,
        (book, limits): (&QuotaBook, QuotaLimits),
    ) -> Arc<Self> {
        let quotas = book.quotas(&key, limits);
        let pool = Self::with_quotas(key, address, load, limit, quotas);
        Quotas::join(&pool);
        pool
    }

    fn with_quotas(
        key: PoolKey,
        address: Arc<NodeAddress>,
        load: Arc<NodeLoad>,
        limit: u32,
        quotas: Quotas,
    ) -> Arc<Self> {
        let inner = Mutex::new(Inner { limit, ..Inner::default() });
        let (retry, opened_as) = (Retry::default(), Mutex::default());
        Arc::new(Self {
            key,
            address,
            load,
            retry,
            opened_as,
            inner,
            quotas,
            retired: AtomicBool::new(false),
        })
    }

    /// Asks for a backend on behalf of a session of `worker`.
    pub fn acquire(self: &Arc<Self>, worker: usize) -> Acquired {
        let mut inner = self.inner.lock();
        if let Some(backend) = inner.pop_idle(worker) {
            return Acquired::Granted(Grant::Backend(backend));
        }
        let room = inner.taken < inner.limit;
        if room && self.quotas.take() {
            inner.taken += 1;
            inner.connecting += 1;
            return Acquired::Granted(Grant::Place(self.slot()));
        }
        let (sender, receiver) = oneshot::channel();
        let number = inner.next_waiter;
        inner.next_waiter += 1;
        inner.waiters.push_back(Waiter { number, since: Instant::now(), sender });
        drop(inner);
        if room {
            self.make_way_for();
        }
        Acquired::Queued(Waiting { pool: Arc::clone(self), number, receiver })
    }

    /// Whether its backends are those of `node`, where that is now.
    #[must_use]
    pub fn serves(&self, node: &Node) -> bool {
        let there = self.address.port == node.port && *self.address.hostname == *node.hostname;
        self.key.node == node.id && there && !self.is_retired()
    }

    /// Takes a backend back: to the first who waits, else to the idle ones.
    pub fn release(self: &Arc<Self>, mut backend: Box<Backend>) {
        let yields = self.yields();
        loop {
            let mut inner = self.inner.lock();
            let outdated = inner.renewed.is_some_and(|at| backend.opened < at);
            if outdated || yields || self.is_retired() || inner.is_over() || self.quotas.are_over() {
                drop(inner);
                return backend.close();
            }
            let Some(waiter) = inner.waiters.pop_front() else {
                inner.push_idle(backend);
                drop(inner);
                self.retry.freed();
                return self.make_way();
            };
            drop(inner);
            match waiter.sender.send(Grant::Backend(backend)) {
                Err(Grant::Backend(back)) => backend = back,
                _ => return,
            }
        }
    }

    /// A place for one more backend, if fewer than `least` are there and nobody has to wait.
    pub fn vacancy(self: &Arc<Self>, least: u32) -> Option<Slot> {
        let mut inner = self.inner.lock();
        if self.is_retired() || inner.taken >= least.min(inner.limit) || !self.quotas.take() {
            return None;
        }
        inner.taken += 1;
        inner.connecting += 1;
        Some(self.slot())
    }

    /// How backends of it log in; `None` before the first one has.
    pub(crate) fn opened_as(&self) -> Option<Arc<OpenAs>> {
        self.opened_as.lock().clone()
    }

    /// A backend has logged in like that.
    pub(crate) fn has_opened(&self, opened_as: Arc<OpenAs>) {
        *self.opened_as.lock() = Some(opened_as);
        self.retry.succeeded();
    }

    fn slot(self: &Arc<Self>) -> Slot {
        Slot { pool: Some(Arc::clone(self)), connecting: true, connection: None }
    }

    /// A place became free: the first who waits gets it.
    fn place_freed(self: &Arc<Self>) {
        let yields = self.yields();
        loop {
            let mut inner = self.inner.lock();
            let goes = yields || inner.is_over() || self.quotas.are_over();
            let waiter = if goes { None } else { inner.waiters.pop_front() };
            let Some(waiter) = waiter else {
                inner.taken = inner.taken.saturating_sub(1);
                drop(inner);
                self.quotas.give();
                return self.quotas_freed();
            };
            inner.connecting += 1;
            drop(inner);
            let Err(Grant::Place(mut slot)) = waiter.sender.send(Grant::Place(self.slot())) else { return };
            // Nobody was there any more; the place is still ours.
            slot.pool = None;
            self.inner.lock().connecting -= 1;
        }
    }

    /// Backends that were opened before `now` are closed as soon as nobody has them.
    pub fn renew(&self, now: Instant) {
        self.inner.lock().renewed = Some(now);
        self.close_idle(|backend| backend.opened < now);
    }

    /// When it was last renewed.
    #[must_use]
    pub fn renewed(&self) -> Option<Instant> {
        self.inner.lock().renewed
    }

    /// No session gets it any more, what is idle is closed, what comes back is too.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        self.close_idle(|_| true);
    }

    /// Whether it was retired.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Changes the number of places; who waits gets new ones, idle ones above it are closed.
    pub fn set_limit(self: &Arc<Self>, limit: u32) {
        let mut inner = self.inner.lock();
        inner.limit = limit;
        let excess = usize::try_from(inner.taken.saturating_sub(limit)).unwrap_or(usize::MAX);
        let surplus: Vec<_> = (0..excess).map_while(|_| inner.pop_idle(0)).collect();
        drop(inner);
        drop(surplus);
        self.serve();
    }

    /// Closes the idle backends for which `is_due` says so; gives how many.
    pub fn close_idle(&self, mut is_due: impl FnMut(&mut Backend) -> bool) -> usize {
        let mut due = Vec::new();
        for idle in &mut self.inner.lock().idle {
            due.extend(idle.extract_if(.., |backend| is_due(backend)));
        }
        // Outside of the lock: a closed backend gives its place back.
        let count = due.len();
        due.into_iter().for_each(|backend| backend.close());
        count
    }

    /// How full it is.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        let inner = self.inner.lock();
        let idle = inner.idle.iter().map(Vec::len).sum::<usize>();
        let idle = u32::try_from(idle).unwrap_or(u32::MAX);
        PoolCounts {
            limit: inner.limit,
            active: inner.taken.saturating_sub(idle).saturating_sub(inner.connecting),
            idle,
            connecting: inner.connecting,
            waiting: u32::try_from(inner.waiters.len()).unwrap_or(u32::MAX),
            first_wait: inner.waiters.front().map(|waiter| waiter.since),
        }
    }

    /// Nobody uses it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let inner = self.inner.lock();
        inner.taken == 0 && inner.waiters.is_empty()
    }
}

impl Inner {
    /// A place has to go: who waits may use the reserve.
    fn is_over(&self) -> bool {
        let reserve = if self.waiters.is_empty() { 0 } else { self.reserve };
        self.taken > self.limit.saturating_add(reserve)
    }

    /// An idle backend, of that worker if there is one.
    fn pop_idle(&mut self, worker: usize) -> Option<Box<Backend>> {
        if let Some(backend) = self.idle.get_mut(worker).and_then(Vec::pop) {
            return Some(backend);
        }
        self.idle.iter_mut().find_map(Vec::pop)
    }

    /// A waiter goes that was given nothing.
    fn leave(&mut self, number: u64) {
        if let Ok(at) = self.waiters.binary_search_by_key(&number, |waiter| waiter.number) {
            self.waiters.remove(at);
        }
    }

    fn push_idle(&mut self, backend: Box<Backend>) {
        while self.idle.len() <= backend.worker {
            self.idle.push(Vec::new());
        }
        if let Some(idle) = self.idle.get_mut(backend.worker) {
            idle.push(backend);
        }
    }
}

impl Slot {
    /// The connection has been made.
    pub fn connected(&mut self) {
        self.end_connecting();
        self.connection = self.pool.as_ref().map(|pool| pool.load.connection());
    }

    fn end_connecting(&mut self) {
        if let Some(pool) = self.pool.as_ref().filter(|_| self.connecting) {
            self.connecting = false;
            pool.inner.lock().connecting -= 1;
        }
    }

    /// Whether it is a place of that pool.
    #[must_use]
    pub fn is_in(&self, pool: &Arc<Pool>) -> bool {
        self.pool.as_ref().is_some_and(|own| Arc::ptr_eq(own, pool))
    }

    /// Whose place it is.
    #[must_use]
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.end_connecting();
        if let Some(pool) = self.pool.take() {
            pool.place_freed();
        }
    }
}

impl Waiting {
    /// Waits for its turn. May be dropped at any time.
    pub async fn granted(&mut self) -> Option<Grant> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.receiver.close();
        match self.receiver.try_recv() {
            // Granted in the last moment: to the next one. A place goes there when it is dropped.
            Ok(Grant::Backend(backend)) => self.pool.release(backend),
            Ok(Grant::Place(_)) => {}
            Err(_) => self.pool.inner.lock().leave(self.number),
        }
    }
}

/// All pools.
#[derive(Debug, Default)]
pub struct Pools {
    by_key: RwLock<HashMap<PoolKey, Arc<Pool>>>,
}

impl Pools {
    /// The pool of `key`, made by `make` when there is none, or none that may be used.
    pub fn get(&self, key: &PoolKey, make: impl FnOnce() -> Arc<Pool>) -> Arc<Pool> {
        if let Some(pool) = self.by_key.read().get(key).filter(|pool| !pool.is_retired()) {
            return Arc::clone(pool);
        }
        let mut pools = self.by_key.write();
        match pools.get(key).filter(|pool| !pool.is_retired()) {
            Some(pool) => Arc::clone(pool),
            None => {
                let pool = make();
                pools.insert(key.clone(), Arc::clone(&pool));
                pool
            }
        }
    }

    /// Every pool.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Pool>> {
        self.by_key.read().values().map(Arc::clone).collect()
    }

    /// Forgets pools that nobody uses, when they are retired or too many: any name of a database makes one.
    pub fn sweep(&self) {
        let mut pools = self.by_key.write();
        let too_many = pools.len() > KEPT_POOLS;
        pools.retain(|_, pool| {
            let forgotten = pool.is_unused() && (too_many || pool.is_retired());
            if forgotten {
                // Whoever has just asked for it gives nothing back to a pool that nobody finds.
                pool.retire();
            }
            !forgotten
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: u32) -> Arc<Pool> {
        let key = PoolKey { node: NodeId(0), database: "d".into(), user: "u".into() };
        let address = Arc::new(NodeAddress { hostname: "127.0.0.1".into(), port: 1 });
        Pool::new(key, address, Arc::default(), limit)
    }

    fn place(acquired: Acquired) -> Slot {
        match acquired {
            Acquired::Granted(Grant::Place(slot)) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn queued(acquired: Acquired) -> Waiting {
        match acquired {
            Acquired::Queued(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn places_are_bounded_and_freed_to_waiters_in_order() {
        let pool = pool(1);
        let first = place(pool.acquire(0));
        let mut second = queued(pool.acquire(0));
        let mut third = queued(pool.acquire(0));
        assert_eq!(pool.counts().waiting, 2);
        drop(first);
        let Ok(Grant::Place(slot)) = second.receiver.try_recv() else { panic!("not served") };
        assert!(third.receiver.try_recv().is_err());
        drop(slot);
        assert!(matches!(third.receiver.try_recv(), Ok(Grant::Place(_))));
        drop((second, third));
        assert!(pool.is_unused(), "{:?}", pool.counts());
    }

    #[test]
    fn a_waiter_that_left_is_passed_over() {
        let pool = pool(1);
        let first = place(pool.acquire(0));
        drop(queued(pool.acquire(0)));
        let mut third = queued(pool.acquire(0));
        drop(queued(pool.acquire(0)));
        assert_eq!(pool.counts().waiting, 1, "who has left does not wait");
        drop(first);
        assert!(matches!(third.receiver.try_recv(), Ok(Grant::Place(_))));
        let counts = pool.counts();
        assert_eq!((counts.connecting, counts.waiting), (0, 0));
    }

    #[test]
    fn a_connection_burdens_its_node_until_its_place_is_free() {
        let loads = crate::load::Loads::default();
        let node = loads.node(NodeId(0));
        let key = PoolKey { node: NodeId(0), database: "d".into(), user: "u".into() };
        let address = Arc::new(NodeAddress { hostname: "127.0.0.1".into(), port: 1 });
        let pool = Pool::new(key, address, Arc::clone(&node), 1);
        let mut slot = place(pool.acquire(0));
        assert_eq!((node.connections(), pool.counts().connecting), (0, 1));
        slot.connected();
        assert_eq!((node.connections(), pool.counts().connecting), (1, 0));
        drop(slot);
        assert_eq!((node.connections(), pool.counts().connecting), (0, 0));
    }

    #[test]
    fn unused_pools_are_forgotten_when_they_are_too_many() {
        let pools = Pools::default();
        let get = |database: usize| {
            let key = PoolKey { node: NodeId(0), database: database.to_string().into(), user: "u".into() };
            pools.get(&key, || pool(1))
        };
        let used = get(0);
        let slot = place(used.acquire(0));
        (1..=KEPT_POOLS - 1).for_each(|database| drop(get(database)));
        pools.sweep();
        assert_eq!(pools.all().len(), KEPT_POOLS);
        let late = get(KEPT_POOLS);
        pools.sweep();
        assert_eq!(pools.all().len(), 1, "the one that is in use");
        assert!(late.is_retired() && !used.is_retired());
        drop(slot);
    }

    #[test]
    fn a_grant_that_nobody_took_goes_on() {
        let pool = pool(1);
        let first = place(pool.acquire(0));
        let second = queued(pool.acquire(0));
        let mut third = queued(pool.acquire(0));
        drop(first);
        // Granted, not yet taken, and gone.
        drop(second);
        assert!(matches!(third.receiver.try_recv(), Ok(Grant::Place(_))));
    }

    #[test]
    fn a_larger_limit_serves_who_waits_and_a_smaller_one_takes_places_away() {
        let pool = pool(1);
        let first = place(pool.acquire(0));
        let mut second = queued(pool.acquire(0));
        pool.set_limit(3);
        let Ok(Grant::Place(other)) = second.receiver.try_recv() else { panic!("not served") };
        let third = place(pool.acquire(0));
        pool.set_limit(1);
        drop((first, other));
        assert_eq!(pool.counts().limit, 1);
        let _queued = queued(pool.acquire(0));
        drop(third);
        drop(second);
    }
}
