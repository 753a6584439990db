//! Why writes go to another primary than before: gathered while it happens, and told in one line when it is over.

use std::collections::BTreeMap;
use std::time::Instant;

use cluster::{Lsn, NodeId, NodeState, Progress, Record};

/// How a node became the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum How {
    /// Somebody else has promoted it.
    #[default]
    Observed,
    /// pgweir has, after the loss of the old one.
    Promoted,
    /// pgweir has, by command.
    Switchover,
}

impl How {
    fn as_str(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Promoted => "promoted",
            Self::Switchover => "switchover",
        }
    }
}

/// What is known of the failover that is under way.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// The primary that was lost or left, and since when there is none.
    old: Option<(NodeId, Instant)>,
    /// Why each node was last taken out.
    reasons: BTreeMap<NodeId, &'static str>,
    failures: Option<u32>,
    position: Option<Lsn>,
    how: How,
}

/// The end of a failover: what its line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The primary before.
    pub(crate) from: u16,
    /// Why it is that no more.
    pub(crate) lost: &'static str,
    /// Its failed checks in a row, when they decided it.
    pub(crate) failed_checks: Option<u32>,
    /// How far the new one had received.
    pub(crate) position: Option<String>,
    /// Who made it the primary.
    pub(crate) how: &'static str,
    /// For how long there was none.
    pub(crate) without_primary_ms: u64,
}

impl Evidence {
    /// Takes note of what has happened; a new primary in the place of another one gives the summary.
    pub(crate) fn note(&mut self, record: &Record) -> Option<Summary> {
        match record {
            Record::StateChange { node, to: NodeState::Up, .. } => {
                self.reasons.remove(node);
            }
            Record::StateChange { node, reason, .. } => {
                self.reasons.insert(*node, reason.as_str());
            }
            Record::Failover(Progress::Suspected { failures, .. }) => self.failures = Some(*failures),
            Record::Failover(Progress::Promoting { position, .. }) => {
                self.position = *position;
                if self.how == How::Observed {
                    self.how = How::Promoted;
                }
            }
            Record::Failover(Progress::Switching { .. }) => self.how = How::Switchover,
            Record::Failover(Progress::CalledOff { .. } | Progress::GivenUp { .. }) => {
                self.how = How::Observed
            }
            Record::PrimaryChange { from: Some(old), to: None, .. } => {
                self.old = Some((*old, Instant::now()))
            }
            Record::PrimaryChange { from, to: Some(to), .. } => return self.over(*from, *to),
            _ => {}
        }
        None
    }

    /// None when there was no other primary before.
    fn over(&mut self, from: Option<NodeId>, to: NodeId) -> Option<Summary> {
        let found = std::mem::take(self);
        let (old, since) = match (from, found.old) {
            (Some(old), _) => (old, None),
            (None, Some((old, since))) => (old, Some(since)),
            (None, None) => return None,
        };
        let lost = found.reasons.get(&old).copied().unwrap_or("it says that it is none any more");
        self.reasons = found.reasons;
        (old != to).then(|| Summary {
            from: old.0,
            lost,
            failed_checks: found.failures,
            position: found.position.map(|position| position.to_string()),
            how: found.how.as_str(),
            without_primary_ms: since
                .map_or(0, |since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_has_one_line_with_its_evidence() {
        let mut evidence = Evidence::default();
        let (old, new) = (NodeId(0), NodeId(1));
        let first = Record::PrimaryChange { from: None, to: Some(old), timeline: Some(1) };
        assert_eq!(evidence.note(&first), None, "the start is no failover");
        for record in [
            Record::Failover(Progress::Suspected { primary: old, failures: 3 }),
            Record::PrimaryChange { from: Some(old), to: None, timeline: None },
            Record::Failover(Progress::Promoting { node: new, old: Some(old), position: Some(Lsn(16)) }),
        ] {
            assert_eq!(evidence.note(&record), None);
        }
        let said = evidence.note(&Record::PrimaryChange { from: None, to: Some(new), timeline: Some(2) });
        let said = said.map(|said| (said.from, said.failed_checks, said.position, said.how));
        assert_eq!(said, Some((0, Some(3), Some("0/10".to_owned()), "promoted")));
        // One that comes back is none, and leaves nothing for the next.
        evidence.note(&Record::PrimaryChange { from: Some(new), to: None, timeline: None });
        assert_eq!(
            evidence.note(&Record::PrimaryChange { from: None, to: Some(new), timeline: Some(2) }),
            None
        );
        let back =
            evidence.note(&Record::PrimaryChange { from: Some(new), to: Some(old), timeline: Some(3) });
        assert_eq!(back.map(|said| (said.from, said.how, said.failed_checks)), Some((1, "observed", None)));
    }
}
