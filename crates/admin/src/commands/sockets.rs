//! Connections, with PgBouncer's columns.

use std::time::{Duration, SystemTime};

use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, int4, int8, text};
use crate::render;
use crate::view::{ClientRow, Endpoint, ServerRow};

pub(super) const SOCKETS: &[ColumnSpec] = &[
    text("type"),
    text("user"),
    text("database"),
    text("replication"),
    text("state"),
    text("addr"),
    int4("port"),
    text("local_addr"),
    int4("local_port"),
    text("connect_time"),
    text("request_time"),
    int4("wait"),
    int4("wait_us"),
    int4("close_needed"),
    text("ptr"),
    text("link"),
    int4("remote_pid"),
    text("tls"),
    text("application_name"),
    int4("prepared_statements"),
    int8("id"),
];

/// What a client's and a server's row have in common.
struct Socket {
    kind: &'static str,
    user: String,
    database: String,
    replication: &'static str,
    state: &'static str,
    remote: Endpoint,
    local: Endpoint,
    connected_at: SystemTime,
    request_at: SystemTime,
    wait: Duration,
    close_needed: bool,
    ptr: String,
    link: String,
    remote_pid: i32,
    tls: String,
    application_name: String,
    prepared_statements: u32,
    id: u64,
}

impl Socket {
    fn row(self) -> Vec<Cell> {
        let (wait, wait_us) = render::seconds_and_micros(self.wait);
        vec![
            Cell::from(self.kind),
            Cell::Text(self.user),
            Cell::Text(self.database),
            Cell::from(self.replication),
            Cell::from(self.state),
            render::address(self.remote),
            render::port(self.remote),
            render::address(self.local),
            render::port(self.local),
            Cell::Text(render::time_with_zone(self.connected_at)),
            Cell::Text(render::time_with_zone(self.request_at)),
            wait,
            wait_us,
            Cell::Int(i64::from(self.close_needed)),
            Cell::Text(self.ptr),
            Cell::Text(self.link),
            Cell::Int(i64::from(self.remote_pid)),
            Cell::Text(self.tls),
            Cell::Text(self.application_name),
            Cell::from(self.prepared_statements),
            render::count(self.id),
        ]
    }
}

/// PgBouncer's `ptr` and `link` hold addresses; ours hold the numbers, told apart by their letter.
fn client_ptr(session: u32) -> String {
    format!("c{session}")
}

fn server_ptr(backend: u64) -> String {
    format!("s{backend}")
}

pub(super) fn clients(scene: &Scene<'_>) -> Rows {
    scene.view.clients().into_iter().map(|client| client_socket(client).row()).collect()
}

fn client_socket(client: ClientRow) -> Socket {
    let known = |name: String, missing: &str| if name.is_empty() { missing.to_owned() } else { name };
    Socket {
        kind: "C",
        user: known(client.user, "(nouser)"),
        database: known(client.database, "(nodb)"),
        replication: client.replication,
        state: client.state.as_str(),
        remote: client.remote,
        local: client.local,
        connected_at: client.connected_at,
        request_at: client.request_at,
        wait: client.wait,
        close_needed: client.close_needed,
        ptr: client_ptr(client.id),
        link: client.backend.map(server_ptr).unwrap_or_default(),
        remote_pid: 0,
        tls: client.tls,
        application_name: client.application_name,
        prepared_statements: client.prepared_statements,
        id: u64::from(client.id),
    }
}

pub(super) fn servers(scene: &Scene<'_>) -> Rows {
    scene.view.servers().into_iter().map(|server| server_socket(server).row()).collect()
}

fn server_socket(server: ServerRow) -> Socket {
    Socket {
        kind: "S",
        user: server.user,
        database: server.database,
        replication: server.replication,
        state: server.state.as_str(),
        remote: server.remote,
        local: server.local,
        connected_at: server.connected_at,
        request_at: server.request_at,
        wait: Duration::ZERO,
        close_needed: server.close_needed,
        ptr: server_ptr(server.id),
        link: server.session.map(client_ptr).unwrap_or_default(),
        remote_pid: server.pid,
        tls: server.tls,
        application_name: server.application_name,
        prepared_statements: server.prepared_statements,
        id: server.id,
    }
}
