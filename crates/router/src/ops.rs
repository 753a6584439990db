//! What each statement of a string does to the session beside its result, so that the session's books follow it.
//!
//! Invariants: an operation is given only where the tokens alone say what the statement does when it succeeds;
//! what is not understood is [`SessionOp::Other`]. One operation for each statement, in order: the server
//! completes each with one CommandComplete.

use crate::classify::Statements;
use crate::functions::{catalog_name, pin_of};
use crate::lexer::{Kind, Lexer, Token};
use crate::setting::{self, Change};
use crate::state;
use crate::verdict::PinReason;

/// What one statement does to the session when it has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionOp {
    /// Nothing that is followed here.
    Nothing,
    /// What is not understood.
    Other,
    /// SET and RESET; empty for SET LOCAL.
    Changes(Vec<Change>),
    /// SAVEPOINT of that name (as PostgreSQL folds it).
    Savepoint(Vec<u8>),
    /// ROLLBACK TO that savepoint.
    RollbackTo(Vec<u8>),
    /// RELEASE of that savepoint.
    Release(Vec<u8>),
    /// PREPARE of that name.
    Prepare {
        /// The name.
        name: Vec<u8>,
        /// The whole statement.
        text: Vec<u8>,
        /// It means the same wherever it is repeated.
        repeatable: Repeatable,
    },
    /// EXECUTE of that prepared statement, in CREATE TABLE AS too.
    Execute(Vec<u8>),
    /// EXPLAIN EXECUTE of that prepared statement.
    Explain(Vec<u8>),
    /// DEALLOCATE of that prepared statement.
    Deallocate(Vec<u8>),
    /// DEALLOCATE ALL.
    DeallocateAll,
    /// DISCARD ALL.
    DiscardAll,
    /// State that cannot be moved comes or goes.
    State(StateOp),
}

/// Whether a text may be run again, on another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    /// It means the same there.
    Yes,
    /// It may not.
    No,
}

/// State of a session that cannot be moved comes or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOp {
    /// CREATE TEMP TABLE of that name.
    TempTable(Vec<u8>),
    /// DROP TABLE of those names.
    DropTables(Vec<Vec<u8>>),
    /// DISCARD TEMP.
    DiscardTemp,
    /// DISCARD SEQUENCES.
    DiscardSequences,
    /// LISTEN to that channel.
    Listen(Vec<u8>),
    /// UNLISTEN of that channel.
    Unlisten(Vec<u8>),
    /// UNLISTEN of all.
    UnlistenAll,
    /// DECLARE of that cursor, WITH HOLD.
    HoldCursor(Vec<u8>),
    /// CLOSE of that cursor.
    Close(Vec<u8>),
    /// CLOSE ALL.
    CloseAll,
    /// A table gets another name or schema.
    RenamesTables,
    /// One session-level advisory lock is taken.
    Lock,
    /// One is taken when the answer is true.
    TryLock,
    /// One is given back when the answer is true.
    Unlock,
    /// All are given back.
    UnlockAll,
}

impl SessionOp {
    /// The state that makes a statement pin for `reason` is followed.
    #[must_use]
    pub fn covers(&self, reason: PinReason) -> bool {
        let own = match self {
            Self::Changes(_) => PinReason::SessionSetting,
            Self::Prepare { repeatable: Repeatable::Yes, .. } => PinReason::SqlPrepare,
            Self::State(StateOp::TempTable(_)) => PinReason::TempTable,
            Self::State(StateOp::Listen(_)) => PinReason::Listen,
            Self::State(StateOp::HoldCursor(_)) => PinReason::HoldCursor,
            Self::State(StateOp::Lock | StateOp::TryLock) => PinReason::AdvisoryLock,
            _ => return false,
        };
        own == reason
    }

