//! A server of our own making, for what PostgreSQL does not do when it is asked to: odd errors, another version.
//!
//! It takes every login, answers the health check as a primary would, and everything else as it is told.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

/// What a statement is answered with, ReadyForQuery aside; `None` is an empty result.
pub type Answer = fn(&str) -> Option<Vec<u8>>;

/// A running server; its threads end with their connections, or with the test process.
#[derive(Debug)]
pub struct FakeServer {
    port: u16,
    parameters: Arc<Mutex<Vec<(String, String)>>>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

/// A message of a server: type, length, body.
#[must_use]
pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

impl FakeServer {
    /// Starts it with what PostgreSQL reports at a login.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(answer: Answer) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let told = [
            ("server_version", "15.4"),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("IntervalStyle", "postgres"),
            ("TimeZone", "UTC"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
            ("in_hot_standby", "off"),
            ("application_name", ""),
        ];
        let told = told.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let (parameters, connections) = (Arc::new(Mutex::new(told)), Arc::new(Mutex::new(Vec::new())));
        let (shared, open) = (Arc::clone(&parameters), Arc::clone(&connections));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                open.lock().extend(client.try_clone());
                let parameters = Arc::clone(&shared);
                std::thread::spawn(move || serve(client, &parameters, answer));
            }
        });
        Ok(Self { port, parameters, connections })
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reports another value from the next login on.
    pub fn set_parameter(&self, name: &str, value: &str) {
        let mut all = self.parameters.lock();
        all.retain(|(known, _)| known != name);
        all.push((name.to_owned(), value.to_owned()));
    }

    /// Hangs up on everybody, as a restart does.
    pub fn hang_up(&self) {
        for connection in self.connections.lock().drain(..) {
            let _may_be_gone = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A message without a type byte: what comes before the login.
fn first_message(client: &mut TcpStream) -> Result<Vec<u8>> {
    let mut head = [0u8; 4];
    client.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes(head) as usize - 4];
    client.read_exact(&mut body)?;
    Ok(body)
}

fn serve(mut client: TcpStream, parameters: &Mutex<Vec<(String, String)>>, answer: Answer) -> Result<()> {
    client.set_nodelay(true)?;
    let mut startup = first_message(&mut client)?;
    // A request for TLS: there is none here.
    while startup.starts_with(&80_877_103u32.to_be_bytes()) {
        client.write_all(b"N")?;
        startup = first_message(&mut client)?;
    }
    if startup.starts_with(&80_877_102u32.to_be_bytes()) {
        return Ok(());
    }
    let mut greeting = message(b'R', &[0; 4]);
    for (name, value) in parameters.lock().iter() {
        greeting.extend(message(b'S', format!("{name}\0{value}\0").as_bytes()));
    }
    greeting.extend(message(b'K', &[0, 0, 0, 7, 1, 2, 3, 4]));
    greeting.extend(message(b'Z', b"I"));
    client.write_all(&greeting)?;
    loop {
        let mut head = [0u8; 5];
        client.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes(head[1..].try_into()?) as usize - 4];
        client.read_exact(&mut body)?;
        if head[0] == b'X' {
            return Ok(());
        }
        if head[0] == b'Q' {
            let sql = String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap_or(&body)).into_owned();
            let mut reply = answered(&sql, answer);
            reply.extend(message(b'Z', b"I"));
            client.write_all(&reply)?;
        }
    }
}

fn answered(sql: &str, answer: Answer) -> Vec<u8> {
    if let Some(reply) = answer(sql) {
        return reply;
    }
    let values: &[Option<&str>] = if sql.contains("AS recovering") {
        &[Some("f"), None, Some("00000001"), Some("7290000000000000001"), Some("0/3000000"), None]
    } else if sql.contains("pg_is_in_recovery") {
        &[Some("f")]
    } else if sql.contains("'max_connections'") {
        &[Some("100"), Some("3")]
    } else {
        &[]
    };
    match values {
        [] => message(b'C', b"SELECT 0\0"),
        values => row(values),
    }
}

/// RowDescription, one DataRow of texts, CommandComplete.
#[must_use]
pub fn row(values: &[Option<&str>]) -> Vec<u8> {
    let count = u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes();
    let (mut columns, mut data) = (count.to_vec(), count.to_vec());
    for value in values {
        columns.extend(b"c\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        match value {
            None => data.extend(u32::MAX.to_be_bytes()),
            Some(text) => {
                data.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                data.extend(text.as_bytes());
            }
        }
    }
    [message(b'T', &columns), message(b'D', &data), message(b'C', b"SELECT 1\0")].concat()
}
