//! Who is here: every client and every backend, for SHOW, for cancel requests, and for the shutdown.

mod doing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use atomic_waker::AtomicWaker;
use cluster::{NodeId, Role};
use parking_lot::Mutex;
use protocol::startup::Replication;
use router::PinReason;

use crate::cancel::{CancelKey, CancelOnItsWay, Cancelling, Line, Secret};
use crate::fence::Lease;
pub use crate::server_entry::{NewServer, ServerEntry, ServerState};
pub use doing::{ClientState, WaitsFor};

/// Bytes of a client's last statement that are kept for SHOW.
const SHOWN_STATEMENT: usize = 256;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Tcp(std::net::SocketAddr),
    /// A Unix socket.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("local"),
        }
    }
}

/// Something that another task wants of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Flag {
    /// End at the next transaction border.
    Drain = 1,
    /// End now.
    Kill = 2,
    /// The wait for a backend was cancelled.
    Cancel = 4,
    /// Look whether the backend is one of a node that must not be used any more.
    Fence = 8,
    /// Let go of backends that are kept between transactions.
    Renew = 16,
}

/// One client.
#[derive(Debug)]
pub struct ClientEntry {
    /// Our process number for it.
    pub id: u32,
    /// The secret that goes with it in cancel requests.
    pub secret: Secret,
    /// Where it comes from.
    pub peer: Peer,
    /// Where it came in.
    pub local: Peer,
    /// When it connected.
    pub connected_at: SystemTime,
    started: Instant,
    names: Mutex<Names>,
    state: AtomicU8,
    flags: AtomicU32,
    pin: AtomicU8,
    request_at: AtomicU64,
    statements: AtomicU32,
    keeps: AtomicBool,
    sets_up: AtomicBool,
    waits_for: AtomicU32,
    statement: Mutex<Vec<u8>>,
    waker: AtomicWaker,
    cancel: Mutex<CancelState>,
    /// Few clients ever cancel anything.
    cancelling: OnceLock<Box<Cancelling>>,
}

/// What a client calls itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// How its connection is encrypted; empty when it is not.
    pub tls: String,
    /// The user it logged in as.
    pub user: Arc<str>,
    /// The database it is in.
    pub database: Arc<str>,
    /// Its application name at start-up.
    pub application_name: Arc<str>,
    /// Whether it replicates.
    pub replication: Replication,
}

#[derive(Debug, Default)]
struct CancelState {
    key: Option<Arc<CancelKey>>,
    server: Option<u64>,
    role: Role,
    on_their_way: u32,
    /// A request was sent and not seen to arrive.
    doubtful: bool,
    /// The client waits for us, not for its backend.
    runs_here: bool,
}

/// What a client leaves behind with its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbound {
    /// Nothing.
    Free,
    /// A cancel request is on its way there.
    Awaited,
    /// One may come at any time.
    Doubtful,
}

impl ClientEntry {
    fn new(id: u32, peer: Peer, local: Peer) -> Self {
        Self {
            id,
            secret: Secret::new(),
            peer,
            local,
            connected_at: SystemTime::now(),
            started: Instant::now(),
            names: Mutex::default(),
            state: AtomicU8::new(ClientState::Login as u8),
            flags: AtomicU32::new(0),
            pin: AtomicU8::new(0),
            request_at: AtomicU64::new(0),
            statements: AtomicU32::new(0),
            keeps: AtomicBool::new(false),
            sets_up: AtomicBool::new(false),
            waits_for: AtomicU32::new(0),
            statement: Mutex::default(),
            waker: AtomicWaker::new(),
            cancel: Mutex::default(),
            cancelling: OnceLock::new(),
        }
    }

    /// Its names.
    #[must_use]
    pub fn names(&self) -> Names {
        self.names.lock().clone()
    }

