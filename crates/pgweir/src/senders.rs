//! Whom each node sends its WAL to, and how: `pg_stat_replication`, by the connection of the health check.
//!
//! A standby is known there by its `application_name`, as in Pgpool-II, or, where that says nothing, by its address when
//! nobody else of that address is there.

use std::net::IpAddr;
use std::sync::Arc;

use cluster::NodeId;
use config::Backend;
use parking_lot::Mutex;

/// Asks a node; LIMIT bounds what is kept, whatever hangs on it.
pub(crate) const QUESTION: &str = "SELECT application_name, host(client_addr), state, sync_state \
     FROM pg_catalog.pg_stat_replication ORDER BY pid LIMIT 256";

/// A connection that takes WAL from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sender {
    application_name: String,
    address: Option<IpAddr>,
    state: String,
    sync_state: String,
}

/// What `pg_stat_replication` of a node says of another one; empty texts when it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Sending {
    pub(crate) state: String,
    pub(crate) sync_state: String,
}

/// What the nodes said last. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Senders(Arc<Mutex<Vec<Vec<Sender>>>>);

impl Senders {
    /// A node has answered [`QUESTION`].
    pub(crate) fn told(&self, node: NodeId, rows: &[Vec<Option<String>>]) {
        self.set(node, rows.iter().map(|row| sender(row)).collect());
    }

    /// A node does not answer: what it said is not known to be true any more.
    pub(crate) fn forget(&self, node: NodeId) {
        self.set(node, Vec::new());
    }

    /// The nodes are others now.
    pub(crate) fn forget_all(&self) {
        self.0.lock().clear();
    }

    fn set(&self, node: NodeId, senders: Vec<Sender>) {
        let mut nodes = self.0.lock();
        if nodes.len() <= node.index() {
            nodes.resize(node.index() + 1, Vec::new());
        }
        if let Some(place) = nodes.get_mut(node.index()) {
            *place = senders;
        }
    }

    /// What is said of the standby: by the primary, or by whoever it follows in its stead.
    pub(crate) fn of(&self, standby: NodeId, backend: &Backend, primary: Option<NodeId>) -> Sending {
        let nodes = self.0.lock();
        let others = (0..nodes.len()).filter(|node| Some(*node) != primary.map(NodeId::index));
        let order = primary.map(NodeId::index).into_iter().chain(others);
        order
            .filter(|node| *node != standby.index())
            .filter_map(|node| nodes.get(node))
            .find_map(|senders| find(senders, backend))
            .unwrap_or_default()
    }
}

fn sender(row: &[Option<String>]) -> Sender {
    let text = |column: usize| row.get(column).cloned().flatten().unwrap_or_default();
    Sender { application_name: text(0), address: text(1).parse().ok(), state: text(2), sync_state: text(3) }
}

fn find(senders: &[Sender], backend: &Backend) -> Option<Sending> {
    let named = backend.application_name.as_deref();
    let by_name = senders.iter().find(|sender| named == Some(&sender.application_name));
    let here: Option<IpAddr> = backend.hostname.parse().ok();
    let mut neighbours = senders.iter().filter(|sender| here.is_some() && sender.address == here);
    let alone = neighbours.next().filter(|_| named.is_none() && neighbours.next().is_none());
    let found = by_name.or(alone)?;
    Some(Sending { state: found.state.clone(), sync_state: found.sync_state.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[[&str; 4]]) -> Vec<Vec<Option<String>>> {
        rows.iter().map(|row| row.map(|text| Some(text.to_owned())).to_vec()).collect()
    }

    fn backend(hostname: &str, name: Option<&str>) -> Backend {
        let text = format!("backends: [{{hostname: \"{hostname}\"}}]");
        let mut backend = config::parse(&text, "test").unwrap().backends.remove(0);
        backend.application_name = name.map(str::to_owned);
        backend
    }

    #[test]
    fn a_standby_is_known_by_its_name_or_its_address() {
        let (senders, primary, standby) = (Senders::default(), Some(NodeId(0)), NodeId(1));
        let said = |state: &str, sync: &str| Sending { state: state.into(), sync_state: sync.into() };
        let one = ["db1", "192.0.2.1", "streaming", "sync"];
        senders.told(NodeId(0), &rows(&[one, ["walreceiver", "192.0.2.2", "catchup", "async"]]));
        let of = |backend: &Backend| senders.of(standby, backend, primary);
        assert_eq!(of(&backend("elsewhere", Some("db1"))), said("streaming", "sync"));
        assert_eq!(of(&backend("192.0.2.2", None)), said("catchup", "async"));
        assert_eq!(of(&backend("192.0.2.3", None)), Sending::default());
        // A name that is configured and not there is not guessed at by the address.
        assert_eq!(of(&backend("192.0.2.2", Some("db2"))), Sending::default());
        senders.told(NodeId(0), &rows(&[one, ["pg_basebackup", "192.0.2.1", "backup", "async"]]));
        assert_eq!(of(&backend("192.0.2.1", None)), Sending::default(), "which of the two?");
        // A cascading standby tells of its own.
        senders.told(NodeId(2), &rows(&[["db9", "192.0.2.9", "streaming", "async"]]));
        assert_eq!(of(&backend("x", Some("db9"))), said("streaming", "async"));
        senders.forget(NodeId(0));
        assert_eq!(of(&backend("x", Some("db1"))), Sending::default());
    }
}
