//! Read your writes: after a write a session reads from a standby only once that shows the write.
//!
//! No round trip is added: the session remembers when it was told that its write is done, and the sampler
//! says up to when each standby shows everything.

use cluster::{NodeId, Topology};
use config::Consistency;
use router::Target;

use super::Session;

impl Session {
    /// The client is told now that what it has written is done.
    pub(super) fn has_written(&mut self) {
        let (database, user) = (&self.identity.database, &self.identity.user);
        if self.config.load().consistency(database, user) != Consistency::Eventual {
            self.last_write = Some(self.worker.shared.deps.now());
        }
    }

    /// The standbys that do not show this session's last write yet.
    pub(super) fn stale_nodes(&mut self, topology: &Topology, target: Target) -> Vec<NodeId> {
        let Some(last_write) = self.last_write else { return Vec::new() };
        if !matches!(target, Target::Read | Target::Standby | Target::Prefer(_)) {
            return Vec::new();
        }
        let freshness = self.freshness.load();
        // The write is remembered for good: a standby that comes back may show less than the others.
        let standbys = topology.usable_standbys().map(|node| node.id);
        let stale: Vec<NodeId> = standbys.filter(|id| !freshness.covers(*id, last_write)).collect();
        if !stale.is_empty() {
            (self.worker.shared.deps.want_fresh)();
        }
        stale
    }
}
