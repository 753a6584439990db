//! A session in the admin database: no node behind it, every statement is the console's.

use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use protocol::console::{Caller, Console, Context, LocalServer, Next, Status};
use protocol::error::{PgError, write_error};
use protocol::frame::{HEADER_LEN, frontend_header};
use protocol::sqlstate::SqlState;
use protocol::write::{WriteError, backend_key_data, parameter_status, ready_for_query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::login::LoggedIn;
use crate::registry::{ClientState, Flag, Registered};
use crate::shared::Worker;
use crate::stream::Stream;

/// The longest message that the console takes (bytes).
const MESSAGE_LIMIT: usize = 1024 * 1024;
/// How long a client may take to take its last message.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// What drivers look for when they connect. The version is one that they know, and ours behind it.
const PARAMETERS: [(&str, &str); 9] = [
    ("server_version", concat!("13.0 (pgweir ", env!("CARGO_PKG_VERSION"), ")")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
    ("is_superuser", "off"),
];

/// Serves the console to a client that may use it; gives why it ended.
pub(crate) async fn run(worker: &Worker, registered: &Registered, logged_in: LoggedIn) -> &'static str {
    let config = worker.shared.deps.config.load();
    let caller = Caller {
        admin: config.admin_users.contains(&logged_in.user),
        stats: config.stats_users.contains(&logged_in.user),
        application_name: logged_in.application_name,
        user: logged_in.user,
        database: logged_in.database,
        in_admin_database: true,
        session: registered.entry.id,
    };
    let mut session = ConsoleSession {
        console: &*worker.shared.deps.console,
        registered,
        caller,
        stream: logged_in.stream,
        local: LocalServer::new(),
        read: logged_in.leftover,
        out: logged_in.due,
    };
    let why = match session.greet() {
        Ok(()) => session.serve().await,
        Err(_) => "greeting",
    };
    // A client that takes nothing is left behind.
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, session.flush()).await;
    why
}

struct ConsoleSession<'a> {
    console: &'a dyn Console,
    registered: &'a Registered,
    caller: Caller,
    stream: Stream,
    local: LocalServer,
    read: BytesMut,
    out: BytesMut,
}

impl ConsoleSession<'_> {
    fn greet(&mut self) -> Result<(), WriteError> {
        for (name, value) in PARAMETERS {
            parameter_status(&mut self.out, name, value)?;
        }
        backend_key_data(&mut self.out, self.registered.entry.id, self.registered.entry.secret.bytes())?;
        ready_for_query(&mut self.out, b'I');
        Ok(())
    }

    async fn serve(&mut self) -> &'static str {
        loop {
            if self.flush().await.is_err() {
                return "client_lost";
            }
            self.registered.entry.set_state(ClientState::Idle);
            let (tag, body) = match self.message().await {
                Ok(message) => message,
                Err(why) => return why,
            };
            self.registered.entry.set_state(ClientState::Active);
            if !self.answer(tag, &body).await {
                return "terminated";
            }
        }
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        self.stream.write_all_buf(&mut self.out).await?;
        self.stream.flush().await
    }

    /// The next message: its tag and what follows the length.
    async fn message(&mut self) -> Result<(u8, BytesMut), &'static str> {
        loop {
            match frontend_header(&self.read) {
                Ok(Some(header)) if header.len <= MESSAGE_LIMIT => {
                    if self.read.len() >= header.len {
                        let mut message = self.read.split_to(header.len);
                        message.advance(HEADER_LEN);
                        return Ok((header.tag, message));
                    }
                }
                Ok(None) => {}
                _ => {
                    let error = PgError::fatal(SqlState::PROTOCOL_VIOLATION, "invalid message");
                    write_error(&mut self.out, &error);
                    return Err("protocol_violation");
                }
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), &'static str> {
        let entry = &self.registered.entry;
        let reading = self.stream.read_buf(&mut self.read);
        let mut reading = std::pin::pin!(reading);
        let read = std::future::poll_fn(|cx| {
            if entry.is_raised(Flag::Kill, cx) || entry.has(Flag::Drain) {
                return Poll::Ready(None);
            }
            reading.as_mut().poll(cx).map(Some)
        });
        match read.await {
            Some(Ok(1..)) => Ok(()),
            Some(Ok(0)) => Err("client_left"),
            Some(Err(_)) => Err("client_lost"),
            None => {
                let text = "terminating connection due to administrator command";
                write_error(&mut self.out, &PgError::fatal(SqlState::ADMIN_SHUTDOWN, text));
                Err("drained")
            }
        }
    }

    /// False when the client says goodbye.
    async fn answer(&mut self, tag: u8, body: &[u8]) -> bool {
        let context = Context { console: self.console, caller: &self.caller, status: Status::Own };
        let mut next = self.local.feed(&context, tag, body, &mut self.out);
        loop {
            next = match next {
                Next::Wait => return true,
                Next::Close => return false,
                Next::Run(sql) => {
                    let result = self.console.run(&self.caller, &sql).await;
                    self.local.answer(&context, result, &mut self.out)
                }
            };
        }
    }
}
