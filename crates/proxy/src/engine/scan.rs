//! Reading ahead: what the unit of work at the front of the client's buffer wants.
//!
//! A unit is a simple Query, or extended messages up to Sync, Flush, or whatever ends the batch.
//! Nothing is changed here; the same bytes are walked again when they are forwarded.

use protocol::frame::{HEADER_LEN, Header, frontend_header};
use protocol::message::{self, Object, View};
use router::{Reason, Verdict};

use super::{Env, Violation};
use crate::statements::{ClientStatements, MAX_STATEMENT_LEN};

/// A batch that is not finished within so many bytes goes to the primary, unseen.
pub const HELD_LIMIT: usize = 64 * 1024;

/// What ends a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A simple Query.
    Query,
    /// Sync.
    Sync,
    /// Sync with a body: it ends the batch, and fails first.
    FailingSync,
    /// Flush: the client wants answers before it goes on.
    Flush,
    /// Flush behind a statement that is bound: it cannot go elsewhere when the batch goes on with a write.
    FlushedRun,
    /// FunctionCall.
    FunctionCall,
    /// Terminate.
    Terminate,
    /// CopyData and its kin without a COPY; PostgreSQL ignores them.
    Stray,
    /// More than [`HELD_LIMIT`], or a message too large to be read: the rest is unknown.
    Open,
}

/// One unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Its length in the buffer, as far as it is known.
    pub len: usize,
    /// What all of it says about itself.
    pub verdict: Verdict,
    /// What ends it.
    pub boundary: Boundary,
    /// It has messages of the extended protocol.
    pub extended: bool,
    /// It may leave a portal that later units go on with.
    pub leaves_portal: bool,
}

/// What reading ahead gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// A unit.
    Unit(Unit),
    /// So many bytes must be there to know more.
    More(usize),
}

struct Parsed<'a> {
    name: &'a [u8],
    verdict: Verdict,
    bound: bool,
}

struct Walk<'a> {
    verdict: Verdict,
    /// Statements parsed in this unit: the first one, and the others.
    first: Option<Parsed<'a>>,
    others: Vec<Parsed<'a>>,
    extended: bool,
    leaves_portal: bool,
    /// How a Flush ends it.
    flush: Boundary,
}

/// Reads ahead in `bytes`.
///
/// # Errors
/// Bytes that are no messages of a client.
pub fn scan(bytes: &[u8], known: &ClientStatements, env: &Env<'_>) -> Result<Scan, Violation> {
    let mut walk = Walk {
        verdict: Verdict::empty(),
        first: None,
        others: Vec::new(),
        extended: false,
        leaves_portal: false,
        flush: Boundary::Flush,
    };
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        if at >= HELD_LIMIT {
            return Ok(walk.open(at));
        }
        let Some(header) = frontend_header(rest)? else { return Ok(Scan::More(at + HEADER_LEN)) };
        let seen = rest.get(..header.len).unwrap_or(rest);
        match walk.message(header, seen, known, env)? {
            Ok(None) => at += header.len,
            Ok(Some(boundary)) => return Ok(walk.unit(at + header.len, boundary)),
            Err(_) if at + seen.len() >= HELD_LIMIT && header.tag != b'P' => return Ok(walk.open(at)),
            Err(need) => return Ok(Scan::More(at + need)),
        }
    }
}

/// How a message goes on: `Err` is how many bytes of it must be there.
type Seen = Result<Option<Boundary>, usize>;

impl<'a> Walk<'a> {
    fn message(
        &mut self,
        header: Header,
        seen: &'a [u8],
        known: &ClientStatements,
        env: &Env<'_>,
    ) -> Result<Seen, Violation> {
        let whole = seen.len() >= header.len;
        Ok(match header.tag {
            b'Q' => self.query(header, seen, env),
            b'F' => self.function_call(header, seen),
            b'X' => Ok(Some(Boundary::Terminate)),
            b'S' if header.len > HEADER_LEN => Ok(Some(Boundary::FailingSync)),
            b'S' => Ok(Some(Boundary::Sync)),
            b'H' => Ok(Some(self.flush)),
            b'd' | b'c' | b'f' if !self.extended => Ok(Some(Boundary::Stray)),
            b'P' => {
                self.extended = true;
                if header.len > MAX_STATEMENT_LEN {
                    return Err(Violation::StatementTooLong(header.len));
                }
                if whole { self.parse(seen, env) } else { Err(header.len) }
            }
            b'B' => {
                self.extended = true;
                self.flush = Boundary::FlushedRun;
                self.bind(header, seen, known, env)
            }
            _ => {
                self.extended = true;
                self.object(header, seen, known, whole, env)
            }
        })
    }

