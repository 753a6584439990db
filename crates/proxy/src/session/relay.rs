//! The data path: client and backend joined until the backend is free.
//!
//! Each direction reads once, looks for message borders in place, and writes spans of what it read. A
//! direction does not read while its last write is pending, so a slow reader slows the sender, at the
//! cost of one buffer.

mod leave;
mod look;
mod wait;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cluster::Observation;
use protocol::frame::HEADER_LEN;
use protocol::message::TxStatus;
use router::{Reason, Target};

use super::acquire::{AHEAD_LIMIT, Interrupt};
use super::again::Losses;
use super::counting::{Counting, Talk, Whose};
use super::lazy::LazyTransaction;
use super::refusal::Refusal;
use super::unit::says_goodbye;
use super::{End, Means, Session, with_env};
use crate::backend::Backend;
use crate::engine::{ClientOuts, ClientStep, Left, ServerStep, Unit};
use crate::registry::Flag;

/// How long a statement goes on for a client whose stream has ended: it may have closed only its half.
const GRACE: Duration = Duration::from_secs(1);

/// How far the relay of one lease is.
pub(super) struct Relay {
    backend: Box<Backend>,
    watch: Counting,
    /// Bytes that must be there before the engine can go on, by direction.
    client_need: usize,
    server_need: usize,
    /// What the client sent next must wait for the backend's answers.
    held: bool,
    /// The client has said goodbye, or its stream has ended.
    leaving: Option<Leaving>,
    /// The message at the front of the client's buffer waits until more is known of what it names.
    pub(super) doubt: Option<super::doubt::Wait>,
    /// The message at the front of the client's buffer is for us to answer.
    local: bool,
    /// What is ours in front of it has not been answered.
    sets_up: bool,
    /// The unit comes once more.
    anew: bool,
    /// It began with an explicit transaction.
    in_transaction: bool,
    deadline: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
    /// It was taken for a read whose answer, which has not begun yet, tells how fast the node is.
    timed: bool,
    on_standby: bool,
    /// The transaction that it began with, as long as that may go on elsewhere.
    early: Option<Box<LazyTransaction>>,
}

impl Relay {
    /// The unit that the backend was taken for has been looked at.
    fn has_begun(&self) -> bool {
        self.client_need > 0 || self.held
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Terminated,
    EndOfStream,
}

impl Session {
    /// Routes a unit, takes a backend for it, and relays until the backend is free.
    pub(super) async fn forward(&mut self, unit: &Unit) -> Result<(), End> {
        let mut losses = Losses::default();
        self.first_try();
        loop {
            let (target, reason) = self.route(unit);
            let backend = match self.acquire_except(target, losses.nodes()).await {
                Ok(backend) => backend,
                Err(Interrupt::End(end)) => return Err(end),
                Err(Interrupt::Refused(refusal)) => {
                    self.work = None;
                    let lost = (!matches!(refusal, Refusal::Cancelled)).then_some(losses);
                    if let Some(end) = lost.and_then(|losses| self.give_up(losses)) {
                        return Err(end);
                    }
                    self.refuse_for(unit, &refusal);
                    return self.flush().await;
                }
            };
            let node = backend.node;
            let mut relay = self.begin_relay(backend, unit, (target, reason));
            let relayed = self.relay(&mut relay).await;
            let staying = relay.leaving.is_none();
            self.follow(&relay, &relayed);
            // Not the whole relay: what is held over a wait makes every session larger.
            let Relay { backend, early, watch, .. } = relay;
            self.running = Some(watch.into_running());
            let left = match self.engine.take_left().filter(|_| relayed.is_ok()) {
                Some(Left::Open) => early.map(|begun| Box::new(begun.moved())),
                Some(Left::Failed) => Some(Box::new(LazyTransaction::failed())),
                None => None,
            };
            match self.end_relay(backend, relayed).await {
                Ok(()) => {
                    self.lazy = left.map_or_else(Default::default, |left| *left);
                    return Ok(());
                }
                Err(end) if staying && self.is_goodbye() && !Box::pin(self.goes_down(node)).await => {
                    return Err(end);
                }
                Err(end) if staying => {
                    self.take_back(target, node, end, &mut losses)?;
                    self.clock = Instant::now();
                }
                ended => return ended,
            }
        }
    }

