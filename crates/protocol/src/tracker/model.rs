//! A model of PostgreSQL's main loop (`postgres.c`: `PostgresMain`, `SocketBackend`; `copyfromparse.c`:
//! `CopyGetData`) makes the true replies to random messages, read and answered at random moments. The
//! tracker must follow them without a desync, pass what is the client's and nothing else, and say that
//! the backend is settled exactly when it is.

use std::collections::VecDeque;

use super::*;

/// How many random conversations are held; the seed is in the message of a failure.
const CONVERSATIONS: u64 = 4_000;

/// xorshift64*: repeatable, and good enough to mix.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    /// True once in `times`.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// How a COPY FROM STDIN goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyIn {
    Well,
    /// Refused behind CopyInResponse, before anything is read (COPY FREEZE).
    Unread,
    /// Fails at the first data.
    Data,
    /// Fails at its end (a deferred check).
    End,
}

/// What a statement answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Rows,
    Empty,
    Suspended,
    CopyOut,
    CopyIn(CopyIn),
    Fails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parse { fails: bool },
    Bind { fails: bool },
    DescribeStatement { fails: bool, rows: bool },
    DescribePortal { fails: bool },
    Execute(Runs),
    Close,
    Sync { fails: bool, status: TxStatus },
    Query([Runs; 2], TxStatus),
    FunctionCall { fails: bool },
    Flush,
    BadFlush,
    CopyData,
    CopyDone,
    CopyFail,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    kind: Kind,
    owner: Owner,
}

/// One message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reply {
    tag: u8,
    status: Option<TxStatus>,
    fate: Fate,
}

#[derive(Debug, Clone, Default)]
struct Server {
    unread: VecDeque<Message>,
    replies: VecDeque<Reply>,
    status: TxStatus,
    ignore_till_sync: bool,
    /// An implicit transaction of extended messages is open.
    in_batch: bool,
    copy: Option<(Message, CopyIn, VecDeque<Runs>)>,
}

impl Server {
    fn say(&mut self, tags: &str, owner: Owner) {
        let replies = tags.bytes().map(|tag| Reply { tag, status: None, fate: fate(owner) });
        self.replies.extend(replies);
    }

    fn ready(&mut self, owner: Owner) {
        let status = Some(self.status);
        self.replies.push_back(Reply { tag: b'Z', status, fate: fate(owner) });
    }

    /// An error: inside of extended messages everything up to Sync is ignored.
    fn fail(&mut self, message: Message) {
        self.copy = None;
        if self.status == TxStatus::InTransaction {
            self.status = TxStatus::Failed;
        }
        match message.kind {
            Kind::Query(..) | Kind::FunctionCall { .. } => {
                self.say("E", message.owner);
                self.in_batch = false;
                self.ready(message.owner);
            }
            Kind::Sync { .. } => self.say("E", Owner::Client),
            _ => {
                self.say("E", Owner::Client);
                self.ignore_till_sync = true;
            }
        }
    }

    /// Reads and carries out one message.
    fn step(&mut self) {
        let Some(message) = self.unread.pop_front() else { return };
        if self.copy.is_some() {
            return self.read_in_copy(message);
        }
        match message.kind {
            Kind::Sync { .. } => self.ignore_till_sync = false,
            _ if self.ignore_till_sync => return,
            Kind::Query(..) | Kind::FunctionCall { .. } | Kind::Flush => {}
            Kind::CopyData | Kind::CopyDone | Kind::CopyFail => {}
            _ => self.in_batch = true,
        }
        self.carry_out(message);
    }

    fn carry_out(&mut self, message: Message) {
        let owner = message.owner;
        match message.kind {
            Kind::Parse { fails: true }
            | Kind::Bind { fails: true }
            | Kind::DescribePortal { fails: true }
            | Kind::BadFlush
            | Kind::FunctionCall { fails: true } => self.fail(message),
            Kind::Parse { .. } => self.say("1", owner),
            Kind::Bind { .. } => self.say("2", owner),
            Kind::DescribeStatement { fails: true, .. } => self.fail(message),
            Kind::DescribeStatement { rows, .. } => self.say(if rows { "tT" } else { "tn" }, owner),
            Kind::DescribePortal { .. } => self.say("T", owner),
            Kind::Close => self.say("3", owner),
            Kind::Execute(runs) => self.run(message, VecDeque::from([runs])),
            Kind::Query(parts, _) => self.run(message, VecDeque::from(parts)),
            Kind::FunctionCall { .. } => {
                self.say("V", owner);
                self.in_batch = false;
                self.ready(owner);
            }
            Kind::Sync { fails, status } => {
                self.in_batch = false;
                if fails {
                    self.fail(message);
                } else if self.status != TxStatus::Failed {
                    self.status = status;
                }
                self.ready(owner);
            }
            Kind::Flush | Kind::CopyData | Kind::CopyDone | Kind::CopyFail => {}
        }
    }

