//! What a probe asks a node, and how the answer reads.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::{ConnectFailure, Facts, Lsn, NodeId, Upstream};
use protocol::auth::Learned;
use proxy::capacity::Capacity;
use proxy::connect::{
    ConnectError, ConnectOptions, Connected, NodeAddress, QueryError, connect, credentials, query,
};
use proxy::registry::Peer;

use crate::senders;
use crate::specs::ProbeSpec;

/// All that we want to know. PostgreSQL 10 and later; what it calls is open to every user unless somebody revoked it.
/// `pg_control_checkpoint()` lags behind a promotion, so a primary's timeline is read from the name of its WAL file,
/// which cannot be asked for in recovery.
const FACTS: &str = "SELECT recovering, \
     CASE WHEN recovering THEN (SELECT timeline_id::text FROM pg_catalog.pg_control_checkpoint()) END, \
     CASE WHEN NOT recovering \
          THEN substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
     (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
     CASE WHEN recovering THEN pg_catalog.pg_last_wal_replay_lsn() \
          ELSE pg_catalog.pg_current_wal_insert_lsn() END, \
     receiver.received_tli, \
     CASE WHEN recovering THEN pg_catalog.pg_last_wal_receive_lsn() END, \
     CASE WHEN receiver.pid IS NOT NULL THEN coalesce(receiver.status, 'streaming') END, \
     to_json(receiver) ->> 'sender_host', to_json(receiver) ->> 'sender_port', \
     (extract(epoch FROM clock_timestamp() - receiver.last_msg_receipt_time) * 1000)::int8 \
     FROM pg_catalog.pg_is_in_recovery() AS recovering \
     LEFT JOIN pg_catalog.pg_stat_wal_receiver AS receiver ON recovering";
/// How many connections it takes, and how many of them ordinary roles cannot have; the latter's second setting came with
/// PostgreSQL 16.
const CAPACITY: &str = "SELECT pg_catalog.current_setting('max_connections'), \
     pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int4 \
     + coalesce(pg_catalog.current_setting('reserved_connections', true)::pg_catalog.int4, 0)";
/// What we cannot do without.
const ROLE: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection, and no answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// An answer that is none to our question.
    #[error("the answer to the health check makes no sense")]
    Nonsense,
}

/// What a failure is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The node, or the way to it.
    Node(ConnectFailure),
    /// This machine: it has no file, port or buffer left. That says nothing about the node.
    Ours,
}

impl ProbeError {
    /// What the failure is about.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Connect(error) if error.is_ours() => Fault::Ours,
            Self::Connect(error) => Fault::Node(error.kind()),
            Self::Query(QueryError::Server(error))
                if error.code().is_some_and(|code| code.is_not_ready()) =>
            {
                Fault::Node(ConnectFailure::NotReady)
            }
            Self::Query(QueryError::Server(_) | QueryError::Write(_)) => {
                Fault::Node(ConnectFailure::Rejected)
            }
            Self::Query(QueryError::TimedOut) => Fault::Node(ConnectFailure::TimedOut),
            Self::Query(QueryError::Lost(_) | QueryError::Closed) => Fault::Node(ConnectFailure::Unreachable),
            Self::Query(QueryError::Protocol(_)) | Self::Nonsense => Fault::Node(ConnectFailure::Protocol),
        }
    }
}

/// How much a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Everything,
    /// The check user may not ask for more.
    Role,
}

/// A probe's connection.
pub(crate) struct Link {
    connected: Connected,
    scope: Scope,
    within: Duration,
    peers: Arc<[(String, u16)]>,
}

impl Link {
    /// Connects and logs in.
    pub(crate) async fn connect(spec: &ProbeSpec) -> Result<Self, ProbeError> {
        let connected = connect_as(spec, "pgweir").await?;
        let peers = Arc::clone(&spec.peers);
        Ok(Self { connected, scope: Scope::Everything, within: spec.check.timeout, peers })
    }

