//! Limits over several pools of a node: all their backends, those of one database, and those of one user.
//!
//! Invariants: a place of a pool is a place of all its quotas; who waits because a quota is full is served
//! when one of its places becomes free in any pool, and idle backends of other pools make way. A pool's own
//! waiters come first, but not before those of other pools who have waited for longer and longer than
//! [`PATIENCE`]: a backend is closed for them then. No two pools are locked at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Grant, Pool, PoolKey};

/// How long a waiter lets those of other pools go first: a place that changes its pool costs a connection.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a quota is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The node's `max_connections`, less `reserved_connections`.
    Node,
    /// `max_db_connections`.
    Database,
    /// `max_user_connections`.
    User,
}

impl Scope {
    /// The key that limits it.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Node => "the node's max_connections (reserved_connections of them are kept free)",
            Self::Database => "max_db_connections",
            Self::User => "max_user_connections",
        }
    }
}

/// The most backends that the quotas of a pool allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Of its node.
    pub node: Option<u32>,
    /// Of its database.
    pub database: Option<u32>,
    /// Of its user.
    pub user: Option<u32>,
}

impl QuotaLimits {
    /// Those of a database, by the name that clients use, and a user; what the node allows is not among them.
    #[must_use]
    pub fn of(config: &config::Config, database: &str, user: &str) -> Self {
        let (database, user) = (config.max_db_connections(database), config.max_user_connections(user));
        Self { node: None, database, user }
    }
}