    async fn relay(&mut self, relay: &mut Relay) -> Result<(), End> {
        loop {
            std::future::poll_fn(|cx| self.poll_relay(relay, cx)).await?;
            if std::mem::take(&mut relay.local) {
                Box::pin(self.answer_in_relay()).await?;
                continue;
            }
            if !self.asks() {
                return Ok(());
            }
            Box::pin(self.ask_what_is_there(relay)).await?;
            if self.engine.is_free() || self.engine.is_in_doubt() {
                return Ok(());
            }
        }
    }

    fn begin_relay(&mut self, backend: Box<Backend>, unit: &Unit, route: (Target, Reason)) -> Relay {
        let node = self.topology.load().node(backend.node);
        let on_standby = node.is_none_or(|node| node.role != cluster::Role::Primary);
        let epoch = self.topology.load().epoch;
        let in_transaction = self.lazy.is_open() || unit.verdict.tx != router::TxControl::None;
        // Who came by read_only_port wants a standby, with all that it does.
        let guarded = on_standby && !self.is_read_only();
        self.engine.bind(guarded, unit, self.lazy.statements().to_vec());
        let state = self.session_state();
        self.engine.set_session_state(state);
        if guarded && self.consistency() == config::Consistency::Global {
            self.engine.keep_to_unit();
        }
        if self.is_routed_to_standby() {
            self.engine.believe();
        }
        self.arm(unit);
        let early = guarded && route.1 == Reason::TransactionLoadBalance;
        if early {
            self.engine.begin_early();
        }
        let leaves = early || (guarded && self.begins_read_only(unit));
        if leaves && !early {
            self.engine.begin_read_only();
        }
        let begun = std::mem::take(&mut self.lazy);
        if self.config.get().log_statement_routes {
            self.log_route(backend.node, route.1, unit);
        }
        let read_only = (!on_standby).then_some(Observation::ReadOnly { node: backend.node, epoch });
        let talk = Talk::of(self.config.get());
        let running = self.running.take();
        let whose = || Whose {
            client: Arc::clone(&self.client.entry),
            worker: Arc::clone(&self.worker),
            catalog: Arc::clone(&self.catalog),
            tally: Arc::clone(&self.tally),
            habits: Arc::clone(&self.habits),
        };
        let entry = Arc::clone(&backend.entry);
        let watch = Counting::new(entry, route, (talk, read_only), (running, whose), self.clock);
        Relay {
            backend,
            watch,
            client_need: 0,
            server_need: HEADER_LEN,
            held: false,
            leaving: None,
            doubt: None,
            local: false,
            sets_up: false,
            anew: false,
            in_transaction,
            deadline: None,
            timed: self.times(unit),
            on_standby,
            early: leaves.then(|| Box::new(begun)),
        }
    }

    /// What was written and read binds what the session, or everybody, reads next.
    fn follow(&mut self, relay: &Relay, relayed: &Result<(), End>) {
        let wrote = relay.watch.has_written();
        if relayed.is_err() {
            if wrote {
                self.writes_in_doubt();
            }
            return;
        }
        if wrote {
            self.has_written();
            self.wrote.note(relay.in_transaction);
        }
        if relay.watch.has_read() {
            self.has_read(relay.backend.node, relay.on_standby);
        }
    }

    async fn end_relay(&mut self, backend: Box<Backend>, relayed: Result<(), End>) -> Result<(), End> {
        self.client.entry.set_pin(None);
        self.client.entry.set_sets_up(false);
        self.client.entry.set_statements(self.engine.statements().len());
        let Err(end) = relayed else {
            self.disarm();
            self.skip_to_sync |= self.engine.take_failed_move();
            self.give_back(backend).await;
            return Ok(());
        };
        let free = matches!(end, End::Terminated | End::ClientLeft | End::Outdated);
        if free && self.to_server.is_empty() && self.engine.is_free() {
            self.clock = Instant::now();
            Box::pin(self.give_back(backend)).await;
            return Err(end);
        }
        self.to_server.clear();
        let silent = !self.engine.saw_fatal() || self.engine.was_shut_down();
        if matches!(end, End::NodeLost(_)) && silent {
            let epoch = self.topology.load().epoch;
            self.worker.shared.observe(Observation::BackendLost { node: backend.node, epoch });
        }
        self.abandon(backend, &end);
        Err(end)
    }