    /// The address at the other end; none for a Unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self.connected.stream.ends().0 {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix => None,
        }
    }

    /// Asks how many connections the node takes: this changes with a restart only, hence once for a connection.
    pub(crate) async fn capacity(&mut self) -> Result<Capacity, ProbeError> {
        let rows = query(&mut self.connected, CAPACITY, self.within).await?;
        capacity(&rows).ok_or(ProbeError::Nonsense)
    }

    /// Asks whom the node sends its WAL to: the rows of [`senders::QUESTION`].
    pub(crate) async fn senders(&mut self) -> Result<Vec<Vec<Option<String>>>, ProbeError> {
        Ok(query(&mut self.connected, senders::QUESTION, self.within).await?)
    }

    /// Asks; when the node refuses to tell everything, for what is needed.
    pub(crate) async fn ask(&mut self) -> Result<Facts, ProbeError> {
        if self.scope == Scope::Everything {
            match query(&mut self.connected, FACTS, self.within).await {
                Ok(rows) => return facts(&rows, &self.peers).ok_or(ProbeError::Nonsense),
                Err(error @ QueryError::Server(_)) if error.is_connection_usable() => {
                    tracing::info!(%error, "the check user may not see timelines and positions; roles are seen");
                    self.scope = Scope::Role;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let rows = query(&mut self.connected, ROLE, self.within).await?;
        facts(&rows, &self.peers).ok_or(ProbeError::Nonsense)
    }
}

/// Connects to the node under that application name, and logs in.
pub(crate) async fn connect_as(spec: &ProbeSpec, name: &str) -> Result<Connected, ConnectError> {
    let options = ConnectOptions {
        address: Arc::new(NodeAddress { hostname: spec.backend.hostname.clone(), port: spec.backend.port }),
        tls: Arc::clone(&spec.tls),
        user: spec.check.user.clone(),
        database: spec.check.database.clone(),
        params: vec![("application_name".to_owned(), name.to_owned())],
        credentials: credentials(spec.secret.as_ref(), &Learned::Nothing),
        connect_timeout: spec.check.timeout,
        keepalive: spec.keepalive,
    };
    connect(&options).await
}

fn capacity(rows: &[Vec<Option<String>>]) -> Option<Capacity> {
    let [row] = rows else { return None };
    let [Some(most), Some(reserved)] = row.as_slice() else { return None };
    Some(Capacity { max_connections: most.parse().ok()?, reserved: reserved.parse().ok()? })
}

/// Reads the one row: recovering, the standby's timeline, the primary's, the system identifier, the position,
/// the timeline that is received, how far, and what there is to say of the receiver.
fn facts(rows: &[Vec<Option<String>>], peers: &[(String, u16)]) -> Option<Facts> {
    let [row] = rows else { return None };
    let text = |column: usize| row.get(column)?.as_deref();
    let in_recovery = match text(0)? {
        "t" => true,
        "f" => false,
        _ => return None,
    };
    let standby = text(1).and_then(|text| text.parse().ok());
    let primary = text(2).and_then(|text| u32::from_str_radix(text, 16).ok());
    Some(Facts {
        in_recovery,
        timeline: standby.or(primary),
        system_identifier: text(3).and_then(|text| text.parse::<i64>().ok()).map(i64::cast_unsigned),
        lsn: text(4).and_then(Lsn::parse),
        follows: text(5).and_then(|text| text.parse().ok()),
        received: text(6).and_then(Lsn::parse),
        upstream: match text(7) {
            Some("streaming" | "starting" | "restarting") => Upstream::Streaming {
                from: text(8).zip(text(9)).and_then(|(host, port)| peer(peers, host, port)),
                silent_for: text(10).and_then(|text| text.parse().ok()).map(Duration::from_millis),
            },
            _ => Upstream::None,
        },
    })
}

/// The configured node at that address, by the very words of the configuration.
fn peer(peers: &[(String, u16)], host: &str, port: &str) -> Option<NodeId> {
    let port: u16 = port.parse().ok()?;
    let at = peers.iter().position(|(name, number)| name.eq_ignore_ascii_case(host) && *number == port)?;
    u16::try_from(at).ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[Option<&str>]) -> Vec<Vec<Option<String>>> {
        vec![values.iter().map(|value| value.map(str::to_owned)).collect()]
    }

    #[test]
    fn answers_are_read() {
        let peers = [("db0".to_owned(), 5432), ("db1".to_owned(), 5433)];
        let facts = |rows: &[Vec<Option<String>>]| facts(rows, &peers);
        let primary =
            row(&[Some("f"), None, Some("0000000A"), Some("7290000000000000001"), Some("1/2000"), None]);
        let expected = Facts {
            timeline: Some(10),
            system_identifier: Some(7_290_000_000_000_000_001),
            lsn: Some(Lsn(0x1_0000_2000)),
            ..Facts::default()
        };
        assert_eq!(facts(&primary), Some(expected));
        let receiver = [Some("1/3000"), Some("streaming"), Some("DB1"), Some("5433"), Some("1500")];
        let known = [Some("t"), Some("10"), None, Some("7290000000000000001"), None, Some("10")];
        let standby = row(&[&known[..], &receiver].concat());
        let silent_for = Some(Duration::from_millis(1500));
        let expected = Facts {
            in_recovery: true,
            lsn: None,
            follows: Some(10),
            received: Some(Lsn(0x1_0000_3000)),
            upstream: Upstream::Streaming { from: Some(NodeId(1)), silent_for },
            ..expected
        };
        assert_eq!(facts(&standby), Some(expected));
        let elsewhere = [Some("1/3000"), Some("streaming"), Some("other"), Some("5433"), None];
        let upstream = Upstream::Streaming { from: None, silent_for: None };
        assert_eq!(facts(&row(&[&known[..], &elsewhere].concat())), Some(Facts { upstream, ..expected }));
        let waiting = row(&[&known[..], &[Some("1/3000"), Some("waiting")]].concat());
        assert_eq!(facts(&waiting), Some(Facts { upstream: Upstream::None, ..expected }));
        let role = vec![vec![Some("t".to_owned())]];
        assert_eq!(facts(&role), Some(Facts { in_recovery: true, ..Facts::default() }));
        for bad in [vec![], vec![vec![]], row(&[Some("maybe")]), row(&[None; 6])] {
            assert_eq!(facts(&bad), None);
        }
    }

    #[test]
    fn a_shortage_here_is_not_the_nodes_fault() {
        let unreachable =
            |code: i32| ProbeError::from(ConnectError::Unreachable(std::io::Error::from_raw_os_error(code)));
        let errno = |errno: rustix::io::Errno| errno.raw_os_error();
        assert_eq!(unreachable(errno(rustix::io::Errno::MFILE)).fault(), Fault::Ours);
        let refused = unreachable(errno(rustix::io::Errno::CONNREFUSED)).fault();
        assert_eq!(refused, Fault::Node(ConnectFailure::Unreachable));
    }
}
