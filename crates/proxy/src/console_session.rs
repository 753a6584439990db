//! A session in the admin database: no node behind it, every statement is the console's.

use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use protocol::console::{Answer, Caller, Console, Context, LocalServer, Next, Pending, Status};
use protocol::error::{PgError, write_error, write_notice};
use protocol::frame::{HEADER_LEN, frontend_header};
use protocol::sqlstate::SqlState;
use protocol::write::{WriteError, backend_key_data, parameter_status, ready_for_query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::login::LoggedIn;
use crate::registry::{ClientEntry, ClientState, Flag, Registered};
use crate::shared::Worker;
use crate::stream::Stream;

/// The longest message that the console takes (bytes).
const MESSAGE_LIMIT: usize = 1024 * 1024;
/// How often who waits is told how far a statement is.
pub(crate) const TELL_EVERY: Duration = Duration::from_secs(1);
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
                write_error(&mut self.out, &goodbye());
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
                Next::Run(sql) => match self.run(&sql).await {
                    Ok(result) => {
                        let context =
                            Context { console: self.console, caller: &self.caller, status: Status::Own };
                        self.local.answer(&context, result, &mut self.out)
                    }
                    Err(Left) => return false,
                },
            };
        }
    }

    /// Runs a statement to its end, or until it is cancelled; tells meanwhile how far it is.
    async fn run(&mut self, sql: &str) -> Result<Result<Answer, PgError>, Left> {
        let entry = &self.registered.entry;
        entry.lower(Flag::Cancel);
        let mut running = self.console.run(&self.caller, sql);
        let mut told = String::new();
        loop {
            let step = next_step(entry, &mut running, &mut self.stream, &mut self.read);
            match tokio::time::timeout(TELL_EVERY, step).await {
                Ok(Step::Answer(answer)) => return Ok(answer),
                Ok(Step::Flag(Flag::Cancel)) => return Ok(Err(cancelled())),
                Ok(Step::Flag(_)) => {
                    write_error(&mut self.out, &goodbye());
                    return Err(Left);
                }
                Ok(Step::Left) => return Err(Left),
                Err(_) => {}
            }
            let Some(line) = self.console.progress(&self.caller, sql).filter(|line| *line != told) else {
                continue;
            };
            write_notice(&mut self.out, &PgError::notice(line.as_str()));
            told = line;
            self.stream.write_all_buf(&mut self.out).await.map_err(|_| Left)?;
            self.stream.flush().await.map_err(|_| Left)?;
        }
    }
}

/// The session is over in the middle of a statement.
struct Left;

/// What ends the wait for a statement.
enum Step {
    /// Its answer.
    Answer(Result<Answer, PgError>),
    /// What the session was asked for first. What the statement has begun goes on without it.
    Flag(Flag),
    /// The client is gone.
    Left,
}

/// Reads what the client sends meanwhile, as much as a message may be long; ends when it is gone.
async fn ahead(stream: &mut Stream, read: &mut BytesMut) {
    while read.len() < MESSAGE_LIMIT {
        if !matches!(stream.read_buf(read).await, Ok(1..)) {
            return;
        }
    }
    std::future::pending().await
}

async fn next_step(
    entry: &ClientEntry,
    running: &mut Pending<'_>,
    stream: &mut Stream,
    read: &mut BytesMut,
) -> Step {
    let mut gone = std::pin::pin!(ahead(stream, read));
    std::future::poll_fn(|cx| {
        // The answer goes first: who asks for a shutdown hears that it has begun.
        if let Poll::Ready(answer) = running.as_mut().poll(cx) {
            return Poll::Ready(Step::Answer(answer));
        }
        let asked = [Flag::Kill, Flag::Drain, Flag::Cancel];
        if let Some(flag) = asked.into_iter().find(|flag| entry.is_raised(*flag, cx)) {
            return Poll::Ready(Step::Flag(flag));
        }
        gone.as_mut().poll(cx).map(|()| Step::Left)
    })
    .await
}

/// For whoever does not wait any longer.
pub(crate) fn cancelled() -> PgError {
    PgError::error(SqlState::QUERY_CANCELED, "canceling statement due to user request")
        .with_detail("What it has begun goes on: SHOW STATE and SHOW NODES tell how far it is.")
}

fn goodbye() -> PgError {
    PgError::fatal(SqlState::ADMIN_SHUTDOWN, "terminating connection due to administrator command")
}
