//! Asks one node everything that [`super::judge`] wants to know.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::Facts;
use config::Config;
use config::secrets::Secret;
use protocol::auth::Learned;
use proxy::connect::{self, ConnectError, ConnectOptions, NodeAddress, connect, credentials, query};

use crate::probe_query::{Link, connect_as};
use crate::specs::ProbeSpec;

/// So many users of pool_passwd are tried on each node.
pub(super) const MAX_LOGINS: usize = 100;

/// What the check user may do, what the server is, and how it is set up. Settings that only members of
/// `pg_read_all_settings` see are not among them.
const SETUP: &str = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN \
     ('server_version', 'wal_level', 'hot_standby', 'max_wal_senders', 'max_replication_slots', 'max_connections', \
      'superuser_reserved_connections', 'reserved_connections', 'hot_standby_feedback') \
     UNION ALL SELECT 'is_monitor', pg_catalog.pg_has_role(current_user, 'pg_monitor', 'USAGE')::text \
     UNION ALL SELECT 'now', (extract(epoch FROM pg_catalog.clock_timestamp()))::text \
     UNION ALL SELECT 'may_promote', coalesce((SELECT pg_catalog.bool_or(\
         pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc WHERE proname = 'pg_promote'), \
         false)::text";

/// How a user of pool_passwd fared.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) outcome: Outcome,
}

/// What came of trying a secret.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It logs in.
    In,
    /// A SCRAM verifier proves nothing by itself: it needs the client's part.
    Untried,
    /// It does not.
    Refused(ConnectError),
}

/// What a node has told.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Why it could not be asked as the check user.
    pub(super) failure: Option<ConnectError>,
    /// Why it did not answer what it was asked.
    pub(super) silence: Option<String>,
    pub(super) user: String,
    /// TLS version and cipher.
    pub(super) tls: Option<String>,
    pub(super) facts: Option<Facts>,
    /// Names and values, as [`SETUP`] lists them.
    pub(super) setup: Vec<(String, String)>,
    /// How far its clock is ahead of ours (seconds), and how wrong that may be.
    pub(super) clock: Option<(f64, f64)>,
    pub(super) logins: Vec<Login>,
    /// Users of pool_passwd beyond [`MAX_LOGINS`].
    pub(super) not_tried: usize,
}

impl Seen {
    /// The value of a setting.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.setup.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.setting(name)?.parse().ok()
    }
}

/// Goes to the node.
pub(super) async fn visit(config: &Config, spec: &ProbeSpec) -> Seen {
    let mut seen = Seen { user: spec.check.user.clone(), ..Seen::default() };
    match connect_as(spec, "pgweir check").await {
        Ok(mut connected) => {
            seen.tls = connected.stream.tls();
            let before = now();
            match query(&mut connected, SETUP, spec.check.timeout).await {
                Ok(rows) => take_setup(&mut seen, &rows, before),
                Err(error) => seen.silence = Some(error.to_string()),
            }
            connect::close(connected).await;
            match facts(spec).await {
                Ok(facts) => seen.facts = Some(facts),
                Err(error) => seen.silence = Some(error),
            }
        }
        // Nobody else gets there either.
        Err(error) if !has_answered(&error) => {
            seen.failure = Some(error);
            return seen;
        }
        Err(error) => seen.failure = Some(error),
    }
    let users: Vec<String> = config.secrets.users().map(str::to_owned).collect();
    seen.not_tried = users.len().saturating_sub(MAX_LOGINS);
    for user in users.into_iter().take(MAX_LOGINS) {
        let outcome = log_in(config, spec, &user).await;
        seen.logins.push(Login { user, outcome });
    }
    seen
}

/// Whether a server was there to refuse.
pub(super) fn has_answered(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Rejected(_) | ConnectError::Auth(_))
}

async fn facts(spec: &ProbeSpec) -> Result<Facts, String> {
    let mut link = Link::connect(spec).await.map_err(|error| error.to_string())?;
    link.ask().await.map_err(|error| error.to_string())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn take_setup(seen: &mut Seen, rows: &[Vec<Option<String>>], before: Duration) {
    let after = now();
    seen.setup = rows
        .iter()
        .filter_map(|row| match row.as_slice() {
            [Some(name), Some(value)] => Some((name.clone(), value.clone())),
            _ => None,
        })
        .collect();
    // It was asked somewhere between before and after.
    let round = after.saturating_sub(before).as_secs_f64();
    let there: Option<f64> = seen.setting("now").and_then(|text| text.parse().ok());
    seen.clock = there.map(|there| (there - before.as_secs_f64() - round / 2.0, round / 2.0));
}

async fn log_in(config: &Config, spec: &ProbeSpec, user: &str) -> Outcome {
    let secret = config.secrets.get(user);
    if matches!(secret, Some(Secret::ScramVerifier { .. })) {
        return Outcome::Untried;
    }
    let options = ConnectOptions {
        address: Arc::new(NodeAddress { hostname: spec.backend.hostname.clone(), port: spec.backend.port }),
        tls: Arc::clone(&spec.tls),
        user: user.to_owned(),
        database: spec.check.database.clone(),
        params: vec![("application_name".to_owned(), "pgweir check".to_owned())],
        credentials: credentials(secret, &Learned::Nothing),
        connect_timeout: spec.check.timeout,
        keepalive: spec.keepalive,
    };
    match connect(&options).await {
        Ok(connected) => {
            connect::close(connected).await;
            Outcome::In
        }
        Err(error) => Outcome::Refused(error),
    }
}
