//! Limits over several pools of a node: the backends of one database, and those of one user.
//!
//! Invariants: a place of a pool is a place of both its quotas; who waits because a quota is full is served
//! when one of its places becomes free in any pool, and idle backends of other pools make way. A pool's own
//! waiters come first. No two pools are locked at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Grant, Pool, PoolKey};

/// What a quota is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
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
            Self::Database => "max_db_connections",
            Self::User => "max_user_connections",
        }
    }
}

/// The most backends that the two quotas of a pool allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Of its database.
    pub database: Option<u32>,
    /// Of its user.
    pub user: Option<u32>,
}

impl QuotaLimits {
    /// Those of a database, by the name that clients use, and a user.
    #[must_use]
    pub fn of(config: &config::Config, database: &str, user: &str) -> Self {
        Self { database: config.max_db_connections(database), user: config.max_user_connections(user) }
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

/// Both quotas of a pool; none until it is [`enrolled`](QuotaBook::enroll).
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

    /// A place of the quotas became free: pools that share them may have somebody waiting.
    pub(super) fn quotas_freed(self: &Arc<Self>) {
        for quota in self.quotas.0.iter().filter(|quota| quota.is_limited()) {
            quota.pools().iter().for_each(Self::serve);
        }
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
            others.iter().any(|pool| !Arc::ptr_eq(pool, self) && pool.waits_for_quota())
        });
        if wanted {
            self.close_one_idle();
        }
    }

    fn waits_for_quota(&self) -> bool {
        let inner = self.inner.lock();
        inner.taken < inner.limit && !inner.waiters.is_empty()
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
    /// Changes the limits of its quotas; who waits is served.
    pub fn set_quotas(self: &Arc<Self>, limits: QuotaLimits) {
        for quota in &self.quotas.0 {
            let limit = match quota.scope {
                Scope::Database => limits.database,
                Scope::User => limits.user,
            };
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
            Self { book: QuotaBook::default(), limits: QuotaLimits { database, user } }
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
    fn who_left_and_a_new_limit_lose_no_place() {
        let rig = Rig::new(Some(1), None);
        let (a, b, c) = (rig.pool(0, "d", "a"), rig.pool(0, "d", "b"), rig.pool(0, "d", "c"));
        let first = place(&a);
        let (left, mut waits, mut longer) = (queued(&b), queued(&b), queued(&c));
        drop(left);
        drop(first);
        let slot = granted(&mut waits).expect("served");
        assert!(granted(&mut longer).is_none());
        a.set_quotas(QuotaLimits { database: Some(2), user: None });
        let other = granted(&mut longer).expect("the new place");
        a.set_quotas(QuotaLimits { database: Some(1), user: None });
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