    /// Runs the statements of an Execute or a Query, up to one that reads COPY data.
    fn run(&mut self, message: Message, mut parts: VecDeque<Runs>) {
        while let Some(part) = parts.pop_front() {
            match part {
                Runs::Rows => self.say(if is_query(message) { "TDDC" } else { "DSDC" }, message.owner),
                Runs::Empty => self.say("I", message.owner),
                Runs::Suspended if !is_query(message) => self.say("Ds", message.owner),
                Runs::Suspended => self.say("NC", message.owner),
                Runs::CopyOut => self.say("HddcC", message.owner),
                Runs::Fails => return self.fail(message),
                Runs::CopyIn(how) => {
                    self.say("G", message.owner);
                    if how == CopyIn::Unread {
                        return self.fail(message);
                    }
                    self.copy = Some((message, how, parts));
                    return;
                }
            }
        }
        if let Kind::Query(_, status) = message.kind {
            self.status = status;
            self.in_batch = false;
            self.ready(message.owner);
        }
    }

    fn read_in_copy(&mut self, read: Message) {
        let Some((message, how, parts)) = self.copy.clone() else { return };
        match read.kind {
            Kind::Sync { .. } | Kind::Flush | Kind::BadFlush => {}
            Kind::CopyData if how != CopyIn::Data => {}
            Kind::CopyDone if how == CopyIn::Well || how == CopyIn::Data => {
                self.copy = None;
                self.say("C", message.owner);
                self.run(message, parts);
            }
            // Refused data, CopyFail, and whatever does not belong here, which is consumed.
            _ => self.fail(message),
        }
    }

    /// How the COPYs go that have been sent and of whose end the client has not heard.
    fn pending_copies(&self) -> Vec<CopyIn> {
        let unread = self.unread.iter().flat_map(|message| match message.kind {
            Kind::Execute(runs) => vec![runs],
            Kind::Query(parts, _) => parts.to_vec(),
            _ => Vec::new(),
        });
        let begun =
            self.copy.iter().flat_map(|(_, how, rest)| rest.iter().copied().chain([Runs::CopyIn(*how)]));
        let said = self.replies.iter().any(|reply| reply.tag == b'G');
        let begun = begun.chain(said.then_some(Runs::CopyIn(CopyIn::Unread)));
        let copies = unread.chain(begun);
        copies.filter_map(|runs| if let Runs::CopyIn(how) = runs { Some(how) } else { None }).collect()
    }

    /// What becomes of it when it has read everything: nothing more to say, to read or to undo.
    fn is_settled(&self) -> bool {
        let mut rest = self.clone();
        while !rest.unread.is_empty() {
            rest.step();
        }
        rest.replies.is_empty() && !rest.ignore_till_sync && !rest.in_batch && rest.copy.is_none()
    }
}

fn is_query(message: Message) -> bool {
    matches!(message.kind, Kind::Query(..))
}

/// A client, the tracker, and the model behind it.
struct Conversation {
    dice: Dice,
    tracker: Tracker,
    server: Server,
    tokens: u32,
    /// What the client was given and what it should have been.
    got: String,
    due: String,
    log: String,
    pipelines_copies: bool,
}

