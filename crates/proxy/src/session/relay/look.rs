//! A statement may have left something on the backend with nothing in its text to show for it (`engine::unseen`): the
//! backend is asked, once everything is answered and outside of any transaction.
//!
//! Settings are the client's from then on; what cannot be moved holds it, or is dropped, as `session_state` says. A
//! backend that does not tell serves nobody else.

use std::pin::pin;
use std::task::Poll;

use config::{PoolMode, SessionState};
use protocol::error::{PgError, write_notice};
use protocol::sqlstate::SqlState;
use router::PinReason;
use telemetry::metrics::Told;

use super::super::settle::{Amid, ExchangeError, ask_amid, reset};
use super::{End, Relay, Session};
use crate::catalog::State;
use crate::connect::Rows;
use crate::engine::Found;
use crate::registry::Flag;
use crate::settings::{Literal, Setting};

/// A cancel request of the client that comes late hits the question: it is asked again so often.
const ATTEMPTS: usize = 3;
/// How long it is waited until what was made a moment ago is known.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(500);
/// Settings that pgweir routes and reads by.
const DECIDING: [&str; 4] = [
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "standard_conforming_strings",
];
/// What all statements are asked in; operators and functions by their schemas, whatever the search path is. Settings of the
/// transaction are those of the question itself. `{names}` is a list of literals, `{timeout}` an exception.
const QUESTION: &str = "SELECT 's', s.name, pg_catalog.current_setting(s.name, true) FROM pg_catalog.pg_settings AS s \
     WHERE s.source OPERATOR(pg_catalog.=) 'session' AND NOT s.name OPERATOR(pg_catalog.~~) E'transaction\\\\_%'{timeout} \
     UNION ALL SELECT 's', n, pg_catalog.current_setting(n, true) \
     FROM pg_catalog.unnest(ARRAY[{names}]::pg_catalog.text[]) AS n \
     UNION ALL SELECT 's', 'role', pg_catalog.current_setting('role') \
     UNION ALL SELECT 's', 'session_authorization', session_user::pg_catalog.text \
     UNION ALL SELECT 'p', 'temp_table', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_depend \
     WHERE refclassid OPERATOR(pg_catalog.=) 2615 AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()) \
     UNION ALL SELECT 'p', 'advisory_lock', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_locks \
     WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()) \
     UNION ALL SELECT 'p', 'listen', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_listening_channels()) \
     UNION ALL SELECT 'p', 'hold_cursor', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable) \
     UNION ALL SELECT 'n', name, NULL FROM pg_catalog.pg_prepared_statements WHERE from_sql \
     UNION ALL SELECT 'c', pg_catalog.count(*)::pg_catalog.text, NULL FROM pg_catalog.pg_prepared_statements \
     UNION ALL SELECT '.', NULL, NULL";
/// The client's `statement_timeout` does not hold for the question; what it is, is asked for before.
const UNTIMED: &str = "SELECT 's', 'statement_timeout', pg_catalog.current_setting('statement_timeout'); \
     SET LOCAL statement_timeout = 0; ";

impl Session {
    /// Whether the backend is to be asked now. One of session pooling is the client's own.
    pub(super) fn asks(&self) -> bool {
        self.engine.is_to_be_asked() && self.mode != PoolMode::Session
    }

    /// Asks it, and takes over what it tells.
    pub(super) async fn ask_what_is_there(&mut self, relay: &mut Relay) -> Result<(), End> {
        self.wait_for_the_catalog().await;
        let rows = match self.question(relay).await? {
            Ok(rows) => rows,
            Err(error) => return self.not_told(relay, error),
        };
        let found = self.understood(relay, &rows);
        let Some(found) = found else {
            return self.not_told(relay, ExchangeError::Lost(std::io::ErrorKind::InvalidData.into()));
        };
        let (state, settings) = (found.state.clone(), found.values.len());
        self.engine.take_found(found, &mut relay.backend.books);
        self.count(match (state.is_empty(), settings) {
            (false, _) => Told::State,
            (true, 0) => Told::Nothing,
            (true, _) => Told::Settings,
        });
        tracing::debug!(
            client = self.client.entry.id,
            ?state,
            settings,
            "session state found that no text shows"
        );
        let Some(reason) = self.engine.pin() else { return Ok(()) };
        if self.engine.is_on_standby() {
            // Nothing could be written by who is held there.
            self.engine.give_up_asking();
        } else if self.session_state() == SessionState::Reject {
            self.drop_state(relay, reason).await?;
        }
        Ok(())
    }