    fn query(&mut self, header: Header, seen: &[u8], env: &Env<'_>) -> Seen {
        let verdict = if header.len > env.max_parsed + HEADER_LEN + 1 {
            Verdict::unparsed(Reason::TooLong)
        } else if seen.len() < header.len {
            return Err(header.len);
        } else {
            query_verdict(seen, env)
        };
        self.verdict = if self.extended { self.verdict.merge(verdict) } else { verdict };
        Ok(Some(Boundary::Query))
    }

    fn function_call(&mut self, header: Header, seen: &[u8]) -> Seen {
        let verdict = call_verdict(header, seen)?;
        self.verdict = if self.extended { self.verdict.merge(verdict) } else { verdict };
        Ok(Some(Boundary::FunctionCall))
    }

    fn parse(&mut self, seen: &'a [u8], env: &Env<'_>) -> Seen {
        if let Some(parse) = message::parse(seen) {
            let verdict = (env.classify)(parse.sql);
            let parsed = Parsed { name: parse.name, verdict, bound: false };
            // Most units parse one, or one name after the other: a list of them would be an allocation a unit.
            match &mut self.first {
                None => self.first = Some(parsed),
                Some(first) if first.bound && first.name == parse.name && self.others.is_empty() => {
                    *first = parsed;
                }
                Some(_) => self.others.push(parsed),
            }
        }
        Ok(None)
    }

    fn bind(&mut self, header: Header, seen: &[u8], known: &ClientStatements, env: &Env<'_>) -> Seen {
        match message::bind(seen, header.len) {
            View::Incomplete => return Err(seen.len() + 1),
            View::Malformed => {}
            View::Ready(bind) => {
                self.leaves_portal |= !bind.portal.is_empty();
                let verdict = self.statement(bind.statement, known, true, env);
                self.verdict = self.verdict.merge(verdict);
                if seen.len() < header.len {
                    return Err(header.len);
                }
            }
        }
        Ok(None)
    }

    /// Describe and Close: a described statement is looked at where it may be run.
    fn object(
        &mut self,
        header: Header,
        seen: &[u8],
        known: &ClientStatements,
        whole: bool,
        env: &Env<'_>,
    ) -> Seen {
        if !whole {
            return Err(header.len);
        }
        // Execute with a limit of rows.
        self.leaves_portal |= header.tag == b'E' && !seen.ends_with(&[0; 4]);
        if let (b'D', Some(Object::Statement(name))) = (header.tag, message::object(seen)) {
            let verdict = self.statement(name, known, false, env);
            if self.verdict.statements == 0 {
                self.verdict = verdict;
            }
        }
        Ok(None)
    }

    fn statement(&mut self, name: &[u8], known: &ClientStatements, run: bool, env: &Env<'_>) -> Verdict {
        let mut parsed = self.first.iter_mut().chain(&mut self.others).rev();
        if let Some(parsed) = parsed.find(|parsed| parsed.name == name) {
            parsed.bound |= run;
            return parsed.verdict;
        }
        // An unknown name fails anywhere.
        known.any(name).map_or(Verdict::empty(), |statement| env.verdict(statement))
    }

    /// Statements that are parsed only are parsed where they may be run.
    fn total(&self) -> Verdict {
        let unbound = self.first.iter().chain(&self.others).filter(|parsed| !parsed.bound);
        if self.verdict.statements > 0 && unbound.clone().count() == 0 {
            return self.verdict;
        }
        unbound.fold(self.verdict, |total, Parsed { verdict, .. }| {
            if total.statements == 1 && total.tx == verdict.tx && total == *verdict {
                total
            } else {
                total.merge(*verdict)
            }
        })
    }

    fn unit(&self, len: usize, boundary: Boundary) -> Scan {
        Scan::Unit(Unit {
            len,
            verdict: self.total(),
            boundary,
            extended: self.extended,
            leaves_portal: self.leaves_portal,
        })
    }

    fn open(&self, len: usize) -> Scan {
        let verdict = self.total().merge(Verdict::unparsed(Reason::TooLong));
        Scan::Unit(Unit { len, verdict, boundary: Boundary::Open, extended: true, leaves_portal: true })
    }
}

/// The verdict on a whole Query message.
pub(super) fn query_verdict(message: &[u8], env: &Env<'_>) -> Verdict {
    // A zero byte inside: PostgreSQL refuses it, and its view counts.
    message::only_query_text(message)
        .map_or_else(|| Verdict::unparsed(Reason::Unparsed), |text| (env.classify)(text))
}

/// The verdict on a FunctionCall of which `seen` is there; `Err` is how many bytes must be there. One without an OID fails.
pub(super) fn call_verdict(header: Header, seen: &[u8]) -> Result<Verdict, usize> {
    const NEEDED: usize = HEADER_LEN + size_of::<u32>();
    match seen.get(HEADER_LEN..NEEDED).and_then(|oid| oid.try_into().ok()) {
        Some(oid) => Ok(router::function_call(u32::from_be_bytes(oid))),
        None if header.len < NEEDED => Ok(router::function_call(0)),
        None => Err(NEEDED),
    }
}