    fn poll_relay(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut answered = false;
        loop {
            let asked = self.client.entry.flags();
            if let Some(end) = self.asked_to_end(relay) {
                return Poll::Ready(Err(end));
            }
            self.yield_if_asked();
            // The server first: what it has answered may be all that there is to do.
            let begun = relay.has_begun() || relay.leaving.is_some();
            let mut moved =
                begun && self.poll_server(relay, cx).map_err(|end| self.as_goodbye(relay, end))?;
            answered |= moved;
            if self.is_done(relay) {
                self.clock = if answered { relay.watch.last_answer() } else { Instant::now() };
                let outdated = self.is_outdated();
                return Poll::Ready(if outdated { Err(End::Outdated) } else { Ok(()) });
            }
            moved |= self.poll_client(relay, cx)?;
            if relay.local {
                return Poll::Ready(Ok(()));
            }
            if let Some(end) = self.left(relay, cx) {
                return Poll::Ready(Err(end));
            }
            if !moved {
                if self.is_done(relay) || self.client.entry.listen(cx) != asked {
                    continue;
                }
                if let Some(end) = self.overdue_in_relay(relay, cx) {
                    return Poll::Ready(Err(end));
                }
                self.pause();
                return Poll::Pending;
            }
        }
    }

    /// The backend is free, and everything that the client has sent for it is there.
    fn is_done(&self, relay: &Relay) -> bool {
        let begun = relay.has_begun() && relay.leaving.is_none();
        begun && (self.engine.is_free() || self.asks()) && self.to_server.is_empty()
    }

    fn asked_to_end(&mut self, relay: &Relay) -> Option<End> {
        if self.client.entry.has(Flag::Kill) {
            return Some(End::Killed);
        }
        if self.client.entry.has(Flag::Fence) {
            self.client.entry.lower(Flag::Fence);
            let lease = self.client.entry.lease();
            if lease.is_some_and(|lease| lease.is_fenced(self.topology.load())) {
                return Some(End::Fenced { node: relay.backend.node, busy: self.engine.is_waiting() });
            }
        }
        let at_border =
            self.engine.is_settled() && self.engine.status() == TxStatus::Idle && relay.has_begun();
        (at_border && self.from_client.is_empty() && self.client.entry.has(Flag::Drain))
            .then_some(End::Drained)
    }

    /// Server to client: one flush, then one look at what is there, then one read.
    fn poll_server(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Result<bool, End> {
        let kept_back = self.is_outdated() && relay.leaving.is_none();
        if !self.to_client.is_empty() && !kept_back {
            if relay.watch.has_written() {
                self.may_have_written();
            }
            if self.is_goodbye() {
                return Err(End::NodeLost(std::io::ErrorKind::ConnectionAborted.into()));
            }
            self.disarm();
            match self.poll_flush_client(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(())) => {}
                // It has left; what it asked for is still carried out.
                Poll::Ready(Err(_)) if relay.leaving == Some(Leaving::Terminated) => self.to_client.clear(),
                Poll::Ready(Err(error)) => return Err(End::ClientGone(error)),
            }
        }
        if self.from_server.filled().len() < relay.server_need && !self.poll_read_server(relay, cx)? {
            return Ok(false);
        }
        let backend = &mut relay.backend;
        let (buf, out) = (&mut self.from_server, &mut self.to_client);
        let step = self.engine.server(&relay.watch, &mut backend.books, buf, out)?;
        if relay.sets_up && !self.engine.sets_up() {
            relay.sets_up = false;
            self.client.entry.set_sets_up(false);
        }
        match step {
            ServerStep::More(need) => relay.server_need = need,
            ServerStep::Settled => {
                relay.server_need = HEADER_LEN;
                if self.engine.status() == TxStatus::Idle && relay.watch.take_written() {
                    self.has_written();
                    self.wrote.note(relay.in_transaction);
                }
            }
            ServerStep::Anew => {
                (relay.anew, relay.held, relay.client_need, relay.server_need) = (true, false, 0, HEADER_LEN);
            }
            ServerStep::SetupFailed(error) => return Err(End::refused(error.into_fatal())),
        }
        Ok(true)
    }

