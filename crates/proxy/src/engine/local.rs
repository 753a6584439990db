//! Messages that pgweir answers itself, between those of a backend that the client has.
//!
//! Invariants: such a message is answered when everything before it has been, so replies keep their order;
//! what the server ignores up to Sync is not answered either; the server never sees it.

use bytes::BufMut;
use protocol::message::TxStatus;
use protocol::tracker::{Ask, Owner};
use router::{Effect, Verdict};

use super::{Engine, Stop};
use crate::out::Out;

/// What is known of messages that are answered here.
#[derive(Debug, Default)]
pub(super) struct Local {
    /// Portals made from statements that are answered here.
    portals: Vec<Box<[u8]>>,
    /// The server was asked for the answers to what stands before it.
    flushed: bool,
    /// Such a message failed: the client's messages are ignored up to Sync.
    skipping: bool,
}

impl Engine {
    /// Whether the message at the front is of a statement that is answered here, in its turn.
    pub(super) fn is_local(&mut self, verdict: &Verdict, out: &mut Out) -> bool {
        verdict.effect == Effect::Console && self.stop_for_local(out)
    }

    /// Whether the message at the front is of a portal that is answered here, in its turn.
    pub(super) fn is_local_portal(&mut self, portal: &[u8], out: &mut Out) -> bool {
        self.has_local_portal(portal) && self.stop_for_local(out)
    }

    fn has_local_portal(&self, portal: &[u8]) -> bool {
        self.local.portals.iter().any(|known| **known == *portal)
    }

    fn stop_for_local(&mut self, out: &mut Out) -> bool {
        if self.tracker.is_skipping() || self.tracker.in_copy() {
            return false;
        }
        self.stop = Some(if !self.is_waiting() {
            Stop::Local
        } else {
            if !self.local.flushed {
                out.own(|own| own.put_slice(b"H\0\0\0\x04"));
            }
            Stop::Hold
        });
        self.local.flushed = self.is_waiting();
        true
    }

    /// As [`Engine::is_local`], of a simple Query: it ends an unfinished batch, as in PostgreSQL.
    pub(super) fn is_local_query(&mut self, verdict: &Verdict, out: &mut Out) -> bool {
        if !self.is_local(verdict, out) {
            return false;
        }
        if !self.is_waiting() && !self.tracker.is_settled() {
            out.own(protocol::write::sync);
            self.tracker.push(Ask::Sync, Owner::Ours);
            self.stop = Some(Stop::Hold);
            self.local.flushed = true;
        }
        true
    }

    /// Whether a message of that tag is ignored because one that was answered here has failed.
    pub(super) fn skips_locally(&mut self, tag: u8) -> bool {
        self.local.skipping &= tag != b'S';
        self.local.skipping
    }

    /// What the client sends next is of a batch that has failed here.
    pub(super) fn is_skipping_locally(&self) -> bool {
        self.local.skipping
    }

    /// The client's message of `len` bytes was answered here.
    pub fn passed_locally(&mut self, tag: u8, len: usize) {
        self.gate.passed(len);
        self.in_batch = tag != b'Q';
        self.gate.bound &= self.in_batch;
    }

    /// It was answered with an error: what follows of the batch is ignored.
    pub fn failed_locally(&mut self) {
        self.local.skipping = true;
    }

    /// The client made `portal` from a statement that is answered here, or from another one.
    pub fn bound_locally(&mut self, portal: &[u8], local: bool) {
        self.local.portals.retain(|known| **known != *portal);
        if local {
            self.local.portals.push(portal.into());
        }
    }

    /// Whether there are portals that are answered here.
    #[must_use]
    pub fn has_local_portals(&self) -> bool {
        !self.local.portals.is_empty()
    }

    /// Portals end with the transaction.
    pub fn end_local_portals(&mut self) {
        self.local.portals.clear();
    }

    /// The server is ready for the next batch.
    pub(super) fn local_ready(&mut self) {
        if self.tracker.status() == TxStatus::Idle {
            self.end_local_portals();
        }
    }
}
