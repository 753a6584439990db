//! What each request of a `pcp_*` program is answered with.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use cluster::{NodeState, Role};
use protocol::console::{Answer, Caller, Console};
use protocol::table::Cell;

use super::Pcp;
use super::wire::{Frame, Refused, frame, texts};
use crate::render;
use crate::view::NodeRow;

/// Pgpool-II keeps weights in parts of it (`stdlib.h` of the GNU C library).
const RAND_MAX: f64 = 2_147_483_647.0;
const COMPLETE: &str = "CommandComplete";

impl Pcp {
    /// Carries a request out and gives its answer.
    pub(super) async fn answer(&self, request: &Frame, user: &str) -> Result<Bytes, Refused> {
        match request.kind {
            b'L' => Ok(texts(b'l', [COMPLETE, &self.view.nodes().len().to_string()])),
            b'I' => self.node_info(request),
            b'H' => self.health_check_stats(request, user).await,
            b'N' => Ok(self.process_count()),
            b'P' => self.process_info(request, user).await,
            b'B' => self.pool_status(user).await,
            b'C' => self.on_node("ATTACH NODE", request, "", b'c', user).await,
            b'D' => self.on_node("DETACH NODE", request, " FORCE", b'd', user).await,
            b'd' => self.on_node("DETACH NODE", request, "", b'd', user).await,
            b'J' | b'j' => self.on_node("PROMOTE NODE", request, "", b'd', user).await,
            b'O' => self.on_node("RECOVER NODE", request, "", b'c', user).await,
            b'T' | b't' => self.shutdown(request, user).await,
            b'Z' => {
                self.run("RELOAD", user).await?;
                Ok(texts(b'z', [COMPLETE]))
            }
            b'W' => Err(Refused::new("informing watchdog info failed", "pgweir has no watchdog")),
            b'A' => Err(Refused::new("setting a parameter failed", "use SET in the admin database")),
            other => {
                let detail = format!("unknown request \"{}\"", char::from(other).escape_default());
                Err(Refused::new("processing the request failed", detail))
            }
        }
    }

    /// Runs a command of the console.
    async fn run(&self, sql: &str, user: &str) -> Result<Answer, Refused> {
        let caller = Caller {
            user: user.to_owned(),
            database: "pgweir".to_owned(),
            application_name: "pcp".to_owned(),
            admin: true,
            stats: true,
            in_admin_database: true,
            session: 0,
        };
        self.console.run(&caller, sql).await.map_err(|error| {
            let more = [error.detail.as_deref(), error.hint.as_deref()];
            let more: Vec<&str> = more.into_iter().flatten().collect();
            Refused::new(error.message, more.join(" "))
        })
    }

    /// The rows of a SHOW as texts.
    async fn rows(&self, sql: &str, user: &str) -> Result<Vec<Vec<String>>, Refused> {
        match self.run(sql, user).await? {
            Answer::Table(table) => Ok(table.rows.iter().map(|row| row.iter().map(text).collect()).collect()),
            _ => Ok(Vec::new()),
        }
    }

    async fn on_node(
        &self,
        command: &str,
        request: &Frame,
        rest: &str,
        done: u8,
        user: &str,
    ) -> Result<Bytes, Refused> {
        let node = self.node(request)?.id;
        self.run(&format!("{command} {node}{rest}"), user).await?;
        Ok(texts(done, [COMPLETE]))
    }

    fn node(&self, request: &Frame) -> Result<NodeRow, Refused> {
        let id = request.number().and_then(|id| usize::try_from(id).ok());
        let node = id.and_then(|id| self.view.nodes().into_iter().nth(id));
        let given = request.fields().next().unwrap_or_default();
        node.ok_or_else(|| Refused::new("there is no such node", format!("invalid node ID {given}")))
    }

    /// Of one node, or with -1 of all.
    fn node_info(&self, request: &Frame) -> Result<Bytes, Refused> {
        let all = request.fields().next().is_some_and(|given| given == "-1");
        let nodes = if all { self.view.nodes() } else { vec![self.node(request)?] };
        let mut out = BytesMut::new();
        out.extend_from_slice(&texts(b'i', ["ArraySize", &nodes.len().to_string()]));
        for node in &nodes {
            out.extend_from_slice(&self.one_node(node));
        }
        out.extend_from_slice(&texts(b'i', [COMPLETE]));
        Ok(out.freeze())
    }

