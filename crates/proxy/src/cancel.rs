//! Cancel requests: the secrets that clients are given, and the way of a request to the node.
//!
//! Invariants: a secret is ours and says nothing about a server's, and only the whole of it fits. A backend stays
//! with its client while a request for it is on its way; one that a request may still hit later is never used
//! again. However many requests come for a client, one is on its way and at most one follows it. A node is sent
//! [`AT_ONCE`] requests at a time. Nothing of this counts for the limits of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use cluster::NodeId;
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio::time::timeout;

use crate::connect::{ConnectError, NodeAddress, send_cancel};
use crate::registry::ClientEntry;
use crate::tls::NodeTls;

/// The length of a secret since protocol 3.2: PostgreSQL's own; 256 are possible, and clients may count on less.
const LONG_SECRET: usize = 32;
/// The length of a secret before.
const SHORT_SECRET: u8 = 4;
/// The minor version that brought longer secrets.
const LONG_SINCE: u16 = 2;
/// How many requests are on their way to one node at a time: each costs it a process.
const AT_ONCE: usize = 32;
/// How long a request waits at most for what pgweir itself asks of the backend in front of the client's statement.
const SETUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it looks.
const SETUP_LOOK: Duration = Duration::from_millis(1);
/// How long a request may take, its turn included.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// The secret of a client. It has none, and no request fits, until its protocol version is known.
#[derive(Debug)]
pub struct Secret {
    bytes: [u8; LONG_SECRET],
    len: AtomicU8,
}

impl Secret {
    pub(crate) fn new() -> Self {
        Self { bytes: rand::random(), len: AtomicU8::new(0) }
    }

    /// The client speaks that minor version of protocol 3.
    pub fn speaks(&self, minor: u16) {
        let long = u8::try_from(LONG_SECRET).unwrap_or(u8::MAX);
        self.len.store(if minor >= LONG_SINCE { long } else { SHORT_SECRET }, Ordering::Relaxed);
    }

    /// What the client is told.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len.load(Ordering::Relaxed))).unwrap_or_default()
    }

    /// Whether that is it; how long this takes says nothing about where they differ.
    #[must_use]
    pub fn is(&self, claimed: &[u8]) -> bool {
        let own = self.bytes();
        let differences = own.iter().zip(claimed).fold(0, |all, (a, b)| all | (a ^ b));
        !own.is_empty() && own.len() == claimed.len() && differences == 0
    }
}

/// Where and how to cancel what a backend does.
#[derive(Debug, Clone)]
pub struct CancelKey {
    /// The node.
    pub node: NodeId,
    /// Where it is.
    pub address: Arc<NodeAddress>,
    /// The server's process id.
    pub pid: u32,
    /// The secret that goes with it.
    pub secret: Arc<[u8]>,
    /// What the connection is encrypted by, so that the request is too.
    pub tls: Option<Arc<NodeTls>>,
}

/// The requests of one client, in order.
#[derive(Debug, Default)]
pub(crate) struct Line {
    asked: AtomicU64,
    /// Up to which one they have been carried out.
    carried_out: Mutex<u64>,
}

/// What a client has that has ever been cancelled: who sends its requests on, and who waits for them.
#[derive(Debug, Default)]
pub(crate) struct Cancelling {
    pub(crate) line: Line,
    pub(crate) cancelled: Notify,
}

/// A request that is being sent on; dropping it lets the backend go.
#[derive(Debug)]
pub struct CancelOnItsWay {
    key: Arc<CancelKey>,
    number: u64,
    client: Arc<ClientEntry>,
}

impl CancelOnItsWay {
    pub(crate) fn new(key: Arc<CancelKey>, client: Arc<ClientEntry>) -> Self {
        let number = client.line().asked.fetch_add(1, Ordering::AcqRel) + 1;
        Self { key, number, client }
    }

    /// Which node it is for.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.key.node
    }

    /// Sends it on, unless one that is sent later than this came has done it.
    ///
    /// # Errors
    /// When it cannot be delivered.
    pub(crate) async fn carry_out(&self, desk: &Desk) -> Result<(), ConnectError> {
        let mut carried_out = self.client.line().carried_out.lock().await;
        if *carried_out >= self.number {
            return Ok(());
        }
        let asked = self.client.line().asked.load(Ordering::Acquire);
        self.wait_for_setup().await;
        let sent = desk.send(&self.key).await;
        match &sent {
            Ok(()) => *carried_out = asked,
            // Nobody has got it, nor ever will.
            Err(ConnectError::Unreachable(_) | ConnectError::Resolve(_) | ConnectError::Write(_)) => {}
            Err(_) => self.client.may_be_hit_later(),
        }
        sent
    }
}

impl CancelOnItsWay {
    /// Settings of ours that were cancelled would cost the client its session; it means its own statement.
    async fn wait_for_setup(&self) {
        let done = async {
            while self.client.sets_up() {
                tokio::time::sleep(SETUP_LOOK).await;
            }
        };
        // One that takes longer is cancelled itself.
        let _ = timeout(SETUP_TIMEOUT, done).await;
    }
}

impl Drop for CancelOnItsWay {
    fn drop(&mut self) {
        self.client.cancel_arrived();
    }
}

/// Where requests to one node wait for their turn.
#[derive(Debug)]
pub(crate) struct Desk(Semaphore);

impl Default for Desk {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Desk {
    /// Sends a request, and waits until the server has taken note.
    ///
    /// # Errors
    /// When it cannot be delivered.
    pub(crate) async fn send(&self, key: &CancelKey) -> Result<(), ConnectError> {
        let sending = async {
            // Nobody closes the semaphore.
            let _turn = self.0.acquire().await;
            send_cancel(key, CANCEL_TIMEOUT).await
        };
        timeout(CANCEL_TIMEOUT, Box::pin(sending)).await.unwrap_or(Err(ConnectError::TimedOut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_fits() {
        let secret = Secret::new();
        assert!(!secret.is(&[]), "none is known yet");
        for (minor, len) in [(0, 4), (1, 4), (2, 32), (7, 32)] {
            secret.speaks(minor);
            let told = secret.bytes().to_vec();
            assert_eq!(told.len(), len);
            assert!(secret.is(&told));
            assert!(!secret.is(&told[..len - 1]) && !secret.is(&[&told[..], b"x"].concat()));
            assert!(!secret.is(&told[..len.min(4) - 1]));
            let mut wrong = told;
            wrong[len - 1] ^= 1;
            assert!(!secret.is(&wrong));
        }
    }
}
