//! One client: a task that owns the client's socket and, while it has one, the backend's.
//!
//! Between units of work it has no backend and no buffer. A unit is read ahead ([`crate::engine::scan`]),
//! routed, given a backend ([`acquire`]), and relayed until the backend is free ([`relay`]).
//!
//! Invariants: a backend leaves the task clean or is closed; every wait ends by its deadline, the
//! client's leaving, or the shutdown.

mod acquire;
mod again;
mod busy;
mod calls;
mod choose;
mod counting;
mod deadline;
mod declared;
mod doubt;
mod end;
mod explain;
mod fresh;
mod gate_wait;
mod greet;
mod held;
mod hold;
mod home;
mod lazy;
mod lazy_batch;
mod learn;
mod limits;
mod local;
mod own;
mod own_config;
mod parsed;
mod refusal;
mod relay;
mod route;
mod settle;
mod unit;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use cluster::{Freshness, NodeId, Topology};
use config::{Config, Consistency, PoolMode, SessionState};
use protocol::auth::Credentials;
use protocol::console::LocalServer;
use protocol::message::TxStatus;
use router::{Effect, ParseOptions, Verdict};
use telemetry::Reader;

pub(crate) use end::End;
pub(crate) use refusal::no_primary;

use crate::backend::Backend;
use crate::buffer::Buf;
use crate::catalog::{Database, Knowledge};
use crate::engine::{Boundary, Engine, Env, Habit, Unit, Violation, Watch};
use crate::habits::Learned;
use crate::load::Counted;
use crate::open::OpenAs;
use crate::out::Out;
use crate::pool::Pool;
use crate::registry::{ClientState, Flag, Registered};
use crate::settings::Settings;
use crate::shared::Worker;
use crate::statements::Statement;
use crate::stats::{Count, Tally};
use crate::stream::Stream;
use lazy::LazyTransaction;
use own_config::OwnConfig;

/// Who the client is, once it has logged in.
pub(crate) struct Identity {
    /// The user it logged in as.
    pub(crate) user: Arc<str>,
    /// The database it asked for.
    pub(crate) database: Arc<str>,
    /// What that database is called on the nodes.
    pub(crate) node_database: Arc<str>,
    /// How we log in to nodes for it.
    pub(crate) credentials: Credentials,
    /// What it asked for at start-up.
    pub(crate) settings: Arc<Settings>,
}

/// See the module's documentation.
pub(crate) struct Session {
    worker: Arc<Worker>,
    client: Registered,
    stream: Stream,
    identity: Identity,
    config: OwnConfig,
    topology: Reader<Topology>,
    freshness: Reader<Freshness>,
    /// The database, and what is known of it.
    catalog: Arc<Database>,
    knowledge: Reader<Knowledge>,
    /// Where the last read went; the next one stays there without statement-level balancing.
    read_node: Option<NodeId>,
    /// What its later reads may depend on.
    wrote: route::Wrote,
    history: Option<Box<fresh::History>>,
    declared: declared::Declared,
    /// The level of consistency when it was asked last.
    level: Option<Consistency>,
    mode: PoolMode,
    parse: ParseOptions,
    habits: Arc<Learned>,
    engine: Engine,
    /// Answers statements of the console; few sessions ever have one.
    local: Option<Box<LocalServer>>,
    lazy: LazyTransaction,
    /// Session pooling: backends that stay with the client between its transactions.
    #[allow(clippy::vec_box, reason = "a backend is lent and returned in its box, never moved out of it")]
    kept: Vec<Box<Backend>>,
    work: Option<Counted>,
    from_client: Buf,
    to_server: Out,
    from_server: Buf,
    to_client: Out,
    /// Messages of a refused batch are dropped up to the client's Sync.
    skip_to_sync: bool,
    again: again::Again,
    /// What the next lease counts with.
    running: Option<Box<counting::Running>>,
    deadline: deadline::Deadline,
    tally: Arc<Tally>,
    /// What time it was when it was looked last: when a unit had come, when it was answered, behind a wait.
    clock: Instant,
    /// The pools that it has had backends of, one a node: found without asking all workers' table of them.
    pools: Vec<Arc<Pool>>,
    is_greeted: bool,
    home: home::Home,
}