impl Conversation {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let pipelines_copies = dice.once_in(3);
        Self {
            dice,
            tracker: Tracker::new(),
            server: Server::default(),
            tokens: 0,
            got: String::new(),
            due: String::new(),
            log: String::new(),
            pipelines_copies,
        }
    }

    fn forward(&mut self, kind: Kind, owner: Owner) {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.log += &format!("{kind:?} {owner:?}\n");
        match kind {
            Kind::Parse { .. } => self.tracker.push(Ask::Parse(token), owner),
            Kind::Bind { .. } => self.tracker.push(Ask::Bind, owner),
            Kind::DescribeStatement { .. } => self.tracker.push(Ask::DescribeStatement, owner),
            Kind::DescribePortal { .. } => self.tracker.push(Ask::DescribePortal, owner),
            Kind::Execute(_) => self.tracker.push(Ask::Execute, owner),
            Kind::Close => self.tracker.push(Ask::Close(token), owner),
            Kind::Sync { .. } => self.tracker.push(Ask::Sync, owner),
            Kind::Query(..) => self.tracker.push(Ask::Query, owner),
            Kind::FunctionCall { .. } => self.tracker.push(Ask::FunctionCall, owner),
            Kind::Flush => {}
            Kind::BadFlush => self.tracker.push(Ask::BadFlush, owner),
            Kind::CopyData => {
                if !self.tracker.push_copy_data() {
                    return;
                }
            }
            Kind::CopyDone | Kind::CopyFail => {
                if !self.tracker.push_copy_end() {
                    return;
                }
            }
        }
        self.server.unread.push_back(Message { kind, owner });
    }

    /// What a client may send now: any message, but inside of a COPY mostly what belongs there.
    fn client(&mut self) {
        let pending = self.server.pending_copies();
        let bold = self.pipelines_copies && self.dice.once_in(10);
        let flush = self.dice.pick(&[Kind::Flush, Kind::Flush, Kind::BadFlush]);
        let kind = if self.tracker.in_copy() && !bold {
            self.dice.pick(&[Kind::CopyData, Kind::CopyData, flush, Kind::CopyDone, Kind::CopyFail, SYNC])
        } else if pending.is_empty() || bold {
            self.any_message()
        } else if self.pipelines_copies {
            self.dice.pick(&[Kind::CopyData, Kind::CopyDone, SYNC])
        } else {
            self.dice.pick(&[Kind::Flush, SYNC])
        };
        let ours = matches!(kind, Kind::Parse { .. } | Kind::Close) && self.dice.once_in(4);
        self.forward(kind, if ours { Owner::Ours } else { Owner::Client });
    }

    fn any_message(&mut self) -> Kind {
        let fails = self.dice.once_in(8);
        let status = self.dice.pick(&[TxStatus::Idle, TxStatus::InTransaction]);
        match self.dice.below(13) {
            0 => Kind::Parse { fails },
            1 | 2 => Kind::Bind { fails },
            3 => Kind::DescribeStatement { fails, rows: self.dice.once_in(2) },
            4 => Kind::DescribePortal { fails },
            5 | 6 => Kind::Execute(self.runs()),
            7 => Kind::Close,
            8 | 9 => Kind::Sync { fails, status },
            10 => Kind::Query([self.runs(), self.runs()], status),
            11 => Kind::FunctionCall { fails },
            _ => {
                self.dice.pick(&[Kind::Flush, Kind::BadFlush, Kind::CopyData, Kind::CopyDone, Kind::CopyFail])
            }
        }
    }

    fn runs(&mut self) -> Runs {
        let how = [CopyIn::Well, CopyIn::Well, CopyIn::Unread, CopyIn::Data, CopyIn::End];
        match self.dice.below(12) {
            0..4 => Runs::Rows,
            4 => Runs::Empty,
            5 => Runs::Suspended,
            6 => Runs::CopyOut,
            7 | 8 => Runs::CopyIn(self.dice.pick(&how)),
            9 => Runs::Fails,
            _ => Runs::Rows,
        }
    }

    fn deliver(&mut self) {
        let Some(reply) = self.server.replies.pop_front() else { return };
        self.log += &format!("    {} {:?}\n", char::from(reply.tag), reply.fate);
        let fate = self.tracker.on_server(reply.tag, reply.status);
        assert_eq!(fate, Ok(reply.fate), "{}\n{:?}", self.log, self.tracker);
        if reply.fate == Fate::Pass {
            self.got.push(char::from(reply.tag));
            self.due.push(char::from(reply.tag));
        }
    }

    fn check(&self) {
        let settled = self.server.is_settled();
        let (log, tracker) = (&self.log, &self.tracker);
        assert_eq!(tracker.is_settled(), settled, "{log}{tracker:?}\n{:?}", self.server);
        let clean = settled && self.server.status == TxStatus::Idle;
        assert_eq!(tracker.is_clean(), clean, "{log}{tracker:?}\n{:?}", self.server);
    }

    /// One thing happens. False when the backend would be closed for doubt.
    fn step(&mut self) -> bool {
        match self.dice.below(3) {
            0 => self.client(),
            1 => self.server.step(),
            _ => self.deliver(),
        }
        if self.tracker.is_in_doubt() {
            return false;
        }
        self.check();
        true
    }

    /// The client ends what it has begun; everything is read and answered.
    fn end(&mut self) {
        for _ in 0..100 {
            while !self.server.unread.is_empty() || !self.server.replies.is_empty() {
                self.server.step();
                self.deliver();
                if self.tracker.is_in_doubt() {
                    return;
                }
            }
            if self.tracker.is_settled() {
                assert_eq!(self.got, self.due, "{}", self.log);
                return self.check();
            }
            self.forward(if self.tracker.in_copy() { Kind::CopyDone } else { SYNC }, Owner::Client);
        }
        panic!("never settled\n{}{:?}", self.log, self.tracker);
    }
}

const SYNC: Kind = Kind::Sync { fails: false, status: TxStatus::Idle };

#[test]
fn the_tracker_follows_a_model_of_the_server() {
    let mut in_doubt = 0;
    for seed in 0..CONVERSATIONS {
        let mut conversation = Conversation::new(seed);
        conversation.log = format!("seed {seed}\n");
        if (0..60).all(|_| conversation.step()) {
            conversation.end();
        }
        in_doubt += u64::from(conversation.tracker.is_in_doubt());
    }
    assert!(in_doubt < CONVERSATIONS / 3, "{in_doubt} of {CONVERSATIONS} ended in doubt");
}