    fn count(&self, told: Told) {
        self.worker.shared.deps.metrics.state_questions.inc(told.position());
    }

    /// A function that was made a moment ago: which settings it makes is known when the catalog is.
    async fn wait_for_the_catalog(&mut self) {
        let unsettled = matches!(self.knowledge.load().state, State::Loading | State::Changed);
        if !unsettled || !self.engine.may_learn_names() {
            return;
        }
        if let Some(mut answers) = self.catalog.ask() {
            // However it ends: names that are known then are asked for.
            let _ = tokio::time::timeout(MOMENT, answers.changed()).await;
        }
    }

    /// The answer; the client is sent meanwhile what it is due.
    async fn question(&mut self, relay: &mut Relay) -> Result<Result<Rows, ExchangeError>, End> {
        let names = self.names();
        let mut timed = true;
        let mut amid = Amid::default();
        for attempt in 1.. {
            let question = question(&names, timed);
            amid.before.extend_from_slice(self.from_server.filled());
            self.from_server.consume(usize::MAX);
            let entry = std::sync::Arc::clone(&self.client.entry);
            let answer = {
                let mut asking = pin!(ask_amid(&mut relay.backend, question.as_bytes(), &mut amid));
                std::future::poll_fn(|cx| {
                    // A client that is gone is noticed by whoever serves it next.
                    let _ = self.poll_flush_client(cx);
                    if entry.is_raised(Flag::Kill, cx) {
                        return Poll::Ready(Err(End::Killed));
                    }
                    asking.as_mut().poll(cx).map(Ok)
                })
                .await?
            };
            relay.backend.books.prepared.set_unnamed(None);
            let again = matches!(&answer, Err(ExchangeError::Server(error)) if error.code == SqlState::QUERY_CANCELED);
            if again && attempt < ATTEMPTS {
                timed = false;
                continue;
            }
            let heard = &amid.notifications;
            self.to_client.own(|own| own.extend_from_slice(heard));
            return Ok(answer);
        }
        Ok(Err(ExchangeError::Lost(std::io::ErrorKind::TimedOut.into())))
    }