impl Session {
    /// A session of a client that has logged in, has sent `leftover` behind its last login message, and is to be sent
    /// `due` first.
    pub(crate) fn new(
        worker: Arc<Worker>,
        client: Registered,
        stream: Stream,
        identity: Identity,
        (leftover, due): (&[u8], &[u8]),
    ) -> Self {
        let mut to_client = Out::default();
        to_client.own(|own| own.extend_from_slice(due));
        let mut config = worker.shared.deps.config.reader();
        let mode = config.load().pool_mode(&identity.database, &identity.user);
        let topology = worker.shared.deps.topology.reader();
        let freshness = worker.shared.deps.freshness.reader();
        let catalog = worker.shared.catalogs.enter(&worker.shared, OpenAs::from(&identity));
        let application = client.entry.names().application_name;
        let habits = worker.shared.habits.of(&identity.database, &identity.user, &application);
        let home = home::Home::new(&worker);
        let mut engine = Engine::default();
        engine.set_number(client.entry.id);
        Self {
            parse: ParseOptions { standard_conforming_strings: true, ..parse_options(config.load()) },
            tally: Arc::new(Tally::new(worker.book.of(&identity.database))),
            worker,
            client,
            stream,
            identity,
            config: OwnConfig::new(config),
            topology,
            freshness,
            knowledge: catalog.reader(),
            catalog,
            read_node: None,
            wrote: route::Wrote::default(),
            history: None,
            declared: declared::Declared::default(),
            level: None,
            mode,
            habits,
            engine,
            local: None,
            lazy: LazyTransaction::default(),
            kept: Vec::new(),
            work: None,
            from_client: Buf::with(leftover),
            to_server: Out::default(),
            from_server: Buf::default(),
            to_client,
            skip_to_sync: false,
            again: again::Again::default(),
            running: None,
            deadline: deadline::Deadline::default(),
            clock: Instant::now(),
            pools: Vec::new(),
            is_greeted: false,
            home,
        }
    }

    /// What it counts.
    pub(crate) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Serves the client until it leaves or must go, or is to be served by another worker.
    pub(crate) async fn run(&mut self) -> End {
        let end = self.serve().await;
        if !matches!(end, End::Moved) {
            Box::pin(self.finish(&end)).await;
        }
        end
    }

    async fn serve(&mut self) -> End {
        if !self.is_greeted {
            if let Err(end) = Box::pin(self.greet()).await {
                return end;
            }
            self.is_greeted = true;
        }
        loop {
            self.client.entry.set_state(match self.lazy.is_open() {
                true => ClientState::InTransaction,
                false => ClientState::Idle,
            });
            let mut unit = match self.next_unit().await {
                Ok(unit) => unit,
                Err(end) => return end,
            };
            self.client.entry.lower(Flag::Cancel);
            self.clock = Instant::now();
            self.client.entry.set_request(self.clock);
            if let Err(end) = self.serve_unit(&mut unit).await {
                return end;
            }
            self.deadline.unit_done(self.lazy.is_open());
        }
    }

    async fn serve_unit(&mut self, unit: &mut Unit) -> Result<(), End> {
        let options = parse_options(self.config.get());
        self.parse =
            ParseOptions { standard_conforming_strings: self.parse.standard_conforming_strings, ..options };
        match unit.boundary {
            // Nothing was executed that a lost connection would not undo.
            Boundary::Terminate => return Err(End::Terminated),
            Boundary::Stray => {
                self.drop_front_message();
                return Ok(());
            }
            _ => {}
        }
        if unit.verdict.effect == Effect::Console {
            return Box::pin(self.answer_locally(*unit)).await;
        }
        if self.answer_lazily(unit) || self.answer_parses(unit) {
            return self.flush().await;
        }
        if self.is_in_doubt(unit) {
            *unit = Box::pin(self.without_doubt(*unit)).await?;
            self.clock = Instant::now();
        }
        self.forward(unit).await
    }

    /// Writes what is due to the client; one that takes nothing may be told to go meanwhile.
    async fn flush(&mut self) -> Result<(), End> {
        std::future::poll_fn(|cx| match self.poll_flush_client(cx) {
            Poll::Pending if self.client.entry.is_raised(Flag::Kill, cx) => Poll::Ready(Err(End::Killed)),
            flushed => flushed.map_err(End::ClientGone),
        })
        .await
    }