    /// It has not logged in yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.names.lock().user.is_empty()
    }

    /// It has logged in.
    pub fn set_names(&self, names: Names) {
        *self.names.lock() = names;
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> ClientState {
        match self.state.load(Ordering::Relaxed) {
            0 => ClientState::Login,
            1 => ClientState::Idle,
            2 => ClientState::Active,
            3 => ClientState::Waiting,
            4 => ClientState::InTransaction,
            _ => ClientState::Held,
        }
    }

    /// It does something else now.
    pub fn set_state(&self, state: ClientState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// It waits for that.
    pub fn set_waiting(&self, what: WaitsFor) {
        let code = match what {
            WaitsFor::Resume => 0,
            WaitsFor::Node => 3 << 16,
            WaitsFor::Backend(node) => 1 << 16 | u32::from(node.0),
            WaitsFor::Turn(node) => 2 << 16 | u32::from(node.0),
        };
        self.waits_for.store(code, Ordering::Relaxed);
        self.set_state(ClientState::Waiting);
    }

    /// What it waits for, while it does.
    #[must_use]
    pub fn waits_for(&self) -> Option<WaitsFor> {
        let code = self.waits_for.load(Ordering::Relaxed);
        let node = NodeId(u16::try_from(code & 0xffff).unwrap_or_default());
        (self.state() == ClientState::Waiting).then_some(match code >> 16 {
            0 => WaitsFor::Resume,
            1 => WaitsFor::Backend(node),
            2 => WaitsFor::Turn(node),
            _ => WaitsFor::Node,
        })
    }

    /// What it asked for last, cut.
    #[must_use]
    pub fn statement(&self) -> String {
        String::from_utf8_lossy(&self.statement.lock()).into_owned()
    }

    /// It asks for that.
    pub fn set_statement(&self, sql: &[u8]) {
        let mut statement = self.statement.lock();
        statement.clear();
        statement.extend_from_slice(sql.get(..SHOWN_STATEMENT).unwrap_or(sql));
    }

    /// It begins something.
    pub fn set_request(&self, now: Instant) {
        let nanos = now.duration_since(self.started).as_nanos();
        self.request_at.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When it last began something.
    #[must_use]
    pub fn request_at(&self) -> SystemTime {
        self.connected_at + std::time::Duration::from_nanos(self.request_at.load(Ordering::Relaxed))
    }

    /// What holds it to its backend.
    #[must_use]
    pub fn pin(&self) -> Option<PinReason> {
        let position = usize::from(self.pin.load(Ordering::Relaxed)).checked_sub(1)?;
        PinReason::ALL.get(position).copied()
    }

    /// What holds it to its backend from now on.
    pub fn set_pin(&self, pin: Option<PinReason>) {
        let position = pin.and_then(|pin| PinReason::ALL.iter().position(|known| *known == pin));
        let code = position.and_then(|position| u8::try_from(position + 1).ok()).unwrap_or(0);
        self.pin.store(code, Ordering::Relaxed);
    }

    /// How many prepared statements it holds.
    #[must_use]
    pub fn statements(&self) -> u32 {
        self.statements.load(Ordering::Relaxed)
    }

    /// It holds so many prepared statements.
    pub fn set_statements(&self, count: usize) {
        self.statements.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Whether it keeps backends between its transactions.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Whether it keeps backends from now on.
    pub fn set_keeps(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::Relaxed);
    }

    /// Asks something of the session's task, and wakes it.
    pub fn raise(&self, flag: Flag) {
        self.flags.fetch_or(flag as u32, Ordering::Release);
        self.waker.wake();
    }

    /// Takes a request back.
    pub fn lower(&self, flag: Flag) {
        // Nothing was asked, as a rule, and a look is cheaper.
        if self.flags.load(Ordering::Relaxed) & flag as u32 != 0 {
            self.flags.fetch_and(!(flag as u32), Ordering::Relaxed);
        }
    }

    /// Whether that was asked. The task that calls this is woken by [`ClientEntry::raise`].
    pub fn is_raised(&self, flag: Flag, cx: &std::task::Context<'_>) -> bool {
        self.waker.register(cx.waker());
        self.has(flag)
    }

    /// What was asked, one bit a [`Flag`].
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    /// The same; the task that calls this is woken by [`ClientEntry::raise`].
    pub(crate) fn listen(&self, cx: &std::task::Context<'_>) -> u32 {
        self.waker.register(cx.waker());
        self.flags()
    }

    /// Whether that was asked.
    #[must_use]
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Acquire) & flag as u32 != 0
    }

    /// It got the backend `server`, of a node of that role.
    pub fn bind(&self, key: &Arc<CancelKey>, server: u64, role: Role) {
        let mut cancel = self.cancel.lock();
        cancel.key = Some(Arc::clone(key));
        cancel.server = Some(server);
        cancel.role = role;
        cancel.doubtful = false;
        cancel.runs_here = false;
    }

    /// What its backend was when it got it.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        let cancel = self.cancel.lock();
        cancel.key.as_ref().map(|key| Lease { address: Arc::clone(&key.address), role: cancel.role })
    }

    /// What it has asked for is done here (or no more), whatever backend it has: a cancel request is not for that.
    pub(crate) fn runs_here(&self, here: bool) {
        self.cancel.lock().runs_here = here;
    }

    /// It gives its backend back.
    pub fn unbind(&self) -> Unbound {
        let mut cancel = self.cancel.lock();
        cancel.key = None;
        cancel.server = None;
        match (cancel.doubtful, cancel.on_their_way) {
            (true, _) => Unbound::Doubtful,
            (false, 0) => Unbound::Free,
            (false, _) => Unbound::Awaited,
        }
    }

    /// Waits until no cancel request is on its way; as [`ClientEntry::unbind`] then.
    pub async fn unbound(&self) -> Unbound {
        loop {
            let notified = self.cancelling().cancelled.notified();
            let left = self.unbind();
            if left != Unbound::Awaited {
                return left;
            }
            notified.await;
        }
    }

    /// The backend it has.
    #[must_use]
    pub fn server(&self) -> Option<u64> {
        self.cancel.lock().server
    }

    /// Settings of ours, or a BEGIN, are on their way to its backend in front of what it asks, or not any more.
    pub fn set_sets_up(&self, sets_up: bool) {
        self.sets_up.store(sets_up, Ordering::Release);
    }

    /// Whether a cancel request would hit what is ours.
    pub fn sets_up(&self) -> bool {
        self.sets_up.load(Ordering::Acquire)
    }

    /// How many cancel requests are on their way to its backend.
    #[must_use]
    pub fn cancels(&self) -> u32 {
        self.cancel.lock().on_their_way
    }

    /// A cancel request came: where to send it on. The backend stays with the client meanwhile.
    pub fn begin_cancel(self: &Arc<Self>) -> Option<CancelOnItsWay> {
        let mut cancel = self.cancel.lock();
        let Some(key) = cancel.key.clone().filter(|_| !cancel.runs_here) else {
            // Not behind the lock: who gets a backend meanwhile has looked whether it was cancelled already.
            self.raise(Flag::Cancel);
            return None;
        };
        cancel.on_their_way += 1;
        drop(cancel);
        Some(CancelOnItsWay::new(key, Arc::clone(self)))
    }

    pub(crate) fn line(&self) -> &Line {
        &self.cancelling().line
    }

    fn cancelling(&self) -> &Cancelling {
        self.cancelling.get_or_init(Box::default)
    }

    /// A cancel request is on its way no more.
    pub(crate) fn cancel_arrived(&self) {
        self.cancel.lock().on_their_way -= 1;
        self.cancelling().cancelled.notify_waiters();
    }

    /// A cancel request was sent, and nobody knows when it arrives.
    pub(crate) fn may_be_hit_later(&self) {
        self.cancel.lock().doubtful = true;
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Registry {
    clients: Mutex<HashMap<u32, Arc<ClientEntry>>>,
    servers: Mutex<HashMap<u64, std::sync::Weak<ServerEntry>>>,
    next_client: AtomicU32,
    next_server: AtomicU64,
}

/// A client's place in the registry; dropping it takes the client out.
#[derive(Debug)]
pub struct Registered {
    /// The entry.
    pub entry: Arc<ClientEntry>,
    registry: Arc<Registry>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.clients.lock().remove(&self.entry.id);
    }
}

