//! Getting a backend: route, balance, pool, connect.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cluster::{Node, NodeId, Observation, Topology};
use router::Target;

use super::refusal::Refusal;
use super::unit::says_goodbye;
use super::{End, Session, hold};
use crate::backend::Backend;
use crate::buffer::BUFFER_LEN;
use crate::connect::ConnectError;
use crate::fence::{Lease, is_fenced};
use crate::open::{OpenAs, open};
use crate::pool::{Acquired, Grant, Pool, QuotaLimits, Waiting};
use crate::registry::{ClientState, Flag, WaitsFor};
use crate::stats::Count;

/// Nodes that one unit may try before it gives up.
const MAX_ATTEMPTS: usize = 8;
/// How long a session waits for a backend before those that are held on suspicion only are asked for theirs.
const YIELD_AFTER: Duration = Duration::from_secs(1);
/// What a client may send ahead while it waits for a backend, or for answers (bytes).
pub(super) const AHEAD_LIMIT: usize = 4 * BUFFER_LEN;

/// Where else a session could go.
#[derive(Clone, Copy)]
struct Elsewhere<'a> {
    target: Target,
    excluded: &'a [NodeId],
}

/// Why a wait ended without its result.
pub(super) enum Interrupt {
    Refused(Refusal),
    End(End),
}

impl From<Refusal> for Interrupt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Session {
    /// A backend for `target`; another node is tried when one cannot be connected to.
    pub(super) async fn acquire(&mut self, target: Target) -> Result<Box<Backend>, Interrupt> {
        self.acquire_except(target, &[]).await
    }

    /// As [`Session::acquire`], not on the nodes of `lost`. Waits out a failover.
    pub(super) async fn acquire_except(
        &mut self,
        target: Target,
        lost: &[NodeId],
    ) -> Result<Box<Backend>, Interrupt> {
        let mut held = None;
        loop {
            let refusal = match self.try_acquire(target, lost).await {
                Err(Interrupt::Refused(refusal)) if hold::may_help(target, &refusal) => refusal,
                done => return done,
            };
            Box::pin(self.hold(&mut held, refusal)).await?;
        }
    }

