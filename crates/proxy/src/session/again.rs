//! Reads that are repeated on another node when theirs is lost before it has answered.
//!
//! Invariants: only a unit that reads and nothing else, outside of a transaction, the first of its lease, is
//! repeated; never once a byte of its answer was on its way to the client, nor once bytes behind it were
//! forwarded. What the client's books learned from it is taken back first.
//!
//! One that the server refuses because the columns of what was prepared are others by now is repeated as well, once, if
//! it asks what the columns are: a client that relies on what it was told before must hear of it.

use std::time::Duration;

use bytes::BufMut;
use cluster::{Node, NodeId};
use protocol::frame::frontend_header;
use protocol::message::TxStatus;
use router::{Access, Effect, Target, TxControl};

use super::{End, Session};
use crate::engine::{Boundary, Unit};

/// How often a unit is repeated.
const MAX_REPEATS: usize = 2;
/// Longer units are not (bytes).
const UNIT_LIMIT: usize = 16 * 1024;
/// How long it may take to find out whether a node that said goodbye is gone.
const VERDICT_TIMEOUT: Duration = Duration::from_millis(300);
/// A session that does nothing keeps no more room than this for them (bytes).
const KEPT_ROOM: usize = 1024;

/// The copy of a unit that may have to be repeated.
#[derive(Debug, Default)]
pub(super) struct Again {
    bytes: Vec<u8>,
    /// So many of them have been taken out of the client's buffer.
    taken: usize,
    armed: bool,
    /// It was repeated for its columns.
    replanned: bool,
}

/// The backends that a unit has lost.
#[derive(Debug, Default)]
pub(super) struct Losses {
    nodes: Vec<NodeId>,
    /// Boxed: what is rare must not make every session larger.
    last: Option<Box<(End, Vec<u8>)>>,
}

impl Losses {
    /// Where not to go again.
    pub(super) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

impl Session {
    /// A backend is bound for `unit`, which stands whole in the client's buffer if it is to be repeated.
    pub(super) fn arm(&mut self, unit: &Unit) {
        let verdict = &unit.verdict;
        let reads = verdict.access == Access::Read
            && verdict.tx == TxControl::None
            && verdict.pin.is_none()
            && verdict.effect == Effect::None;
        let alone = self.status() == TxStatus::Idle && self.to_client.is_empty();
        let ends = matches!(unit.boundary, Boundary::Query | Boundary::Sync) && unit.len <= UNIT_LIMIT;
        let bytes = self.from_client.filled().get(..unit.len);
        let Some(bytes) = bytes.filter(|_| reads && alone && ends) else { return self.disarm() };
        self.again.bytes.clear();
        self.again.bytes.extend_from_slice(bytes);
        self.again.taken = 0;
        self.again.armed = true;
        self.engine.begin_journal();
        if unit.boundary == Boundary::Sync {
            self.engine.allow_stand_in();
        }
    }

    /// The unit cannot be repeated any more, or need not.
    pub(super) fn disarm(&mut self) {
        self.again.armed = false;
        if self.engine.has_stand_in() {
            // It may have to come once more to the same backend.
            return;
        }
        self.engine.end_journal();
        if self.again.bytes.capacity() > KEPT_ROOM {
            self.again.bytes = Vec::new();
        }
    }

    /// The backend failed in a statement that it kept: the unit, all of which it was sent, comes once more as it is.
    pub(super) fn come_again(&mut self) {
        self.from_client.put_back(&self.again.bytes);
        self.engine.begin_anew(self.again.bytes.len());
        self.again.taken = 0;
        self.engine.begin_journal();
    }

    /// `count` bytes of the client have been forwarded.
    pub(super) fn taken(&mut self, count: usize) {
        if self.again.armed {
            self.again.taken += count;
            if self.again.taken > self.again.bytes.len() {
                self.disarm();
            }
        }
    }

    /// A unit that was not tried before is to be forwarded.
    pub(super) fn first_try(&mut self) {
        self.again.replanned = false;
    }

    /// What waits for the client is only that the columns of something have changed, and the unit can be repeated.
    pub(super) fn is_outdated(&self) -> bool {
        self.engine.saw_stale_plan()
            && self.again.armed
            && !self.again.replanned
            && describes(&self.again.bytes)
    }

    /// What waits for the client is not an answer but the server's goodbye, and the unit can be repeated.
    pub(super) fn is_goodbye(&self) -> bool {
        self.again.armed && self.engine.was_shut_down()
    }

    /// Whether a server that ended a backend is going down itself: an administrator may as well have ended
    /// just that statement (`pg_terminate_backend`), and does not want it to begin again elsewhere.
    pub(super) async fn goes_down(&mut self, node: NodeId) -> bool {
        let mut changes = self.worker.shared.deps.topology.changes();
        let topology = &mut self.topology;
        let down = async {
            while topology.load().node(node).is_some_and(Node::is_usable) && changes.changed().await.is_ok() {
            }
        };
        tokio::time::timeout(VERDICT_TIMEOUT, down).await.is_ok()
    }

    /// The backend was lost: puts the unit back in front of the client's buffer if it can go elsewhere. Else
    /// gives the end of the session.
    pub(super) fn take_back(
        &mut self,
        target: Target,
        node: NodeId,
        end: End,
        losses: &mut Losses,
    ) -> Result<(), End> {
        if matches!(end, End::Outdated) {
            self.again.replanned = true;
            self.to_client.clear();
            self.put_back();
            self.engine.parse_all_anew();
            return Ok(());
        }
        let lost = matches!(end, End::NodeLost(_) | End::Fenced { .. });
        if !lost || !self.again.armed || losses.nodes.len() >= MAX_REPEATS {
            return Err(end);
        }
        losses.nodes.push(node);
        let topology = std::sync::Arc::clone(self.topology.load());
        let mut excluded = self.stale_nodes(&topology, target);
        excluded.extend_from_slice(&losses.nodes);
        if self.pick(&topology, target, &excluded).is_none() {
            return Err(end);
        }
        losses.last = Some(Box::new((end, self.to_client.bytes(&self.from_server))));
        self.to_client.clear();
        self.put_back();
        tracing::debug!(client = self.client.entry.id, node = %node, "read repeated on another node");
        Ok(())
    }

    fn put_back(&mut self) {
        self.from_server.consume(self.from_server.filled().len());
        let Again { bytes, taken, .. } = &self.again;
        self.from_client.put_back(bytes.get(..*taken).unwrap_or_default());
        self.engine.roll_back();
        self.again.armed = false;
    }

    /// The unit could not be repeated after all: the session ends as it would have at the first loss.
    pub(super) fn give_up(&mut self, losses: Losses) -> Option<End> {
        let (end, told) = *losses.last?;
        self.to_client.own(|own| own.put_slice(&told));
        Some(end)
    }
}

/// Whether everything that is bound in `unit` is also described there.
fn describes(mut unit: &[u8]) -> bool {
    let (mut bound, mut described) = (0, 0);
    while let Ok(Some(header)) = frontend_header(unit) {
        bound += usize::from(header.tag == b'B');
        described += usize::from(header.tag == b'D');
        unit = unit.get(header.len..).unwrap_or_default();
    }
    described > 0 && described >= bound
}
