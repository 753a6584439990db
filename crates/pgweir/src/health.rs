//! What came of the health checks of each node, for SHOW POOL_HEALTH_CHECK_STATS.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admin::view::HealthRow;
use cluster::NodeId;
use parking_lot::Mutex;

#[derive(Debug)]
struct Checked {
    row: HealthRow,
    /// Failed checks in a row.
    failing: u64,
}

/// See the module's documentation. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<NodeId, Checked>>>);

impl Health {
    /// A check has ended: how long it took, and why it failed if it has.
    pub(crate) fn checked(&self, node: NodeId, took: Duration, failure: Option<&str>) {
        let now = SystemTime::now();
        let mut nodes = self.0.lock();
        let Checked { row, failing } =
            nodes.entry(node).or_insert_with(|| Checked { row: HealthRow::new(node), failing: 0 });
        row.total += 1;
        row.last = Some(now);
        if *failing > 0 {
            row.retry += 1;
            row.max_retry = row.max_retry.max(*failing);
        }
        match failure {
            Some(failure) => {
                *failing += 1;
                row.fail += 1;
                row.last_fail = Some(now);
                failure.clone_into(&mut row.failure);
            }
            None => {
                *failing = 0;
                row.shortest = if row.success == 0 { took } else { row.shortest.min(took) };
                row.longest = row.longest.max(took);
                row.time += took;
                row.success += 1;
                row.last_success = Some(now);
            }
        }
    }

    /// The nodes are others now.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// The checks of so many nodes, by id.
    pub(crate) fn rows(&self, nodes: usize) -> Vec<HealthRow> {
        let known = self.0.lock();
        let ids = (0..=u16::MAX).map(NodeId).take(nodes);
        let row = |node| known.get(&node).map_or_else(|| HealthRow::new(node), |of| of.row.clone());
        ids.map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_and_durations_add_up() {
        let (health, node) = (Health::default(), NodeId(1));
        let ms = Duration::from_millis;
        health.checked(node, ms(4), None);
        health.checked(node, ms(0), Some("no answer"));
        health.checked(node, ms(0), Some("refused"));
        health.checked(node, ms(2), None);
        let rows = health.rows(2);
        assert_eq!(rows[0], HealthRow::new(NodeId(0)));
        let row = &rows[1];
        assert_eq!((row.total, row.success, row.fail, row.retry, row.max_retry), (4, 2, 2, 2, 2));
        assert_eq!((row.shortest, row.longest, row.time), (ms(2), ms(4), ms(6)));
        assert_eq!(row.failure, "refused");
    }
}