    fn poll_read_server(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Result<bool, End> {
        let stream = &mut relay.backend.stream;
        if stream.poll_read_ready(cx).map_err(End::NodeLost)?.is_pending() {
            return Ok(false);
        }
        self.worker.buffers.lend(&mut self.from_server);
        self.from_server.make_room_to_read(relay.server_need);
        match stream.poll_read_into(cx, self.from_server.spare()) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(End::NodeLost(std::io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(count)) => {
                self.from_server.advance(count);
                let waited = std::mem::take(&mut relay.timed).then(|| relay.watch.waited()).flatten();
                if let (Some(waited), Some(work)) = (waited, &self.work) {
                    work.node().answered(waited);
                }
                if let Some(node) = relay.watch.node() {
                    node.received_bytes.inc_by(count as u64);
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(End::NodeLost(error)),
        }
    }

    /// Client to server: one flush, then what is there as far as it may go, then one read.
    fn poll_client(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Result<bool, End> {
        self.engine.end_guarded(&mut self.to_server);
        if !self.to_server.is_empty() && !self.poll_flush_server(relay, cx)? {
            return Ok(false);
        }
        if std::mem::take(&mut relay.anew) {
            self.come_again();
            self.forward_client(relay)?;
            return Ok(true);
        }
        if relay.leaving.is_some() {
            return Ok(self.passes_goodbye(relay));
        }
        if self.must_wait(relay) {
            return self.watch_held(relay, cx);
        }
        if !self.is_past_doubt(relay, cx) {
            return self.watch_held(relay, cx);
        }
        relay.held = false;
        if self.from_client.filled().len() < relay.client_need {
            match self.poll_read_client(cx, relay.client_need) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => {
                    relay.leaving = Some(Leaving::EndOfStream);
                    return Ok(true);
                }
                Poll::Ready(Err(error)) => return Err(End::ClientGone(error)),
            }
        }
        self.forward_client(relay)?;
        Ok(true)
    }

    /// Reads ahead of what must wait: a client that is gone shows as the end of its stream, behind all it sent.
    fn watch_held(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Result<bool, End> {
        while self.from_client.filled().len() < AHEAD_LIMIT {
            let need = self.from_client.filled().len() + 1;
            match self.poll_read_client(cx, need) {
                Poll::Pending => break,
                Poll::Ready(Ok(true)) => {}
                // What it has asked for before its goodbye is carried out.
                Poll::Ready(Ok(false)) if says_goodbye(self.from_client.filled()) => break,
                Poll::Ready(Ok(false)) => {
                    relay.leaving = Some(Leaving::EndOfStream);
                    return Ok(true);
                }
                Poll::Ready(Err(error)) => return Err(End::ClientGone(error)),
            }
        }
        Ok(false)
    }

    /// Whether what the client sent next must stay where it is. A server that is to be sent COPY data waits
    /// for the client itself.
    fn must_wait(&self, relay: &Relay) -> bool {
        relay.held && self.engine.holds() && !self.engine.tracker().in_copy()
    }

    fn poll_flush_server(&mut self, relay: &mut Relay, cx: &mut Context<'_>) -> Result<bool, End> {
        match self.to_server.poll_flush(cx, &mut relay.backend.stream, &self.from_client) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(sent)) => {
                if let Some(node) = relay.watch.node() {
                    node.sent_bytes.inc_by(sent as u64);
                }
                Ok(true)
            }
            // What the server said before it hung up is worth more than the failed write.
            Poll::Ready(Err(_)) => {
                self.to_server.clear();
                Ok(false)
            }
        }
    }

    fn forward_client(&mut self, relay: &mut Relay) -> Result<(), End> {
        let (habit, state) = (self.habit(), self.session_state());
        let Self { worker, parse, config, knowledge, engine, from_client, to_server, to_client, .. } = self;
        let means = Means { worker, parse, config: config.get(), knowledge: knowledge.load(), habit, state };
        let mut outs = ClientOuts { server: to_server, client: to_client };
        let books = &mut relay.backend.books;
        let before = from_client.filled().len();
        let step = with_env(&means, &relay.watch, |env| engine.client(env, books, from_client, &mut outs))?;
        let taken = before - from_client.filled().len();
        if engine.sets_up() {
            relay.sets_up = true;
            self.client.entry.set_sets_up(true);
        }
        if taken > 0 {
            relay.watch.forwarded();
        }
        if relay.watch.has_notices() && !engine.is_inside_answer() {
            to_client.own(|own| relay.watch.put_notices(own));
        }
        self.taken(taken);
        match step {
            ClientStep::More(need) => relay.client_need = need,
            // What is there is enough to go on with.
            ClientStep::Hold => (relay.held, relay.client_need) = (true, HEADER_LEN),
            ClientStep::Local => (relay.local, relay.client_need) = (true, HEADER_LEN),
            ClientStep::Doubt => {
                relay.client_need = HEADER_LEN;
                self.begin_doubt(relay);
            }
            ClientStep::Terminate => relay.leaving = Some(Leaving::Terminated),
        }
        Ok(())
    }
}