    /// The prepared statement that it names.
    #[must_use]
    pub fn statement(&self) -> Option<&[u8]> {
        match self {
            Self::Prepare { name, .. }
            | Self::Execute(name)
            | Self::Explain(name)
            | Self::Deallocate(name) => Some(name),
            _ => None,
        }
    }
}

/// Whether all that pins in a string of these operations is followed, where its verdict says `reason` (that of the
/// first statement which pins).
#[must_use]
pub fn covers(ops: &[SessionOp], reason: PinReason) -> bool {
    !ops.contains(&SessionOp::Other) && ops.iter().any(|op| op.covers(reason))
}

/// More statements than this in one string are not taken apart.
const MAX_STATEMENTS: usize = 64;
/// Longer strings are not taken apart (bytes).
const MAX_LEN: usize = 16 * 1024;

/// What the statements of `sql` do, one after the other, empty ones left out; `None` when it is not taken apart.
#[must_use]
pub fn session_ops(sql: &[u8], standard_conforming_strings: bool) -> Option<Vec<SessionOp>> {
    if sql.len() > MAX_LEN {
        return None;
    }
    let tokens: Vec<Token<'_>> = Lexer::new(sql, standard_conforming_strings).collect();
    if tokens.iter().any(|token| token.kind == Kind::Bad) {
        return None;
    }
    let mut ops = Vec::new();
    for statement in Statements::new(&tokens) {
        if ops.len() >= MAX_STATEMENTS {
            return None;
        }
        let there = standard_conforming_strings && setting::sets_standard_strings(statement);
        ops.push(if there { SessionOp::Changes(Vec::new()) } else { op(statement, sql) });
    }
    Some(ops)
}

/// Where a statement may be put behind each of those that [`session_ops`] looks at: behind its semicolon, or at the end
/// of `sql` (bytes).
#[must_use]
pub fn statement_ends(sql: &[u8], standard_conforming_strings: bool) -> Vec<usize> {
    let tokens: Vec<Token<'_>> = Lexer::new(sql, standard_conforming_strings).collect();
    let behind = |token: &Token<'_>| {
        (token.text.as_ptr() as usize).saturating_sub(sql.as_ptr() as usize).saturating_add(token.text.len())
    };
    let mut statements = Statements::new(&tokens);
    let mut ends = Vec::new();
    while statements.next().is_some() {
        ends.push(statements.semicolon().map_or(sql.len(), behind));
    }
    ends
}