impl Registry {
    /// Enters a client, under a number that nobody has.
    pub fn enter(self: &Arc<Self>, peer: Peer, local: Peer) -> Registered {
        let mut clients = self.clients.lock();
        let id = loop {
            // Process ids are positive 31-bit numbers for clients that keep them signed.
            let id = self.next_client.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff;
            if id != 0 && !clients.contains_key(&id) {
                break id;
            }
        };
        let entry = Arc::new(ClientEntry::new(id, peer, local));
        clients.insert(id, Arc::clone(&entry));
        Registered { entry, registry: Arc::clone(self) }
    }

    /// Enters a backend.
    pub fn enter_server(self: &Arc<Self>, server: NewServer) -> Arc<ServerEntry> {
        let id = self.next_server.fetch_add(1, Ordering::Relaxed) + 1;
        let entry = Arc::new(ServerEntry::new(id, server, Arc::downgrade(self)));
        self.servers.lock().insert(id, Arc::downgrade(&entry));
        entry
    }

    /// A backend is gone.
    pub(crate) fn leave_server(&self, id: u64) {
        self.servers.lock().remove(&id);
    }

    /// The client of that number.
    #[must_use]
    pub fn client(&self, id: u32) -> Option<Arc<ClientEntry>> {
        self.clients.lock().get(&id).map(Arc::clone)
    }

    /// Every client, by number.
    #[must_use]
    pub fn clients(&self) -> Vec<Arc<ClientEntry>> {
        let mut clients: Vec<_> = self.clients.lock().values().map(Arc::clone).collect();
        clients.sort_unstable_by_key(|client| client.id);
        clients
    }

    /// How many clients there are.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.lock().len()
    }

    /// Every backend, by number.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<ServerEntry>> {
        let mut servers: Vec<_> = self.servers.lock().values().filter_map(std::sync::Weak::upgrade).collect();
        servers.sort_unstable_by_key(|server| server.id);
        servers
    }

    /// Asks the same of every client.
    pub fn raise_all(&self, flag: Flag) {
        for client in self.clients() {
            client.raise(flag);
        }
    }
}