    /// Parameters to ask for by name: the client's own, and those that only functions know.
    fn names(&mut self) -> Vec<String> {
        let client = self.engine.settings().names().filter(|name| !is_who(name)).map(str::to_owned);
        let blocks = self.engine.names_to_ask().iter().cloned();
        let mut names: Vec<String> = client.chain(blocks).collect();
        names.extend(self.knowledge.load().settings().iter().map(|name| name.to_string()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What rows mean; `None` when they are no answer.
    fn understood(&self, relay: &mut Relay, rows: &Rows) -> Option<Found> {
        let mut found = Found::default();
        let mut whole = false;
        for row in rows {
            match row.as_slice() {
                [Some(kind), Some(name), Some(value)] if kind == "s" => self.setting(&mut found, name, value),
                [Some(kind), Some(reason), _] if kind == "p" => {
                    let all = PinReason::ALL.iter();
                    found.state.extend(all.filter(|known| known.as_str() == reason));
                }
                [Some(kind), Some(name), _] if kind == "n" => {
                    if relay.backend.books.prepared.own(name.as_bytes()).is_none() {
                        found.state.push(PinReason::SqlPrepare);
                    }
                }
                [Some(kind), Some(count), _] if kind == "c" => {
                    if count == "0" {
                        // DEALLOCATE ALL.
                        relay.backend.books.prepared.clear();
                    }
                }
                [Some(kind), ..] if kind == "." => whole = true,
                [Some(kind), _, None] if kind == "s" => {}
                _ => return None,
            }
        }
        found.state.dedup();
        whole.then_some(found)
    }

    fn setting(&self, found: &mut Found, name: &str, value: &str) {
        let lower = name.to_ascii_lowercase();
        let known = self.engine.settings().get(&lower);
        let nothing = match lower.as_str() {
            "role" => value == "none",
            "session_authorization" => value == &*self.identity.user,
            // Of users' own, set once and reset.
            _ if lower.contains('.') => value.is_empty(),
            // Set to what it is: nobody follows that (Rails does so at each connect), and the server calls it set.
            "standard_conforming_strings" => (value == "on") == self.parse.standard_conforming_strings,
            _ => false,
        };
        if (known.is_none() && nothing) || matches!(known, Some(Setting::Value(same)) if same == value) {
            return;
        }
        let decides = DECIDING.contains(&lower.as_str()) || lower.starts_with("pgweir.");
        if !value.is_ascii() || (known.is_none() && decides) {
            // It is not known to mean the same elsewhere.
            if !found.state.contains(&PinReason::SessionSetting) {
                found.state.push(PinReason::SessionSetting);
            }
            return;
        }
        found.values.retain(|(known, _)| *known != lower);
        found.values.push((lower, value.to_owned()));
    }

    /// The backend does not tell: the client goes on without it, unless it has something there.
    fn not_told(&mut self, relay: &Relay, error: ExchangeError) -> Result<(), End> {
        self.count(Told::NoAnswer);
        let held = self.engine.pin().is_some();
        tracing::debug!(node = %relay.backend.node, error = %error, "backend closed: what is on it is not known");
        self.engine.give_up_asking();
        match error {
            ExchangeError::Lost(error) if held => Err(End::NodeLost(error)),
            ExchangeError::Server(error) if held => Err(End::refused(error.into_fatal())),
            _ => Ok(()),
        }
    }

    /// `session_state: reject`, found too late to refuse the statement: it is dropped, and the client is told.
    async fn drop_state(&mut self, relay: &mut Relay, reason: PinReason) -> Result<(), End> {
        let dropped = reset(&mut relay.backend).await;
        self.engine.forget_unseen();
        if let Err(error) = dropped {
            return self.not_told(relay, error);
        }
        let notice = PgError::notice("what a statement has left in the session is dropped")
            .with_detail(format!("session_state is reject, and it cannot be moved: {}.", reason.as_str()));
        self.to_client.own(|own| write_notice(own, &notice));
        Ok(())
    }
}

/// Who the session is, is asked for in any case.
fn is_who(name: &str) -> bool {
    matches!(name, "role" | "session_authorization")
}

fn question(names: &[String], timed: bool) -> String {
    let list: Vec<String> = names.iter().map(|name| Literal(name).to_string()).collect();
    let except = " AND s.name OPERATOR(pg_catalog.<>) 'statement_timeout'";
    let asked = list.iter().filter(|name| timed || *name != "E'statement_timeout'").cloned();
    let question = QUESTION
        .replace("{timeout}", if timed { "" } else { except })
        .replace("{names}", &asked.collect::<Vec<_>>().join(","));
    if timed { question } else { format!("{UNTIMED}{question}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_asked_for_once() {
        let names = ["app.x".to_owned(), "statement_timeout".to_owned()];
        let (timed, untimed) = (question(&names, true), question(&names, false));
        assert!(timed.starts_with("SELECT ") && timed.contains("ARRAY[E'app.x',E'statement_timeout']"));
        assert!(untimed.starts_with(UNTIMED) && untimed.contains("ARRAY[E'app.x']"));
        assert!(untimed.contains("<>) 'statement_timeout'"));
    }
}