/// One limit on one node.
#[derive(Debug)]
struct Quota {
    scope: Scope,
    /// `u32::MAX` is none.
    limit: AtomicU32,
    taken: AtomicU32,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl Quota {
    fn new(scope: Scope) -> Self {
        let (limit, taken) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        Self { scope, limit, taken, pools: Mutex::default() }
    }

    fn take(&self) -> bool {
        let limit = self.limit.load(Ordering::Acquire);
        let more = |taken: u32| (taken < limit).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give(&self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_full(&self) -> bool {
        self.taken.load(Ordering::Acquire) >= self.limit.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.taken.load(Ordering::Acquire) > self.limit.load(Ordering::Acquire)
    }

    fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Acquire) != u32::MAX
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The quotas of a pool; none for one that shares nothing.
#[derive(Debug, Default)]
pub(super) struct Quotas(Vec<Arc<Quota>>);

impl Quotas {
    /// Takes a place of each, or of none.
    pub(super) fn take(&self) -> bool {
        let full = self.0.iter().position(|quota| !quota.take());
        if let Some(at) = full {
            self.0.iter().take(at).for_each(|quota| quota.give());
        }
        full.is_none()
    }

    pub(super) fn give(&self) {
        self.0.iter().for_each(|quota| quota.give());
    }

    pub(super) fn are_over(&self) -> bool {
        self.0.iter().any(|quota| quota.is_over())
    }

    fn full(&self) -> impl Iterator<Item = &Arc<Quota>> {
        self.0.iter().filter(|quota| quota.is_full())
    }
}

impl Pool {
    /// The quota that is full, with its limit.
    #[must_use]
    pub fn full_quota(&self) -> Option<(Scope, u32)> {
        self.quotas.full().next().map(|quota| (quota.scope, quota.limit.load(Ordering::Relaxed)))
    }

    /// Gives what places there are to who waits.
    pub(super) fn serve(self: &Arc<Self>) {
        loop {
            let mut inner = self.inner.lock();
            let room = inner.taken < inner.limit && !inner.waiters.is_empty() && !self.is_retired();
            if !room || !self.quotas.take() {
                return;
            }
            inner.taken += 1;
            drop(inner);
            self.place_freed();
        }
    }

    /// A place of the quotas became free: pools that share them may have somebody waiting, the one who has waited for
    /// longest comes first.
    pub(super) fn quotas_freed(self: &Arc<Self>) {
        for quota in self.quotas.0.iter().filter(|quota| quota.is_limited()) {
            let waits = |pool: Arc<Pool>| pool.waits_for_quota().map(|since| (since, pool));
            let mut waiting: Vec<_> = quota.pools().into_iter().filter_map(waits).collect();
            waiting.sort_by_key(|(since, _)| *since);
            waiting.iter().for_each(|(_, pool)| pool.serve());
        }
    }

    /// Whether a place of this pool is due to somebody of another one, who has waited for longer than its own first
    /// waiter, and for long.
    pub(super) fn yields(self: &Arc<Self>) -> bool {
        if self.quotas.full().next().is_none() {
            return false;
        }
        let own = self.inner.lock().waiters.front().map(|waiter| waiter.since);
        let due = |since: Instant| since.elapsed() >= PATIENCE && own.is_none_or(|own| since < own);
        self.quotas.full().any(|quota| {
            let pools = quota.pools();
            let mut others = pools.iter().filter(|pool| !Arc::ptr_eq(pool, self));
            others.any(|pool| pool.waits_for_quota().is_some_and(due))
        })
    }

    /// Somebody waits although this pool has room: an idle backend of another one makes way.
    pub(super) fn make_way_for(self: &Arc<Self>) {
        for quota in self.quotas.full() {
            for pool in quota.pools().into_iter().filter(|pool| !Arc::ptr_eq(pool, self)) {
                if pool.close_one_idle() {
                    break;
                }
            }
        }
    }

    /// An idle backend of this pool makes way when somebody of another one waits for its place.
    pub(super) fn make_way(self: &Arc<Self>) {
        let wanted = self.quotas.full().any(|quota| {
            let others = quota.pools();
            others.iter().any(|pool| !Arc::ptr_eq(pool, self) && pool.waits_for_quota().is_some())
        });
        if wanted {
            self.close_one_idle();
        }
    }

    /// Since when somebody waits for a place of a quota, not of the pool.
    fn waits_for_quota(&self) -> Option<Instant> {
        let inner = self.inner.lock();
        let first = inner.waiters.front().filter(|_| inner.taken < inner.limit);
        first.map(|waiter| waiter.since)
    }

    fn close_one_idle(&self) -> bool {
        let idle = self.inner.lock().pop_idle(0);
        // Outside of the lock: its place goes on.
        idle.map(|backend| backend.close()).is_some()
    }
}

/// Of which node, and whose.
type QuotaKey = (Scope, cluster::NodeId, Arc<str>);

/// All quotas.
#[derive(Debug, Default)]
pub struct QuotaBook {
    by_name: Mutex<HashMap<QuotaKey, Weak<Quota>>>,
}

impl QuotaBook {
    /// The quotas for a pool that is made now.
    pub(super) fn quotas(&self, key: &PoolKey, limits: QuotaLimits) -> Quotas {
        let mut known = self.by_name.lock();
        known.retain(|_, quota| quota.strong_count() > 0);
        let mut get = |scope, name: &Arc<str>, limit: Option<u32>| {
            let entry = known.entry((scope, key.node, Arc::clone(name))).or_default();
            let quota = entry.upgrade().unwrap_or_else(|| Arc::new(Quota::new(scope)));
            *entry = Arc::downgrade(&quota);
            quota.limit.store(limit.unwrap_or(u32::MAX), Ordering::Release);
            quota
        };
        Quotas(vec![
            get(Scope::Node, &Arc::from(""), limits.node),
            get(Scope::Database, &key.database, limits.database),
            get(Scope::User, &key.user, limits.user),
        ])
    }
}

impl Quotas {
    /// The pool is one of those that share them.
    pub(super) fn join(pool: &Arc<Pool>) {
        pool.quotas.0.iter().for_each(|quota| quota.pools.lock().push(Arc::downgrade(pool)));
    }
}

impl Pool {
    /// Changes the limits of its database and its user; who waits is served.
    pub fn set_quotas(self: &Arc<Self>, limits: QuotaLimits) {
        self.set_quota(Scope::Database, limits.database);
        self.set_quota(Scope::User, limits.user);
    }

    /// Changes the limit of one of its quotas; who waits is served.
    pub fn set_quota(self: &Arc<Self>, scope: Scope, limit: Option<u32>) {
        for quota in self.quotas.0.iter().filter(|quota| quota.scope == scope) {
            quota.limit.store(limit.unwrap_or(u32::MAX), Ordering::Release);
            quota.pools().iter().for_each(Self::serve);
        }
    }

    /// A place beyond the limit, for somebody who has waited long; there are `reserve` of them.
    pub fn reserve(self: &Arc<Self>, reserve: u32) -> Option<Grant> {
        let mut inner = self.inner.lock();
        inner.reserve = reserve;
        let room = inner.taken < inner.limit.saturating_add(reserve) && !self.is_retired();
        if !room || !self.quotas.take() {
            return None;
        }
        inner.taken += 1;
        inner.connecting += 1;
        Some(Grant::Place(self.slot()))
    }
}

#[cfg(test)]
mod tests {
    use cluster::NodeId;

    use super::*;
    use crate::connect::NodeAddress;
    use crate::pool::{Acquired, Slot, Waiting};

    struct Rig {
        book: QuotaBook,
        limits: QuotaLimits,
    }

    impl Rig {
        fn new(database: Option<u32>, user: Option<u32>) -> Self {
            Self { book: QuotaBook::default(), limits: QuotaLimits { node: None, database, user } }
        }

        fn pool(&self, node: u16, database: &str, user: &str) -> Arc<Pool> {
            let key = PoolKey { node: NodeId(node), database: database.into(), user: user.into() };
            let address = Arc::new(NodeAddress { hostname: "127.0.0.1".into(), port: 1 });
            Pool::limited(key, address, Arc::default(), 10, (&self.book, self.limits))
        }
    }

    fn place(pool: &Arc<Pool>) -> Slot {
        match pool.acquire(0) {
            Acquired::Granted(Grant::Place(slot)) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn queued(pool: &Arc<Pool>) -> Waiting {
        match pool.acquire(0) {
            Acquired::Queued(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn granted(waiting: &mut Waiting) -> Option<Slot> {
        match waiting.receiver.try_recv() {
            Ok(Grant::Place(slot)) => Some(slot),
            _ => None,
        }
    }

    #[test]
    fn a_place_of_one_pool_is_one_less_for_its_kin_and_comes_back_to_them() {
        let rig = Rig::new(Some(2), None);
        let (a, b) = (rig.pool(0, "d", "a"), rig.pool(0, "d", "b"));
        let (first, _second) = (place(&a), place(&b));
        let mut third = queued(&b);
        assert_eq!(b.full_quota(), Some((Scope::Database, 2)));
        assert!(granted(&mut third).is_none());
        drop(first);
        let slot = granted(&mut third).expect("served");
        assert_eq!((a.counts().taken(), b.counts().taken()), (0, 2));
        drop((slot, third));
        assert_eq!(b.counts().taken(), 1);
        drop(place(&a));
    }

    #[test]
    fn other_nodes_databases_and_users_have_their_own() {
        let rig = Rig::new(Some(1), Some(2));
        let _all =
            [place(&rig.pool(0, "d", "a")), place(&rig.pool(1, "d", "a")), place(&rig.pool(0, "e", "a"))];
        let (of_user, of_database) = (rig.pool(0, "f", "a"), rig.pool(1, "d", "b"));
        let _waiting = (queued(&of_user), queued(&of_database));
        assert_eq!(of_user.full_quota(), Some((Scope::User, 2)));
        // A place that one quota refuses is not taken of the other one.
        drop(place(&rig.pool(0, "f", "b")));
    }

    #[test]
    fn all_pools_of_a_node_share_its_connections_and_no_other_nodes() {
        let rig = Rig {
            book: QuotaBook::default(),
            limits: QuotaLimits { node: Some(2), ..QuotaLimits::default() },
        };
        let (a, b, elsewhere) = (rig.pool(0, "d", "a"), rig.pool(0, "e", "b"), rig.pool(1, "d", "a"));
        let (first, _second, _other) = (place(&a), place(&b), place(&elsewhere));
        let mut third = queued(&b);
        assert_eq!(b.full_quota(), Some((Scope::Node, 2)));
        drop(first);
        let slot = granted(&mut third).expect("served");
        b.set_quota(Scope::Node, Some(3));
        drop((slot, place(&a)));
    }

    #[test]
    fn who_has_waited_for_long_is_not_passed_by_other_pools() {
        let rig = Rig::new(Some(1), None);
        let (a, b) = (rig.pool(0, "d", "a"), rig.pool(0, "d", "b"));
        let first = place(&a);
        let mut starving = queued(&b);
        let (mut own, mut later) = (queued(&a), queued(&a));
        assert!(!a.yields(), "nobody has waited for long");
        drop(first);
        let second = granted(&mut own).expect("its own waiter comes first");
        std::thread::sleep(PATIENCE);
        drop(second);
        let third = granted(&mut starving).expect("its time has come");
        assert!(granted(&mut later).is_none());
        drop(third);
        assert!(granted(&mut later).is_some());
    }

    #[test]
    fn who_left_and_a_new_limit_lose_no_place() {
        let rig = Rig::new(Some(1), None);
        let (a, b, c) = (rig.pool(0, "d", "a"), rig.pool(0, "d", "b"), rig.pool(0, "d", "c"));
        let first = place(&a);
        let (left, mut waits, mut longer) = (queued(&b), queued(&b), queued(&c));
        drop(left);
        drop(first);
        let slot = granted(&mut waits).expect("served");
        assert!(granted(&mut longer).is_none());
        a.set_quotas(QuotaLimits { node: None, database: Some(2), user: None });
        let other = granted(&mut longer).expect("the new place");
        a.set_quotas(QuotaLimits { node: None, database: Some(1), user: None });
        let mut last = queued(&b);
        drop(slot);
        assert!(granted(&mut last).is_none(), "one is over the limit");
        drop(other);
        assert!(granted(&mut last).is_some());
    }

    #[test]
    fn the_reserve_is_for_who_waits_and_goes_when_nobody_does() {
        let rig = Rig::new(None, None);
        let pool = rig.pool(0, "d", "a");
        pool.set_limit(1);
        let first = place(&pool);
        let mut second = queued(&pool);
        let Some(Grant::Place(extra)) = pool.reserve(1) else { panic!("no reserve") };
        assert!(pool.reserve(1).is_none(), "there is one");
        drop(extra);
        let slot = granted(&mut second).expect("the reserve is still there for who waits");
        assert_eq!(pool.counts().taken(), 2);
        drop(slot);
        assert_eq!(pool.counts().taken(), 1);
        drop((first, second));
        assert!(pool.is_unused());
    }
}
