//! The session's engine between a client and a server that say anything.
//!
//! An input is a list of steps: who speaks, how many bytes, the bytes. A server may also answer well what it owes, so
//! that a session gets somewhere. What reaches either side must be whole messages in order, and a backend that is
//! free owes nothing.

use std::collections::VecDeque;

use protocol::error::Severity;
use protocol::frame::{FrameError, HEADER_LEN, Header, backend_header, frontend_header};
use protocol::sqlstate::SqlState;
use proxy::buffer::Buf;
use proxy::engine::{
    Books, Boundary, ClientOuts, ClientStep, Engine, Env, Kept, Passed, Scan, ServerStep, Watch, scan,
};
use proxy::out::Out;
use proxy::statements::StatementCache;
use router::{Changes, ParseOptions, Verdict};

pub(crate) const DIALOGUES: &[&[u8]] = &[
    b"\0\x0eQ\0\0\0\x0dselect 1\0\x02\0\0\x05X\0\0\0\x04",
    b"\0\x11P\0\0\0\x10\0select 1\0\0\0\0\x0dB\0\0\0\x0c\0\0\0\0\0\0\0\0\0\x0aE\0\0\0\x09\0\0\0\0\0\0\x05S\0\0\0\x04\x02\0",
    b"\0\x12P\0\0\0\x11s\0select 1\0\0\0\0\x05S\0\0\0\x04\x02\0\0\x0eB\0\0\0\x0d\0s\0\0\0\0\0\0\0\0\x0aE\0\0\0\x09\0\0\0\0\0\0\x05S\0\0\0\x04\x02\0",
    b"\0\x0bQ\0\0\0\x0abegin\0\x02\0\0\x14Q\0\0\0\x13rollback; begin\0\x01\x0bE\0\0\0\x0aSERROR\0\0\x01\x06Z\0\0\0\x05I",
    b"\0\x16Q\0\0\0\x15copy t from stdin\0\x01\x0aG\0\0\0\x09\0\0\0\0\0\0\x09d\0\0\0\x08a\tb\n\0\x05c\0\0\0\x04\x02\0",
    b"\0\x1bQ\0\0\0\x1aset work_mem = '1MB'\0\x01\x08C\0\0\0\x07SET\0\x01\x06Z\0\0\0\x05I\0\x14Q\0\0\0\x13show work_mem\0\x02\0",
    b"\0\x0bF\0\0\0\x0a\0\0\0\0\0\0\x01\x09V\0\0\0\x08\xff\xff\xff\xff\x01\x06Z\0\0\0\x05I",
    b"\0\x09C\0\0\0\x08Ss1\0\0\x05H\0\0\0\x04\x02\0\0\x05S\0\0\0\x04\x02\0\x01\x12S\0\0\0\x11TimeZone\0UTC\0",
];

/// Whom a session tells what passes.
struct Nobody;

impl Watch for Nobody {
    fn statement(&self, _: &Verdict, _: Option<&[u8]>) {}
    fn asked(&self, _: protocol::tracker::Push) {}
    fn answered(&self, _: protocol::tracker::Push, _: &[u8], _: u64) {}
    fn bound(&self, _: &[u8], _: usize) {}
    fn passed(&self, _: Passed) {}
    fn server_error(&self, _: Severity, _: Option<SqlState>) {}
    fn transaction(&self) {}
    fn schema_changed(&self) {}
    fn catalog_changed(&self, _: Changes) {}
    fn asked_of_sequences(&self, _: proxy::engine::Habit) {}
    fn held_in_vain(&self) {}
}

/// A stream of messages as the other side reads it.
struct Stream {
    bytes: Vec<u8>,
    header: fn(&[u8]) -> Result<Option<Header>, FrameError>,
}

impl Stream {
    /// Takes what was written; gives the types of the messages that are whole now.
    fn take(&mut self, written: &[u8]) -> Vec<u8> {
        self.bytes.extend_from_slice(written);
        let mut tags = Vec::new();
        loop {
            let header = (self.header)(&self.bytes).expect("what is no message was written");
            let Some(header) = header.filter(|header| header.len <= self.bytes.len()) else { return tags };
            tags.push(header.tag);
            self.bytes.drain(..header.len);
        }
    }
}

struct Pair {
    engine: Engine,
    books: Books,
    cache: StatementCache,
    from_client: Buf,
    from_server: Buf,
    bound: bool,
    /// The next backend is one of a standby; a BEGIN was kept back.
    on_standby: bool,
    begins: bool,
    to_server: Stream,
    to_client: Stream,
    /// What the server has been asked and has not answered, when it answers well.
    owed: VecDeque<u8>,
}

/// The session is at its end.
struct Over;

