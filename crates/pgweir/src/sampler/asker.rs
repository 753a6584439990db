//! Asks one node one question, again and again, over a connection that is kept.
//!
//! Its task answers each question once, with nothing when there is no answer in time; after that it pauses, longer
//! each time. It also tells when the connection ends while nothing is asked.

use std::time::Duration;

use cluster::{Lsn, Moment};
use proxy::connect::{Connected, query};
use telemetry::{Backoff, Tasks};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::probe_query::{self, ProbeError};
use crate::specs::ProbeSpec;

/// Where the primary will write next, and on which timeline; an error on a standby.
pub(super) const PRIMARY: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn(), true, \
     ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int";
/// How far the standby has replayed, whether it receives, and the timeline it receives, which only members of
/// `pg_read_all_stats` are told.
pub(super) const STANDBY: &str = "SELECT pg_catalog.pg_last_wal_replay_lsn(), receiver.pid IS NOT NULL, \
     receiver.received_tli FROM pg_catalog.pg_stat_get_wal_receiver() AS receiver";
/// How our connections call themselves.
const NAME: &str = "pgweir sampler";
/// Pauses after failures.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What a node says of its WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) lsn: Lsn,
    /// A standby gets WAL from another server now.
    pub(super) receives: bool,
    pub(super) timeline: Option<u32>,
}

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// An answer to the question of that moment.
    Reading { asked: Moment, reading: Reading },
    /// The connection is gone, or was none.
    Nothing,
}

/// What an asker's task tells.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whose.
    pub(super) serial: u64,
    pub(super) said: Said,
}

/// The sampler's end of the task; the task ends with it.
pub(super) struct Asker {
    spec: ProbeSpec,
    serial: u64,
    questions: mpsc::Sender<Moment>,
    task: JoinHandle<()>,
    state: State,
}

/// How the asker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is known of the node.
    Silent,
    /// Its connection has answered.
    Answered,
}

impl Asker {
    /// Starts the task.
    pub(super) fn start(
        tasks: &Tasks,
        spec: ProbeSpec,
        question: &'static str,
        serial: u64,
        answers: mpsc::Sender<Answer>,
    ) -> Self {
        let (questions, asked) = mpsc::channel(1);
        let line = Line {
            spec: spec.clone(),
            question,
            serial,
            answers,
            link: None,
            backoff: Backoff::new(PAUSE.0, PAUSE.1),
            said: None,
        };
        let task = tasks.spawn("sampler of a node", line.run(asked));
        Self { spec, serial, questions, task, state: State::Silent }
    }

    pub(super) fn spec(&self) -> &ProbeSpec {
        &self.spec
    }

    pub(super) fn is(&self, serial: u64) -> bool {
        self.serial == serial
    }

    /// Whether what was learned of the node still holds.
    pub(super) fn has_answered(&self) -> bool {
        self.state == State::Answered
    }

    /// Takes notice of an answer.
    pub(super) fn answered(&mut self, said: &Said) {
        self.state = match said {
            Said::Reading { .. } => State::Answered,
            Said::Nothing => State::Silent,
        };
    }

    /// Asks; while the task is busy with another question, one waits and more are dropped.
    pub(super) fn ask(&self, now: Moment) {
        // A question that waits already will be answered with what is true then.
        let _ = self.questions.try_send(now);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task.
struct Line {
    spec: ProbeSpec,
    question: &'static str,
    serial: u64,
    answers: mpsc::Sender<Answer>,
    link: Option<Connected>,
    backoff: Backoff,
    /// What was said last about its failures: the same is not said twice.
    said: Option<String>,
}

impl Line {
    async fn run(mut self, mut questions: mpsc::Receiver<Moment>) {
        loop {
            let asked = match &mut self.link {
                Some(link) => tokio::select! {
                    asked = questions.recv() => asked,
                    // Whatever a server says unasked: we begin anew.
                    () = speaks(link) => {
                        self.link = None;
                        self.tell(Said::Nothing).await;
                        continue;
                    }
                },
                None => questions.recv().await,
            };
            let Some(asked) = asked else { return };
            // Dropping what is under way closes the connection.
            let outcome = timeout(self.spec.check.timeout, Box::pin(self.ask())).await;
            match outcome {
                Ok(Ok(reading)) => {
                    self.backoff.reset();
                    self.said = None;
                    self.tell(Said::Reading { asked, reading }).await;
                }
                Ok(Err(error)) => self.failed(error.to_string()).await,
                Err(_) => self.failed("no answer within the time allowed".to_owned()).await,
            }
        }
    }

    async fn ask(&mut self) -> Result<Reading, ProbeError> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => probe_query::connect_as(&self.spec, NAME).await?,
        };
        let rows = query(&mut link, self.question, self.spec.check.timeout).await?;
        let reading = reading(&rows).ok_or(ProbeError::Nonsense)?;
        self.link = Some(link);
        Ok(reading)
    }

    async fn failed(&mut self, error: String) {
        self.tell(Said::Nothing).await;
        if self.said.as_ref() != Some(&error) {
            let ProbeSpec { node, backend, check, .. } = &self.spec;
            let (node, address) = (node.0, backend.to_string());
            let (user, database) = (&check.user, &check.database);
            tracing::warn!(node, address, user, database, error, "cannot ask how far the node is");
            self.said = Some(error);
        }
        tokio::time::sleep(self.backoff.delay(rand::random())).await;
    }

    async fn tell(&self, said: Said) {
        // Without a sampler there is nobody to tell.
        let _ = self.answers.send(Answer { serial: self.serial, said }).await;
    }
}

/// Waits until the server says something, or goes.
async fn speaks(link: &mut Connected) {
    let mut byte = [0; 1];
    // Its end, an error and a message are all the same here.
    let _ = link.stream.read(&mut byte).await;
}

/// Reads the one row: position, whether it receives, timeline.
fn reading(rows: &[Vec<Option<String>>]) -> Option<Reading> {
    let [row] = rows else { return None };
    let text = |column: usize| row.get(column)?.as_deref();
    let timeline = text(2).map(str::parse::<i32>).transpose().ok()?;
    Some(Reading {
        lsn: Lsn::parse(text(0)?)?,
        receives: text(1)? == "t",
        timeline: timeline.map(i32::cast_unsigned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: [Option<&str>; 3]) -> Vec<Vec<Option<String>>> {
        vec![values.map(|value| value.map(str::to_owned)).to_vec()]
    }

    #[test]
    fn answers_are_read() {
        let full = Reading { lsn: Lsn(0x1_0000_2000), receives: true, timeline: Some(10) };
        assert_eq!(reading(&row([Some("1/2000"), Some("t"), Some("10")])), Some(full));
        let untold = Reading { timeline: None, ..full };
        assert_eq!(reading(&row([Some("1/2000"), Some("t"), None])), Some(untold));
        let alone = Reading { receives: false, ..untold };
        assert_eq!(reading(&row([Some("1/2000"), Some("f"), None])), Some(alone));
        for bad in [vec![], vec![vec![]], row([None; 3]), row([Some("1/2000"), Some("t"), Some("x")])] {
            assert_eq!(reading(&bad), None);
        }
    }
}