    async fn try_acquire(&mut self, target: Target, lost: &[NodeId]) -> Result<Box<Backend>, Interrupt> {
        if self.is_gated() {
            Box::pin(self.pass_gate()).await?;
        }
        self.drop_outdated();
        let mut topology = Arc::clone(self.topology.load());
        if let Some(seen) = self.waits_for(&topology, target) {
            Box::pin(self.catch_up(&topology, seen)).await?;
            topology = Arc::clone(self.topology.load());
        }
        let mut excluded = self.stale_nodes(&topology, target);
        let stale = excluded.len();
        excluded.extend_from_slice(lost);
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            let Some(node) = self.pick(&topology, target, &excluded) else { break };
            let elsewhere = Elsewhere { target, excluded: &excluded };
            match self.acquire_on(node, &topology, elsewhere).await {
                Err(Interrupt::Refused(
                    refusal @ (Refusal::Connect(..) | Refusal::Gone(_) | Refusal::Unreachable(_)),
                )) => {
                    excluded.push(node.id);
                    last = Some(refusal);
                }
                done => return done,
            }
            topology = Arc::clone(self.topology.load());
        }
        let none = match target {
            Target::Primary => Refusal::NoPrimary { waited: Duration::ZERO },
            _ if stale > 0 => Refusal::Stale,
            _ => Refusal::NoNode,
        };
        Err(last.unwrap_or(none).into())
    }

    /// A backend of that very node.
    pub(super) async fn acquire_here(
        &mut self,
        node: &Node,
        topology: &Topology,
    ) -> Result<Box<Backend>, Interrupt> {
        self.acquire_on(node, topology, Elsewhere { target: Target::Node(node.id), excluded: &[] }).await
    }

    async fn acquire_on(
        &mut self,
        node: &Node,
        topology: &Topology,
        elsewhere: Elsewhere<'_>,
    ) -> Result<Box<Backend>, Interrupt> {
        if let Some(at) = self.kept.iter().position(|backend| backend.node == node.id) {
            let mut backend = self.kept.swap_remove(at);
            if backend.epoch >= node.changed_epoch && backend.is_alive() {
                return self.lend(backend, node);
            }
        }
        let worker = self.worker.id;
        let (work, acquired) = self.with_pool(node, |pool| (pool.load.work(), pool.acquire(worker)));
        self.work = Some(work);
        let acquired = match acquired {
            Acquired::Granted(Grant::Backend(backend)) => match self.usable(backend, node) {
                Some(backend) => return self.lend(backend, node),
                None => None,
            },
            other => Some(other),
        };
        // Boxed: what is rare must not make every session larger.
        let (pool, began) = (self.with_pool(node, Arc::clone), Instant::now());
        let pooled = Box::pin(self.pooled(acquired, &pool, node, topology, (elsewhere, began))).await;
        self.clock = Instant::now();
        self.tally.add_time(Count::WaitNanos, self.clock.duration_since(began));
        self.lend(pooled?, node)
    }

    /// Does something with the pool of `node` for this client.
    fn with_pool<T>(&mut self, node: &Node, work: impl FnOnce(&Arc<Pool>) -> T) -> T {
        if let Some(pool) = self.pools.iter().find(|pool| pool.serves(node)) {
            return work(pool);
        }
        let (database, user) = (&self.identity.database, &self.identity.user);
        let config = self.config.get();
        let limits = || (config.pool_size(database, user), QuotaLimits::of(config, database, user));
        let pool = self.worker.shared.pool(node, &self.identity.node_database, user, &limits);
        let done = work(&pool);
        self.pools.retain(|known| known.key.node != node.id && !known.is_retired());
        self.pools.push(pool);
        done
    }

    /// The backend is the client's, unless its node went out of use meanwhile. The client is bound before it is
    /// looked, and the fence looks at who is bound after the topology was replaced: one of both sees it.
    fn lend(&mut self, backend: Box<Backend>, node: &Node) -> Result<Box<Backend>, Interrupt> {
        if self.work.is_none() {
            self.work = Some(self.worker.shared.loads.node(backend.node).work());
        }
        let entry = &self.client.entry;
        entry.bind(&backend.key, backend.entry.id, node.role);
        backend.entry.lent(entry.id, self.clock);
        if is_fenced(&backend.key.address, node.role, self.topology.load()) || !self.may_use(node.id) {
            self.client.entry.unbind();
            self.work = None;
            return Err(Refusal::Gone(node.id).into());
        }
        if self.client.entry.has(Flag::Cancel) {
            self.hand_back(backend);
            return Err(Refusal::Cancelled.into());
        }
        self.client.entry.set_state(ClientState::Active);
        self.tally.add(Count::Assignments, 1);
        Ok(backend)
    }

    /// The backend, brought to this worker; none if it is of no use any more.
    fn usable(&self, mut backend: Box<Backend>, node: &Node) -> Option<Box<Backend>> {
        if backend.epoch < node.changed_epoch || !backend.is_alive() {
            return None;
        }
        if backend.worker == self.worker.id { Some(backend) } else { backend.rehome(self.worker.id).ok() }
    }

    /// Not once it drains; what has begun there goes on.
    fn may_use(&mut self, node: NodeId) -> bool {
        self.topology.load().node(node).is_none_or(Node::is_usable)
    }

    async fn pooled(
        &mut self,
        mut acquired: Option<Acquired>,
        pool: &Arc<Pool>,
        node: &Node,
        topology: &Topology,
        (elsewhere, began): (Elsewhere<'_>, Instant),
    ) -> Result<Box<Backend>, Interrupt> {
        let mut full = None;
        loop {
            let grant = match acquired.take().unwrap_or_else(|| pool.acquire(self.worker.id)) {
                Acquired::Granted(grant) => grant,
                Acquired::Queued(waiting) => {
                    let grant = self.wait_for(waiting, pool).await?;
                    let lease = Lease { address: Arc::clone(&pool.address), role: node.role };
                    if lease.is_fenced(self.topology.load()) || !self.may_use(node.id) {
                        return Err(Refusal::Gone(node.id).into());
                    }
                    grant
                }
            };
            let slot = match grant {
                Grant::Place(slot) => slot,
                Grant::Backend(backend) => match self.usable(backend, node) {
                    Some(backend) => return Ok(backend),
                    None => continue,
                },
            };
            if pool.retry.must_wait(Instant::now()) && self.can_go(node, topology, elsewhere) {
                return Err(Refusal::Unreachable(node.id).into());
            }
            let turn = self.has_turn(pool, began).await;
            if !turn.map_err(|interrupt| in_place_of(interrupt, full.take()))? {
                continue;
            }
            let who = Arc::new(OpenAs::from(&self.identity));
            let opening = Box::pin(open(&self.worker, who, self.config.get(), slot, node));
            let lease = Lease { address: Arc::clone(&pool.address), role: node.role };
            let Some(opened) = self.unless_fenced(&lease, opening).await? else {
                return Err(Refusal::Gone(node.id).into());
            };
            let error = match opened {
                Ok(backend) => return Ok(backend),
                Err(error) => error,
            };
            // A server that is full may have room soon: a backend of ours that was closed for this one is still there.
            // Where this machine has no descriptor left, a backend that is there may become free.
            let may_have_room = error.is_full() || error.is_ours();
            let waits = may_have_room && began.elapsed() < self.config.get().query_wait_timeout;
            let waits = waits && !self.can_go(node, topology, elsewhere);
            let refusal = self.connect_failed(node.id, topology, error);
            if !waits {
                return Err(refusal.into());
            }
            full = Some(refusal);
        }
    }

    /// Whether another node would do as well.
    fn can_go(&mut self, node: &Node, topology: &Topology, elsewhere: Elsewhere<'_>) -> bool {
        let excluded = [elsewhere.excluded, &[node.id]].concat();
        elsewhere.target != Target::Primary && self.pick(topology, elsewhere.target, &excluded).is_some()
    }

    /// Waits for this session's turn to connect, which after failures comes late; false when the pool may have
    /// something free before.
    async fn has_turn(&mut self, pool: &Arc<Pool>, began: Instant) -> Result<bool, Interrupt> {
        let last = began + self.config.get().query_wait_timeout;
        loop {
            let (changed, now) = (pool.retry.changed(), Instant::now());
            let Err(turn) = pool.retry.turn(now) else { return Ok(true) };
            if now >= last {
                return Err(Refusal::Unreachable(pool.key.node).into());
            }
            self.client.entry.set_waiting(WaitsFor::Turn(pool.key.node));
            let waiting = tokio::time::timeout_at(turn.min(last).into(), changed);
            if self.watched_or_cancelled(waiting).await?.is_ok() {
                return Ok(false);
            }
        }
    }

    fn connect_failed(&self, node: NodeId, topology: &Topology, error: ConnectError) -> Refusal {
        let failure = error.kind();
        let shared = &self.worker.shared;
        if let Some(left_out) = shared.connect_log.admit(node, failure, &self.identity.user, Instant::now()) {
            let (user, database) = (&*self.identity.user, &*self.identity.node_database);
            tracing::warn!(node = %node, user, database, failure = failure.as_str(), error = %error, left_out, "cannot connect to node");
        }
        if !error.is_ours() {
            shared.observe(Observation::ConnectFailed { node, epoch: topology.epoch, failure });
        }
        Refusal::Connect(node, Box::new(error))
    }

    async fn wait_for(&mut self, mut waiting: Waiting, pool: &Arc<Pool>) -> Result<Grant, Interrupt> {
        let limit = self.config.get().query_wait_timeout;
        let began = Instant::now();
        self.client.entry.set_waiting(WaitsFor::Backend(pool.key.node));
        let granted = self.granted(&mut waiting, pool, limit).await;
        self.worker.shared.deps.metrics.backend_wait.observe(began.elapsed().as_secs_f64());
        match granted? {
            Some(Some(grant)) => Ok(grant),
            // The pool is gone: to the next one.
            Some(None) => Err(Refusal::NoNode.into()),
            None => {
                self.worker.shared.deps.metrics.query_wait_timeouts.inc();
                let counts = pool.counts();
                let quota = pool.full_quota().filter(|_| counts.taken() < counts.limit);
                let (full, size) = quota.map_or((None, counts.limit), |(scope, size)| (Some(scope), size));
                Err(Refusal::Busy { pool: Box::new(pool.key.clone()), full, size, waited: limit }.into())
            }
        }
    }

    /// Waits for a backend or a place; after a while for one of the reserve as well.
    async fn granted(
        &mut self,
        waiting: &mut Waiting,
        pool: &Arc<Pool>,
        limit: Duration,
    ) -> Result<Option<Option<Grant>>, Interrupt> {
        let registry = Arc::clone(&self.worker.shared.registry);
        let asking = async {
            tokio::time::sleep(YIELD_AFTER).await;
            super::held::ask_to_yield(&registry);
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            biased;
            granted = self.granted_in_turn(waiting, pool, limit) => granted,
            never = asking => match never {},
        }
    }

    async fn granted_in_turn(
        &mut self,
        waiting: &mut Waiting,
        pool: &Arc<Pool>,
        limit: Duration,
    ) -> Result<Option<Option<Grant>>, Interrupt> {
        let config = self.config.get();
        let reserve = config.reserve_pool_size(&self.identity.database, &self.identity.user);
        let patience = config.reserve_pool_timeout;
        if reserve == 0 || patience >= limit {
            return self.watched_or_cancelled(limited(limit, waiting.granted())).await;
        }
        let early = tokio::time::timeout(patience, waiting.granted());
        if let Ok(granted) = self.watched_or_cancelled(early).await? {
            return Ok(Some(granted));
        }
        if let Some(place) = pool.reserve(reserve) {
            return Ok(Some(Some(place)));
        }
        self.watched_or_cancelled(limited(limit - patience, waiting.granted())).await
    }

    /// Nobody goes on connecting to a node that is given up; `None` when it is.
    async fn unless_fenced<T>(
        &mut self,
        lease: &Lease,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, Interrupt> {
        let mut changes = self.worker.shared.deps.topology.changes();
        let topology = self.worker.shared.deps.topology.clone();
        let fenced = async { while !lease.is_fenced(&topology.load()) && changes.changed().await.is_ok() {} };
        self.watched_or_cancelled(async {
            tokio::select! {
                biased;
                done = future => Some(done),
                () = fenced => None,
            }
        })
        .await
    }

    pub(super) async fn watched_or_cancelled<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<T, Interrupt> {
        let mut future = pin!(future);
        let done = std::future::poll_fn(|cx| {
            if self.client.entry.is_raised(Flag::Cancel, cx) {
                self.client.entry.lower(Flag::Cancel);
                return Poll::Ready(Err(Refusal::Cancelled.into()));
            }
            self.poll_watched(cx, future.as_mut()).map_err(Interrupt::End)
        })
        .await;
        self.clock = Instant::now();
        done
    }

    fn poll_watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        future: std::pin::Pin<&mut impl Future<Output = T>>,
    ) -> Poll<Result<T, End>> {
        if let Poll::Ready(result) = future.poll(cx) {
            return Poll::Ready(Ok(result));
        }
        if self.client.entry.is_raised(Flag::Kill, cx) {
            return Poll::Ready(Err(End::Killed));
        }
        // The client's leaving shows as the end of its stream, behind what it sent ahead.
        while self.from_client.filled().len() < AHEAD_LIMIT {
            let need = self.from_client.filled().len() + 1;
            match self.poll_read_client(cx, need) {
                Poll::Ready(Ok(true)) => {}
                // What it has asked for is carried out if it has said goodbye, as by a server.
                Poll::Ready(Ok(false)) if says_goodbye(self.from_client.filled()) => break,
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(End::ClientLeft)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(End::ClientGone(error))),
                Poll::Pending => break,
            }
        }
        self.waited_too_long(cx).map_or(Poll::Pending, |end| Poll::Ready(Err(end)))
    }
}

/// `None` when `limit` passes first; a limit of zero is none.
async fn limited<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    if limit.is_zero() { Some(future.await) } else { tokio::time::timeout(limit, future).await.ok() }
}

/// Why a turn to connect did not come: the server's own refusal says more than that the time is over.
fn in_place_of(interrupt: Interrupt, full: Option<Refusal>) -> Interrupt {
    match (interrupt, full) {
        (Interrupt::Refused(Refusal::Unreachable(_)), Some(refusal)) => refusal.into(),
        (interrupt, _) => interrupt,
    }
}