/// See the module's documentation.
pub(crate) fn session(mut input: &[u8]) {
    let stream = |header| Stream { bytes: Vec::new(), header };
    let mut pair = Pair {
        engine: Engine::default(),
        books: Books::default(),
        cache: StatementCache::new(1 << 16),
        from_client: Buf::default(),
        from_server: Buf::default(),
        bound: false,
        on_standby: false,
        begins: false,
        to_server: stream(frontend_header),
        to_client: stream(backend_header),
        owed: VecDeque::new(),
    };
    while let [who, len, rest @ ..] = input {
        let (bytes, after) = rest.split_at(usize::from(*len).min(rest.len()));
        input = after;
        (pair.on_standby, pair.begins) = (who / 3 % 2 == 1, who / 6 % 4 == 1);
        let step = match who % 3 {
            0 => pair.client(bytes),
            1 => pair.server(bytes),
            _ => pair.answer_well(),
        };
        if step.is_err() {
            return;
        }
    }
}

impl Pair {
    fn on_env<T>(&mut self, work: impl FnOnce(&mut Self, &Env<'_>) -> T) -> T {
        let options = ParseOptions::default();
        let classify = |sql: &[u8]| router::classify(sql, &options);
        let cache = std::mem::replace(&mut self.cache, StatementCache::new(0));
        let result = work(
            self,
            &Env {
                classify: &classify,
                generation: 0,
                cache: &cache,
                schema: cache.schema(),
                standard_conforming: true,
                max_parsed: 65_536,
                max_prepared: 3,
                habit: proxy::engine::Habit::default(),
                state: config::SessionState::default(),
                watch: &Nobody,
            },
        );
        self.cache = cache;
        result
    }

    fn client(&mut self, bytes: &[u8]) -> Result<(), Over> {
        self.from_client.put(bytes);
        self.forward()
    }

    /// Takes a backend for what the client sent, if there is none, and forwards as much as may go.
    fn forward(&mut self) -> Result<(), Over> {
        if !self.bound {
            let dropped = self.engine.drop_client_rest(self.from_client.filled().len());
            self.from_client.consume(dropped);
            if self.engine.in_client_message() || self.from_client.is_empty() {
                return Ok(());
            }
            let scanned =
                self.on_env(|pair, env| scan(pair.from_client.filled(), pair.engine.statements(), env));
            let Scan::Unit(unit) = scanned.map_err(|_| Over)? else { return Ok(()) };
            if matches!(unit.boundary, Boundary::Terminate | Boundary::Stray) {
                return Err(Over);
            }
            let begin = self.begins.then(|| Kept::Extended((*b"BEGIN").into()));
            self.engine.bind(self.on_standby, &unit, begin.into_iter().collect());
            self.bound = true;
        }
        loop {
            let (mut server, mut client) = (Out::default(), Out::default());
            let step = self.on_env(|pair, env| {
                let mut outs = ClientOuts { server: &mut server, client: &mut client };
                pair.engine.client(env, &mut pair.books, &mut pair.from_client, &mut outs)
            });
            let asked = self.to_server.take(&server.bytes(&self.from_client));
            self.owed.extend(asked);
            self.to_client.take(&client.bytes(&self.from_server));
            match step.map_err(|_| Over)? {
                ClientStep::Terminate | ClientStep::Local => return Err(Over),
                ClientStep::More(_) | ClientStep::Hold => return Ok(()),
                // Nobody knows more.
                ClientStep::Doubt => self.engine.judge(),
            }
        }
    }

    fn server(&mut self, bytes: &[u8]) -> Result<(), Over> {
        if !self.bound {
            return Ok(());
        }
        self.from_server.put(bytes);
        loop {
            let mut client = Out::default();
            let step = self
                .engine
                .server(&Nobody, &mut self.books, &mut self.from_server, &mut client)
                .map_err(|_| Over)?;
            self.to_client.take(&client.bytes(&self.from_server));
            match step {
                // Nothing stands in for anything here: nobody has said that it may.
                ServerStep::SetupFailed(_) | ServerStep::Anew => return Err(Over),
                ServerStep::Settled if !self.from_server.is_empty() => {}
                ServerStep::Settled | ServerStep::More(_) => break,
            }
        }
        if self.engine.is_free() {
            assert!(!self.engine.tracker().owes(), "free, and owes an answer");
            assert!(self.to_server.bytes.is_empty(), "free in the middle of a message to the server");
            assert!(self.to_client.bytes.is_empty(), "free in the middle of a message to the client");
            self.bound = false;
            self.owed.clear();
        }
        self.forward()
    }

    /// The server does what it was asked for.
    fn answer_well(&mut self) -> Result<(), Over> {
        while let Some(tag) = self.owed.pop_front() {
            let answer: &[u8] = match tag {
                b'P' => b"1\0\0\0\x04",
                b'B' => b"2\0\0\0\x04",
                b'C' => b"3\0\0\0\x04",
                b'D' => b"n\0\0\0\x04",
                b'E' => b"C\0\0\0\x0dSELECT 1\0",
                b'S' => b"Z\0\0\0\x05I",
                b'Q' => b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I",
                b'F' => b"V\0\0\0\x08\xff\xff\xff\xffZ\0\0\0\x05I",
                b'c' => b"C\0\0\0\x0bCOPY 1\0Z\0\0\0\x05I",
                _ => b"",
            };
            debug_assert!(answer.is_empty() || answer.len() >= HEADER_LEN);
            self.server(answer)?;
        }
        Ok(())
    }
}
