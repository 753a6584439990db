//! What clients' addresses are called, for rules that are for host names.
//!
//! As in PostgreSQL (`check_hostname()` in src/backend/libpq/hba.c) a name counts when it leads back to the address:
//! whoever runs the zone of an address could call it anything. The system's resolver blocks, so it is asked on a thread
//! for that; it is bounded in time and in number, and what it said is believed for a moment, so that a storm of logins
//! is not one of questions.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry::off_thread;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long both questions, and the wait for a turn, may take; an address whose name is not known by then has none.
const LONGEST: Duration = Duration::from_secs(10);
/// Questions at a time. One that the resolver does not answer keeps its turn until it does.
const AT_A_TIME: usize = 16;
/// How long an answer is believed.
const BELIEVED: Duration = Duration::from_secs(10);
/// The most answers kept; beyond it all are forgotten.
const MAX_ANSWERS: usize = 10_000;

/// See the module's documentation.
pub(super) struct HostNames {
    turns: std::sync::Arc<Semaphore>,
    known: Mutex<HashMap<IpAddr, (Option<String>, Instant)>>,
}

impl Default for HostNames {
    fn default() -> Self {
        Self { turns: std::sync::Arc::new(Semaphore::new(AT_A_TIME)), known: Mutex::default() }
    }
}

impl HostNames {
    /// The name of an address, where it has one that leads back.
    pub(super) async fn of(&self, address: IpAddr) -> Option<String> {
        let known = self.known.lock().get(&address).filter(|(_, asked)| asked.elapsed() < BELIEVED).cloned();
        if let Some((name, _)) = known {
            return name;
        }
        let turns = std::sync::Arc::clone(&self.turns);
        let asking = async move {
            let turn = turns.acquire_owned().await.ok()?;
            off_thread("name of an address", move || {
                // It is kept for as long as the thread is.
                let _turn = turn;
                verified_name(address)
            })
            .await
        };
        let Ok(Some(answer)) = timeout(LONGEST, asking).await else {
            tracing::warn!(%address, "the resolver does not tell the name of a client's address in time");
            return None;
        };
        let name =
            answer.inspect_err(|reason| tracing::info!(%address, reason, "no name for rules by name")).ok();
        self.remember(address, name.clone());
        name
    }

    fn remember(&self, address: IpAddr, name: Option<String>) {
        let mut known = self.known.lock();
        if known.len() >= MAX_ANSWERS {
            known.clear();
        }
        known.insert(address, (name, Instant::now()));
    }
}

/// Asks the system; blocks.
fn verified_name(address: IpAddr) -> Result<String, String> {
    let name = dns_lookup::lookup_addr(&address).map_err(|error| error.to_string())?;
    // The resolver writes the address where it knows no name.
    if name.parse::<IpAddr>().is_ok() {
        return Err("it has none".to_owned());
    }
    let found = dns_lookup::lookup_host(&name).map_err(|error| format!("{name}: {error}"))?;
    let leads_back = found.into_iter().any(|found| found.to_canonical() == address);
    if leads_back { Ok(name) } else { Err(format!("{name} is the name of other addresses")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_machine_has_a_name_and_answers_are_remembered() {
        let names = HostNames::default();
        assert_eq!(names.of("127.0.0.1".parse().unwrap()).await.as_deref(), Some("localhost"));
        names.remember("192.0.2.1".parse().unwrap(), Some("db.example.com".to_owned()));
        assert_eq!(names.of("192.0.2.1".parse().unwrap()).await.as_deref(), Some("db.example.com"));
    }
}