fn op(tokens: &[Token<'_>], sql: &[u8]) -> SessionOp {
    setting::savepoint(tokens)
        .or_else(|| prepared(tokens, sql))
        .or_else(|| setting::characteristics(tokens).map(SessionOp::Changes))
        .or_else(|| setting::change(tokens).map(|change| SessionOp::Changes(change.into_iter().collect())))
        .or_else(|| state::op(tokens).map(SessionOp::State))
        .unwrap_or_else(|| if leaves_nothing(tokens) { SessionOp::Nothing } else { SessionOp::Other })
}

/// A statement that leaves nothing in the session, but for what functions do that are not built in.
fn leaves_nothing(tokens: &[Token<'_>]) -> bool {
    const OTHERWISE: [&str; 10] =
        ["call", "create", "declare", "discard", "do", "listen", "load", "prepare", "reset", "set"];
    let first = tokens
        .first()
        .is_some_and(|first| first.is_punct("(") || (first.kind == Kind::Word && !first.is_any(&OTHERWISE)));
    first
        && !leaves_more(tokens)
        && (first_is(tokens, "insert") || !tokens.iter().any(|token| token.is("into")))
}

fn first_is(tokens: &[Token<'_>], word: &str) -> bool {
    tokens.first().is_some_and(|first| first.is(word))
}

/// PREPARE, EXECUTE, DEALLOCATE and DISCARD ALL.
fn prepared(tokens: &[Token<'_>], sql: &[u8]) -> Option<SessionOp> {
    let (first, rest) = tokens.split_first()?;
    if first.is("prepare") {
        let (name, after) = rest.split_first()?;
        after.first().filter(|next| next.is("as") || next.is_punct("("))?;
        let name = name_of(name)?;
        // Under a disguised name it is not the client's alone, unless the backend is.
        let repeats = is_repeatable(tokens) && disguised(&name).is_none();
        let repeatable = if repeats { Repeatable::Yes } else { Repeatable::No };
        return Some(SessionOp::Prepare { name, text: text_of(tokens, sql)?.to_vec(), repeatable });
    }
    if first.is("deallocate") {
        return deallocated(rest);
    }
    if first.is("discard") {
        return matches!(rest, [all] if all.is("all")).then_some(SessionOp::DiscardAll);
    }
    executed(tokens).map(if first.is("explain") { SessionOp::Explain } else { SessionOp::Execute })
}

/// `DEALLOCATE [PREPARE] name`; ALL is no name unless it is quoted.
fn deallocated(rest: &[Token<'_>]) -> Option<SessionOp> {
    match setting::without(rest, "prepare") {
        [all] if all.is("all") => Some(SessionOp::DeallocateAll),
        [name] => name_of(name).map(SessionOp::Deallocate),
        _ => None,
    }
}

fn executed(tokens: &[Token<'_>]) -> Option<Vec<u8>> {
    let first = tokens.first()?;
    let at = if first.is("execute") {
        0
    } else if first.is("explain") {
        tokens.iter().position(|token| token.is("execute"))?
    } else if first.is("create") {
        let follows = |pair: &[Token<'_>]| matches!(pair, [a, b] if a.is("as") && b.is("execute"));
        tokens.windows(2).position(follows)? + 1
    } else {
        return None;
    };
    name_of(tokens.get(at + 1)?)
}

/// Does the text name prepared statements?
pub(crate) fn names_statements(tokens: &[Token<'_>]) -> bool {
    let two_phase = tokens.get(1).is_some_and(|word| word.is("transaction"))
        && tokens.get(2).is_some_and(|id| id.kind == Kind::String);
    let says = tokens.first().is_some_and(|first| first.is_any(&["prepare", "deallocate"]));
    (says && !two_phase) || executed(tokens).is_some()
}

pub(crate) fn name_of(token: &Token<'_>) -> Option<Vec<u8>> {
    token.is_name().then(|| catalog_name(token))
}

/// Calls something that may leave more in the session than the statement says.
pub(crate) fn leaves_more(tokens: &[Token<'_>]) -> bool {
    tokens.iter().filter(|token| token.is_name()).any(|token| {
        let name = catalog_name(token);
        name == b"set_config" || pin_of(&name).is_some()
    })
}

/// What a string means may depend on other settings and on the encoding.
fn is_repeatable(tokens: &[Token<'_>]) -> bool {
    let portable = |token: &Token<'_>| token.text.is_ascii() && !token.text.contains(&b'\\');
    tokens.iter().all(portable) && !leaves_more(tokens)
}

/// The bytes of a statement, from its first token to its last.
fn text_of<'a>(tokens: &[Token<'_>], sql: &'a [u8]) -> Option<&'a [u8]> {
    let quote = |token: &Token<'_>| usize::from(token.kind == Kind::Quoted);
    let at = |token: &Token<'_>| (token.text.as_ptr() as usize).checked_sub(sql.as_ptr() as usize);
    let (first, last) = (tokens.first()?, tokens.last()?);
    let start = at(first)?.checked_sub(quote(first))?;
    sql.get(start..at(last)? + last.text.len() + quote(last))
}

/// What the servers' own names of statements begin with. A client may use such a name, but must not reach somebody
/// else's statement by it.
pub const RESERVED_PREFIX: &[u8] = b"pgweir_";

/// `name`, of the same length, as one that none of our statements has; `None` when it is none of ours anyway.
#[must_use]
pub fn disguised(name: &[u8]) -> Option<Vec<u8>> {
    let digit = name.strip_prefix(RESERVED_PREFIX)?.first().filter(|digit| digit.is_ascii_digit())?;
    let mut other = name.to_vec();
    if let Some(byte) = other.get_mut(RESERVED_PREFIX.len()) {
        *byte = b'a' + (digit - b'0');
    }
    Some(other)
}

/// `sql` with every name of a prepared statement that could be one of ours disguised; `None` when there is none.
#[must_use]
pub fn with_names_disguised(sql: &[u8], standard_conforming_strings: bool) -> Option<Vec<u8>> {
    let (mut found, mut before) = (None, None);
    for token in Lexer::new(sql, standard_conforming_strings) {
        let named =
            before.is_some_and(|before: Token<'_>| before.is_any(&["prepare", "execute", "deallocate"]));
        before = Some(token);
        if !named || !token.is_name() {
            continue;
        }
        let start = (token.text.as_ptr() as usize).checked_sub(sql.as_ptr() as usize)?;
        if let Some(other) = disguised(&catalog_name(&token)).filter(|other| other.len() == token.text.len())
        {
            let text: &mut Vec<u8> = found.get_or_insert_with(|| sql.to_vec());
            text.get_mut(start..start + other.len())?.copy_from_slice(&other);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(sql: &str) -> Vec<SessionOp> {
        session_ops(sql.as_bytes(), true).unwrap()
    }

    fn op(sql: &str) -> SessionOp {
        ops(sql).remove(0)
    }

    #[test]
    fn savepoints_and_statements_by_name() {
        assert_eq!(op("SAVEPOINT Foo"), SessionOp::Savepoint(b"foo".to_vec()));
        assert_eq!(op("SAVEPOINT \"Foo\";"), SessionOp::Savepoint(b"Foo".to_vec()));
        assert_eq!(op("ROLLBACK WORK TO SAVEPOINT s"), SessionOp::RollbackTo(b"s".to_vec()));
        assert_eq!(op("ROLLBACK TRANSACTION TO s"), SessionOp::RollbackTo(b"s".to_vec()));
        assert_eq!(op("ROLLBACK TO savepoint"), SessionOp::RollbackTo(b"savepoint".to_vec()));
        assert_eq!(op("RELEASE s"), SessionOp::Release(b"s".to_vec()));
        assert_eq!(op("DEALLOCATE A3"), SessionOp::Deallocate(b"a3".to_vec()));
        assert_eq!(op("deallocate prepare \"A3\""), SessionOp::Deallocate(b"A3".to_vec()));
        assert_eq!(op("DEALLOCATE prepare"), SessionOp::Deallocate(b"prepare".to_vec()));
        assert_eq!(op("DEALLOCATE ALL"), SessionOp::DeallocateAll);
        assert_eq!(op("DEALLOCATE \"all\""), SessionOp::Deallocate(b"all".to_vec()));
        assert_eq!(op("DISCARD ALL"), SessionOp::DiscardAll);
        assert_eq!(op("ROLLBACK"), SessionOp::Nothing);
        for sql in ["EXECUTE q(1)", "CREATE TABLE x AS EXECUTE q"] {
            assert_eq!(op(sql), SessionOp::Execute(b"q".to_vec()), "{sql}");
        }
        assert_eq!(op("EXPLAIN (ANALYZE) EXECUTE Q"), SessionOp::Explain(b"q".to_vec()));
        assert_eq!(op("EXPLAIN SELECT 1"), SessionOp::Nothing);
    }

    #[test]
    fn statements_can_be_put_behind_others() {
        let sql = "; RESET ALL -- ;\n ;; SELECT ';' /* ; */; SELECT 1 -- end";
        let ends = statement_ends(sql.as_bytes(), true);
        let behind: Vec<&str> = ends.iter().map(|end| &sql[*end..]).collect();
        assert_eq!(behind, ["; SELECT ';' /* ; */; SELECT 1 -- end", " SELECT 1 -- end", ""]);
        assert_eq!(ends.len(), ops(sql).len());
    }

    #[test]
    fn prepare_is_kept_as_the_client_said_it() {
        let all = "SELECT 1; PREPARE \"Q\" (int) AS /* c */ SELECT $1 ; SELECT 2";
        let SessionOp::Prepare { name, text, repeatable } = ops(all).remove(1) else { panic!("no PREPARE") };
        assert_eq!((name.as_slice(), repeatable), (&b"Q"[..], Repeatable::Yes));
        assert_eq!(String::from_utf8(text).unwrap(), "PREPARE \"Q\" (int) AS /* c */ SELECT $1");
        for sql in ["PREPARE q AS SELECT 'ä'", "PREPARE q AS SELECT '\\'", "PREPARE q AS SELECT setseed(1)"]
        {
            assert!(!op(sql).covers(PinReason::SqlPrepare), "{sql}");
        }
        assert_eq!(op("PREPARE TRANSACTION 'x'"), SessionOp::Other);
    }

    #[test]
    fn what_is_not_understood_is_other() {
        for sql in [
            "DO $$ $$",
            "LOAD 'x'",
            "CREATE TEMP VIEW x AS SELECT 1",
            "SELECT 1 INTO TEMP x",
            "SELECT set_config('a.b', f(), false)",
            "SELECT pg_advisory_lock(id) FROM t",
            "SELECT pg_advisory_lock(f(1))",
            "SET a.b = $1",
            "DECLARE c CURSOR WITH HOLD FOR SELECT pg_advisory_lock(1)",
        ] {
            assert_eq!(op(sql), SessionOp::Other, "{sql}");
        }
        for sql in
            ["SELECT 1", "INSERT INTO t VALUES (1)", "BEGIN", "TABLE t", "(SELECT 1)", "COPY t TO STDOUT"]
        {
            assert_eq!(op(sql), SessionOp::Nothing, "{sql}");
        }
        assert_eq!(session_ops(b"SELECT 'open", true), None);
    }

    #[test]
    fn a_string_is_followed_when_all_of_it_is() {
        let asyncpg = "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;";
        assert!(covers(&ops(asyncpg), PinReason::SessionSetting));
        assert!(covers(&ops("BEGIN; SET a.b = 1; SAVEPOINT s; SELECT 1; COMMIT"), PinReason::SessionSetting));
        assert!(!covers(&ops("SET a.b = 1; DO $$ $$"), PinReason::SessionSetting));
        assert!(!covers(&ops("SELECT 1"), PinReason::SessionSetting));
    }

    #[test]
    fn our_own_names_are_disguised_and_keep_their_length() {
        assert_eq!(disguised(b"pgweir_12").as_deref(), Some(&b"pgweir_b2"[..]));
        assert_eq!(disguised(b"pgweir_b2"), None);
        assert_eq!(disguised(b"mine"), None);
        let masked =
            |sql: &str| with_names_disguised(sql.as_bytes(), true).map(|sql| String::from_utf8(sql).unwrap());
        assert_eq!(masked("EXECUTE Pgweir_3('pgweir_3')").as_deref(), Some("EXECUTE pgweir_d('pgweir_3')"));
        assert_eq!(masked("DEALLOCATE \"pgweir_3\"").as_deref(), Some("DEALLOCATE \"pgweir_d\""));
        let prepare = "PREPARE pgweir_3 AS SELECT pgweir_4 FROM pgweir_5";
        assert_eq!(masked(prepare).as_deref(), Some("PREPARE pgweir_d AS SELECT pgweir_4 FROM pgweir_5"));
        assert_eq!(masked("SELECT pgweir_1 FROM pgweir_2"), None);
        assert!(!op("PREPARE pgweir_3 AS SELECT 1").covers(PinReason::SqlPrepare), "shared with nobody");
    }
}
