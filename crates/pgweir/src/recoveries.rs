//! What became of each `RECOVER NODE`: how far it is, what its command said last, why it failed.
//!
//! Invariants: the cluster's actor alone writes it; the last [`KEPT`] are kept.

use cluster::{NodeId, RecoveryEnd, RecoveryStep};
use protocol::error::PgError;
use protocol::sqlstate::SqlState;

/// How many are kept; those that are over leave first.
const KEPT: usize = 64;
/// PostgreSQL's `external_routine_exception`: the command is the operator's.
const COMMAND_FAILED: SqlState = SqlState(*b"38000");

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) run: u32,
    pub(crate) node: NodeId,
    pub(crate) step: RecoveryStep,
    /// The last line of the command's output.
    pub(crate) said: Option<String>,
    /// How the command failed.
    pub(crate) failure: Option<String>,
}

/// What the command's task tells.
#[derive(Debug)]
pub(crate) enum News {
    /// A line of its output.
    Said(String),
    /// How it failed.
    Failed(String),
}

/// The oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recoveries(Vec<Told>);

impl Recoveries {
    /// A recovery goes on.
    pub(crate) fn step(&mut self, run: u32, node: NodeId, step: RecoveryStep) {
        if let Some(told) = self.0.iter_mut().find(|told| told.run == run) {
            told.step = step;
            return;
        }
        if self.0.len() >= KEPT {
            let over = self.0.iter().position(|told| matches!(told.step, RecoveryStep::Ended(_)));
            self.0.remove(over.unwrap_or(0));
        }
        self.0.push(Told { run, node, step, said: None, failure: None });
    }

    /// Its command has told something.
    pub(crate) fn tell(&mut self, run: u32, news: News) {
        let Some(told) = self.0.iter_mut().find(|told| told.run == run) else { return };
        match news {
            News::Said(line) => told.said = Some(line),
            News::Failed(why) => told.failure = Some(why),
        }
    }

    /// The newest one of that node.
    pub(crate) fn latest(&self, node: NodeId) -> Option<&Told> {
        self.0.iter().rev().find(|told| told.node == node)
    }

    /// That one.
    pub(crate) fn of(&self, run: u32) -> Option<&Told> {
        self.0.iter().find(|told| told.run == run)
    }
}

impl Told {
    /// How far it is, in a line; none when it is over.
    pub(crate) fn progress(&self) -> Option<String> {
        let node = self.node;
        match self.step {
            RecoveryStep::Command => Some(match &self.said {
                Some(line) => format!("recovery_command runs for node {node}: {line}"),
                None => format!("recovery_command runs for node {node}"),
            }),
            RecoveryStep::Joining => Some(format!(
                "recovery_command has ended; node {node} is not seen as a streaming standby yet"
            )),
            RecoveryStep::Ended(_) => None,
        }
    }

    /// Its end, for whoever asked for it; none before.
    pub(crate) fn outcome(&self) -> Option<Result<String, PgError>> {
        let RecoveryStep::Ended(end) = self.step else { return None };
        let node = self.node;
        let not_now = |text: String| PgError::error(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text);
        let again = format!("RECOVER NODE {node} begins anew.");
        Some(Err(match end {
            RecoveryEnd::Joined => return Some(Ok(format!("node {node} is a streaming standby again"))),
            RecoveryEnd::CommandFailed => self.command_failed(),
            RecoveryEnd::NotJoined => {
                not_now(format!("node {node} is no streaming standby of the primary after recovery_timeout"))
                    .with_detail("recovery_command has ended without an error.")
                    .with_hint(
                        "SHOW NODES and the node's own log tell what it is now; that it streams is seen only \
                         when the user of the health check is a member of pg_monitor.",
                    )
            }
            RecoveryEnd::PrimaryChanged => {
                not_now(format!("node {node} was rebuilt from a primary that is none any more"))
                    .with_hint(again)
            }
            RecoveryEnd::Stopped => {
                let text = format!("the recovery of node {node} was stopped: it was detached or removed");
                PgError::error(SqlState::QUERY_CANCELED, text).with_hint(again)
            }
        }))
    }

    fn command_failed(&self) -> PgError {
        let why = self.failure.as_deref().unwrap_or("it has failed");
        let error = PgError::error(
            COMMAND_FAILED,
            format!("recovery_command for node {}: {why}; the node stays out of service", self.node),
        )
        .with_hint(format!(
            "pgweir's log has its output. When the cause is mended, RECOVER NODE {} begins anew.",
            self.node
        ));
        match &self.said {
            Some(line) => error.with_detail(format!("It said last: {line}")),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_over_leave_first() {
        let mut all = Recoveries::default();
        all.step(1, NodeId(1), RecoveryStep::Command);
        for run in 2..200 {
            all.step(run, NodeId(2), RecoveryStep::Ended(RecoveryEnd::Joined));
        }
        assert_eq!((all.0.len(), all.of(1).map(|told| told.step)), (KEPT, Some(RecoveryStep::Command)));
        assert_eq!(all.latest(NodeId(2)).map(|told| told.run), Some(199));
        all.tell(1, News::Said("half".to_owned()));
        assert_eq!(all.of(1).unwrap().progress().as_deref(), Some("recovery_command runs for node 1: half"));
        all.tell(1, News::Failed("exit status: 3".to_owned()));
        all.step(1, NodeId(1), RecoveryStep::Ended(RecoveryEnd::CommandFailed));
        let error = all.of(1).unwrap().outcome().unwrap().unwrap_err();
        assert_eq!((error.code, error.detail.as_deref()), (COMMAND_FAILED, Some("It said last: half")));
        assert!(error.message.contains("exit status: 3") && error.hint.is_some(), "{error:?}");
    }
}
