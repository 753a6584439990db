//! What has happened to the nodes and the process: the last [`KEPT`] changes, for SHOW EVENTS.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use admin::view::EventRow;
use cluster::{NodeId, Record};
use parking_lot::Mutex;

/// How many are kept.
const KEPT: usize = 1000;

#[derive(Default)]
struct Kept {
    events: VecDeque<EventRow>,
    number: u64,
}

/// See the module's documentation. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Kept>>);

/// What happened, apart from when.
pub(crate) struct Happened {
    pub(crate) kind: &'static str,
    pub(crate) node: Option<NodeId>,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) reason: String,
}

impl Events {
    /// Keeps something that has happened now.
    pub(crate) fn add(&self, happened: Happened) {
        let Happened { kind, node, from, to, reason } = happened;
        let mut kept = self.0.lock();
        kept.number += 1;
        let number = kept.number;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(EventRow { number, at: SystemTime::now(), kind, node, from, to, reason });
    }

    /// Something of the process itself.
    pub(crate) fn process(&self, kind: &'static str, to: impl Into<String>, reason: impl Into<String>) {
        self.add(Happened { kind, node: None, from: String::new(), to: to.into(), reason: reason.into() });
    }

    /// What the cluster core has recorded; troubles of single checks are left to SHOW HEALTH.
    pub(crate) fn record(&self, record: &Record) {
        let name = |id: &Option<NodeId>| id.map_or_else(|| "none".to_owned(), |id| format!("node {id}"));
        let happened = match record {
            Record::StateChange { node, from, to, reason } => Happened {
                kind: "node_state",
                node: Some(*node),
                from: from.as_str().to_owned(),
                to: to.as_str().to_owned(),
                reason: reason.as_str().to_owned(),
            },
            Record::RoleChange { node, from, to } => Happened {
                kind: "node_role",
                node: Some(*node),
                from: from.as_str().to_owned(),
                to: to.as_str().to_owned(),
                reason: "what the node says of itself".to_owned(),
            },
            Record::PrimaryChange { from, to, timeline } => Happened {
                kind: "primary",
                node: *to,
                from: name(from),
                to: name(to),
                reason: timeline.map_or_else(String::new, |timeline| format!("timeline {timeline}")),
            },
            Record::Recovery { run, node, step } => Happened {
                kind: "recovery",
                node: Some(*node),
                from: String::new(),
                to: step.as_str().to_owned(),
                reason: format!("RECOVER NODE, number {run}"),
            },
            Record::Reconfigured { nodes } => Happened {
                kind: "nodes",
                node: None,
                from: String::new(),
                to: nodes.to_string(),
                reason: "reload".to_owned(),
            },
            _ => return,
        };
        self.add(happened);
    }

    /// The oldest first.
    pub(crate) fn all(&self) -> Vec<EventRow> {
        self.0.lock().events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let events = Events::default();
        for number in 0..KEPT + 3 {
            events.process("test", number.to_string(), "");
        }
        let all = events.all();
        assert_eq!((all.len(), all[0].number, all[0].to.as_str()), (KEPT, 4, "3"));
        assert!(all.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
    }
}