    /// Status and roles are numbers (Pgpool-II, `BACKEND_STATUS` and `SERVER_ROLE`), the weight is a share of
    /// `RAND_MAX`.
    fn one_node(&self, node: &NodeRow) -> Bytes {
        let status = match node.state {
            NodeState::Unused => "0",
            NodeState::Waiting => "1",
            NodeState::Up | NodeState::Draining => "2",
            NodeState::Down | NodeState::Quarantine => "3",
        };
        let role = if node.role == Role::Primary { "2" } else { "3" };
        let quarantine = if node.state == NodeState::Quarantine { "1" } else { "0" };
        let nodes = self.view.nodes();
        let share = render::shares(&nodes).get(node.id.index()).copied().unwrap_or(0.0);
        let delay = match node.delay {
            Some(crate::view::Delay::Bytes(bytes)) => bytes,
            _ => 0,
        };
        texts(
            b'i',
            [
                "NodeInfo".to_owned(),
                node.hostname.clone(),
                node.port.to_string(),
                status.to_owned(),
                quarantine.to_owned(),
                answers(node).to_owned(),
                format!("{:.6}", share * RAND_MAX),
                role.to_owned(),
                render::seen_role(node).as_str().to_owned(),
                delay.to_string(),
                node.replication_state.clone(),
                node.sync_state.clone(),
                seconds(node.changed_at),
            ],
        )
    }

    async fn health_check_stats(&self, request: &Frame, user: &str) -> Result<Bytes, Refused> {
        let id = self.node(request)?.id.index();
        let rows = self.rows("SHOW POOL_HEALTH_CHECK_STATS", user).await?;
        let row = rows.into_iter().nth(id).unwrap_or_default();
        Ok(texts(b'h', std::iter::once(COMPLETE.to_owned()).chain(row)))
    }

    /// The numbers of the sessions, which stand for processes.
    fn process_count(&self) -> Bytes {
        let clients = self.view.clients();
        let ids = clients.iter().map(|client| client.id.to_string());
        let count = clients.len().to_string();
        texts(b'n', [COMPLETE.to_owned(), count].into_iter().chain(ids))
    }

    /// Of one session, or with 0 of all connections to nodes.
    async fn process_info(&self, request: &Frame, user: &str) -> Result<Bytes, Refused> {
        let wanted = request.number().unwrap_or(0);
        if wanted != 0 && !self.view.clients().iter().any(|client| client.id == wanted) {
            return Err(Refused::new(
                "informing process info failed",
                format!("invalid process ID : {wanted}"),
            ));
        }
        let mut rows = self.rows("SHOW POOL_POOLS", user).await?;
        let id = wanted.to_string();
        rows.retain(|row| wanted == 0 || row.first() == Some(&id));
        let mut out = BytesMut::new();
        out.extend_from_slice(&texts(b'p', ["ArraySize", &rows.len().to_string()]));
        for row in rows {
            out.extend_from_slice(&texts(b'p', std::iter::once("ProcessInfo".to_owned()).chain(row)));
        }
        out.extend_from_slice(&texts(b'p', [COMPLETE]));
        Ok(out.freeze())
    }

    async fn pool_status(&self, user: &str) -> Result<Bytes, Refused> {
        let rows = self.rows("SHOW POOL_STATUS", user).await?;
        let mut out = BytesMut::new();
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX).to_be_bytes();
        out.extend_from_slice(&frame(b'b', &[b"ArraySize\0", &count]));
        for row in rows {
            out.extend_from_slice(&texts(b'b', std::iter::once("ProcessConfig".to_owned()).chain(row)));
        }
        out.extend_from_slice(&texts(b'b', [COMPLETE]));
        Ok(out.freeze())
    }

    async fn shutdown(&self, request: &Frame, user: &str) -> Result<Bytes, Refused> {
        let command = match request.body.first() {
            Some(b's') => "SHUTDOWN WAIT_FOR_SERVERS",
            Some(b'f' | b'i') => "SHUTDOWN",
            _ => {
                return Err(Refused::new(
                    "shutting down failed",
                    "the mode must be smart, fast or immediate",
                ));
            }
        };
        self.run(command, user).await?;
        Ok(texts(b't', [COMPLETE]))
    }
}

fn answers(node: &NodeRow) -> &'static str {
    match node.answers {
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    }
}

fn seconds(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Text(text) => text.clone(),
        Cell::Int(number) => number.to_string(),
        Cell::Float(number) => number.to_string(),
        Cell::Bool(truth) => if *truth { "t" } else { "f" }.to_owned(),
    }
}