    fn poll_flush_client(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = ready!(self.to_client.poll_flush(cx, &mut self.stream, &self.from_server))?;
        self.count_sent(sent);
        Poll::Ready(Ok(()))
    }

    fn count_sent(&self, bytes: usize) {
        self.worker.shared.deps.metrics.client_sent_bytes.inc_by(bytes as u64);
        self.tally.add(Count::Sent, bytes as u64);
    }

    /// Reads from the client, so that `need` bytes fit. Gives false at the end of the stream.
    fn poll_read_client(&mut self, cx: &mut Context<'_>, need: usize) -> Poll<io::Result<bool>> {
        if self.stream.poll_read_ready(cx)?.is_pending() {
            self.reclaim();
            return Poll::Pending;
        }
        self.worker.buffers.lend(&mut self.from_client);
        self.from_client.make_room_to_read(need);
        let count = ready!(self.stream.poll_read_into(cx, self.from_client.spare()))?;
        self.from_client.advance(count);
        self.deadline.client_moved();
        self.worker.shared.deps.metrics.client_received_bytes.inc_by(count as u64);
        self.tally.add(Count::Received, count as u64);
        Poll::Ready(Ok(count > 0))
    }

    /// Buffers that are empty go back.
    fn reclaim(&mut self) {
        if self.to_client.is_empty() {
            self.to_client.trim();
            self.worker.buffers.reclaim(&mut self.from_server);
        }
        if self.to_server.is_empty() {
            self.to_server.trim();
            self.worker.buffers.reclaim(&mut self.from_client);
        }
    }

    /// Nothing is read or written any more: the next session has the buffers, whatever is in them.
    fn return_buffers(&mut self) {
        for buf in [&mut self.from_client, &mut self.from_server] {
            buf.consume(usize::MAX);
            self.worker.buffers.reclaim(buf);
        }
    }

    /// The transaction status to tell the client while it has no backend.
    fn status(&self) -> TxStatus {
        self.lazy.status()
    }

    /// The statement of a Parse message, classified if it is new.
    fn intern(&self, tail: &[u8], sql: &[u8], knowledge: &Knowledge) -> Arc<Statement> {
        let classify = || self.worker.classify_followed(sql, &self.parse, knowledge);
        self.worker.shared.statements.intern(tail, knowledge.generation, classify)
    }

    /// Ends a query that no server has ended.
    fn put_ready(&mut self) {
        let status = self.status();
        self.to_client.own(|own| protocol::write::ready_for_query(own, status.as_byte()));
        self.tally.add(Count::Queries, 1);
        if status == TxStatus::Idle {
            self.tally.add(Count::Transactions, 1);
            self.worker.shared.deps.metrics.transactions.inc();
        }
    }
}

fn parse_options(config: &Config) -> ParseOptions {
    ParseOptions {
        max_parsed_statement: config.max_parsed_statement,
        standard_conforming_strings: true,
        allow_sql_comments: config.allow_sql_comments,
    }
}

/// What texts are judged by.
struct Means<'a> {
    worker: &'a Worker,
    parse: &'a ParseOptions,
    config: &'a Config,
    knowledge: &'a Knowledge,
    habit: Habit,
    state: SessionState,
}

/// Runs `work` with what the engine works with.
fn with_env<T>(means: &Means<'_>, watch: &dyn Watch, work: impl FnOnce(&Env<'_>) -> T) -> T {
    let Means { worker, parse, config, knowledge, habit, state } = means;
    let classify = |sql: &[u8]| -> Verdict { worker.classify_followed(sql, parse, knowledge) };
    work(&Env {
        classify: &classify,
        generation: knowledge.generation,
        cache: &worker.shared.statements,
        schema: worker.shared.statements.schema(),
        standard_conforming: parse.standard_conforming_strings,
        max_parsed: parse.max_parsed_statement,
        max_prepared: usize::try_from(config.max_prepared_statements).unwrap_or(usize::MAX),
        habit: *habit,
        state: *state,
        watch,
    })
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a session and of what runs it; an idle client costs them for as long as it stays.
    const IDLE_LIMIT: usize = 2560;

    fn size<'a, F: 'a>(_: impl FnOnce(&'a mut Session) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_session_is_small() {
        let (session, running) = (size_of::<Session>(), size(Session::run));
        assert!(session + running <= IDLE_LIMIT, "a session of {session} bytes, run by {running}");
    }
}
