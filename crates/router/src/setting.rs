//! What SET and its kin change in the session, so that it can be repeated on another backend.
//!
//! A change is kept as a statement to repeat, made from the tokens of the client's own: no value is
//! understood here. What cannot be repeated everywhere with the same meaning is not given, and pins.

use crate::lexer::{Kind, Lexer, Token};
use crate::ops::{SessionOp, covers, session_ops};
use crate::reason::Reason;
use crate::verdict::{Effect, PinReason, Verdict};

/// One change of a session's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A parameter gets a value.
    Set {
        /// The parameter, in lower case; `role` and `session_authorization` are parameters too.
        name: String,
        /// What to run to get it.
        statement: String,
    },
    /// A parameter gets its default.
    Reset {
        /// The parameter, in lower case.
        name: String,
    },
    /// A parameter gets its default until the transaction ends.
    ResetLocal {
        /// The parameter, in lower case.
        name: String,
    },
    /// RESET ALL.
    ResetAll,
}

/// Parameters that change how pgweir itself reads or routes what follows, or that are no settings at all.
const NOT_REPEATED: [&str; 6] = [
    "seed",
    "standard_conforming_strings",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
    "xmloption",
];

/// `SET standard_conforming_strings = on`: changes nothing where strings are so. Rails says it at each connect.
pub(crate) fn sets_standard_strings(tokens: &[Token<'_>]) -> bool {
    let rest = match tokens {
        [set, session, rest @ ..] if set.is("set") && session.is("session") => rest,
        [set, rest @ ..] if set.is("set") => rest,
        _ => return false,
    };
    let [name, sign, value] = rest else { return false };
    let on = value.is_any(&["on", "true", "yes"]) || matches!(value.text, b"'on'" | b"'true'" | b"1");
    name.is("standard_conforming_strings") && (sign.is("to") || sign.text == b"=") && on
}

/// The text of the value that a followed statement gives to its parameter: what stands behind the sign, or
/// `set_config`'s second argument; `None` when it is not one literal or word.
#[must_use]
pub fn setting_value(statement: &str) -> Option<String> {
    let tokens: Vec<Token<'_>> = Lexer::new(statement.as_bytes(), true).collect();
    if tokens.first()?.is("select") {
        let comma = tokens.iter().position(|token| token.is_punct(","))?;
        return text_of(tokens.get(comma + 1)?);
    }
    let sign = tokens.iter().position(|token| token.is("to") || token.text == b"=")?;
    let value = tokens.get(sign + 1..)?;
    match value {
        [one] => text_of(one),
        _ => None,
    }
}

/// The value that `SET LOCAL name = value` gives to the parameter `name` (in lower case).
#[must_use]
pub fn local_value(sql: &[u8], name: &str) -> Option<String> {
    let tokens: Vec<Token<'_>> = Lexer::new(sql, true).take(16).collect();
    let tokens = tokens.split(|token| token.is_punct(";")).next()?;
    let [set, local, rest @ ..] = tokens else { return None };
    if !(set.is("set") && local.is("local")) {
        return None;
    }
    let sign = rest.iter().position(|token| token.is("to") || token.text == b"=")?;
    match (parameter(rest.get(..sign)?)? == name, rest.get(sign + 1..)?) {
        (true, [value]) => text_of(value),
        _ => None,
    }
}

/// A word, or what a plain string holds.
fn text_of(token: &Token<'_>) -> Option<String> {
    let text = std::str::from_utf8(token.text).ok()?;
    match token.kind {
        Kind::Word | Kind::Quoted | Kind::Number => Some(text.to_owned()),
        Kind::String => Some(text.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'")),
        _ => None,
    }
}

/// What can be repeated on any backend does not pin the session to one: changes of settings, PREPARE.
#[must_use]
pub fn unpin_followed(verdict: Verdict, sql: &[u8], standard_conforming_strings: bool) -> Verdict {
    let Some(pin @ (PinReason::SessionSetting | PinReason::SqlPrepare)) = verdict.pin else { return verdict };
    // Others, as a set_config among many expressions, show by their pin only that they are to be looked at.
    let shows = verdict.reason == Reason::SessionControl
        || verdict.effect == Effect::Statements
        || verdict.statements > 1;
    let ops = if shows { session_ops(sql, standard_conforming_strings) } else { None };
    let followed = ops.is_some_and(|ops| covers(&ops, pin));
    Verdict { pin: verdict.pin.filter(|_| !followed), ..verdict }
}

pub(crate) fn savepoint(tokens: &[Token<'_>]) -> Option<SessionOp> {
    let (first, rest) = tokens.split_first()?;
    if first.is("savepoint") {
        return Some(SessionOp::Savepoint(name_of(rest)?));
    }
    if first.is("release") {
        return Some(SessionOp::Release(name_of(without(rest, "savepoint"))?));
    }
    if !first.is_any(&["rollback", "abort"]) {
        return None;
    }
    let rest = without(without(rest, "work"), "transaction");
    let (to, rest) = rest.split_first()?;
    to.is("to").then(|| name_of(without(rest, "savepoint")).map(SessionOp::RollbackTo)).flatten()
}

pub(crate) fn without<'t, 'a>(tokens: &'t [Token<'a>], word: &str) -> &'t [Token<'a>] {
    match tokens.split_first() {
        Some((first, rest)) if first.is(word) && !rest.is_empty() => rest,
        _ => tokens,
    }
}

fn name_of(tokens: &[Token<'_>]) -> Option<Vec<u8>> {
    match tokens {
        [name] if name.kind == Kind::Word => Some(name.text.to_ascii_lowercase()),
        [name] if name.kind == Kind::Quoted => Some(name.text.to_vec()),
        _ => None,
    }
}

/// The change that one statement makes: none for SET LOCAL of a value.
pub(crate) fn change(tokens: &[Token<'_>]) -> Option<Option<Change>> {
    let (first, rest) = tokens.split_first()?;
    if first.is("reset") {
        return reset(rest).map(Some);
    }
    if first.is("select") {
        return set_config(rest).map(Some);
    }
    if !first.is("set") {
        return None;
    }
    match rest.split_first() {
        Some((scope, after)) if scope.is("local") => Some(match assignment(tokens, after) {
            Some(Change::Reset { name }) => Some(Change::ResetLocal { name }),
            _ => None,
        }),
        Some((scope, after))
            if scope.is("session") && after.first().is_some_and(|next| next.is("authorization")) =>
        {
            set("session_authorization", tokens, after.get(1..)?).map(Some)
        }
        Some((scope, after)) if scope.is("session") => assignment(tokens, after).map(Some),
        _ => assignment(tokens, rest).map(Some),
    }
}

/// `SET SESSION CHARACTERISTICS AS TRANSACTION modes`: the defaults of transactions by another name.
pub(crate) fn characteristics(tokens: &[Token<'_>]) -> Option<Vec<Change>> {
    let [set, session, characteristics, as_, transaction, modes @ ..] = tokens else { return None };
    let words = set.is("set")
        && session.is("session")
        && characteristics.is("characteristics")
        && as_.is("as")
        && transaction.is("transaction");
    let modes = words.then(|| crate::transaction::modes(modes)).flatten()?;
    let switch = |on: bool| if on { "on" } else { "off" };
    let parts = [
        ("default_transaction_read_only", modes.read_only.map(switch)),
        ("default_transaction_deferrable", modes.deferrable.map(switch)),
        ("default_transaction_isolation", modes.isolation.map(crate::Isolation::as_str)),
    ];
    let change = |(name, value): (&str, Option<&str>)| {
        let statement = format!("SET {name} = '{}'", value?);
        Some(Change::Set { name: name.to_owned(), statement })
    };
    Some(parts.into_iter().filter_map(change).collect())
}

fn reset(rest: &[Token<'_>]) -> Option<Change> {
    match rest {
        [all] if all.is("all") => Some(Change::ResetAll),
        [session, authorization] if session.is("session") && authorization.is("authorization") => {
            Some(Change::Reset { name: "session_authorization".to_owned() })
        }
        [time, zone] if time.is("time") && zone.is("zone") => {
            Some(Change::Reset { name: "timezone".to_owned() })
        }
        name => Some(Change::Reset { name: parameter(name)? }),
    }
}

/// What follows SET and SET SESSION.
fn assignment(statement: &[Token<'_>], rest: &[Token<'_>]) -> Option<Change> {
    let (first, after) = rest.split_first()?;
    match after.split_first() {
        Some((zone, value)) if first.is("time") && zone.is("zone") => {
            return set("timezone", statement, value);
        }
        _ if first.is("role") => return set("role", statement, without_sign(after)),
        _ if first.is("schema") => return set("search_path", statement, after),
        _ if first.is("names") && after.is_empty() => {
            return Some(Change::Reset { name: "client_encoding".to_owned() });
        }
        _ if first.is("names") => return set("client_encoding", statement, after),
        _ => {}
    }
    let sign = rest.iter().position(|token| token.is("to") || token.text == b"=")?;
    let (name, value) = rest.split_at_checked(sign)?;
    set(&parameter(name)?, statement, value.get(1..)?)
}

fn without_sign<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    match tokens.split_first() {
        Some((sign, rest)) if sign.is("to") || sign.text == b"=" => rest,
        _ => tokens,
    }
}

fn set(name: &str, statement: &[Token<'_>], value: &[Token<'_>]) -> Option<Change> {
    let name = name.to_owned();
    match value {
        [] => None,
        [word] if word.is("default") => Some(Change::Reset { name }),
        [word] if name == "timezone" && word.is("local") => Some(Change::Reset { name }),
        _ => Some(Change::Set { name, statement: rebuilt(statement)? }),
    }
}

/// `SELECT set_config('name', 'value', false)` and nothing else.
fn set_config(rest: &[Token<'_>]) -> Option<Change> {
    let call = match rest {
        [schema, dot, call @ ..] if schema.is("pg_catalog") && dot.is_punct(".") => call,
        call => call,
    };
    let [function, open, name, comma, value, second, local, close] = call else { return None };
    let shape =
        function.is("set_config") && open.is_punct("(") && comma.is_punct(",") && second.is_punct(",");
    if !(shape && value.kind == Kind::String && close.is_punct(")")) {
        return None;
    }
    let text = name.text.strip_prefix(b"'")?.strip_suffix(b"'")?.to_ascii_lowercase();
    let name = String::from_utf8(text).ok().filter(|name| is_repeated(name))?;
    let arguments = rebuilt(&[*value])?;
    local.is("false").then(|| Change::Set {
        statement: format!("SELECT pg_catalog.set_config('{name}',{arguments},false)"),
        name,
    })
}

/// A parameter's name of one or more parts.
fn parameter(tokens: &[Token<'_>]) -> Option<String> {
    let mut name = String::new();
    for (position, token) in tokens.iter().enumerate() {
        let fits = if position % 2 == 0 { token.is_name() } else { token.is_punct(".") };
        name.push_str(std::str::from_utf8(token.text).ok().filter(|_| fits)?);
    }
    name.make_ascii_lowercase();
    (tokens.len() % 2 == 1 && is_repeated(&name)).then_some(name)
}

fn is_repeated(name: &str) -> bool {
    let plain = name.split('.').all(|part| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$'))
    });
    plain && !NOT_REPEATED.contains(&name)
}

/// The statement that the tokens make. None when it could mean something else where other settings hold.
fn rebuilt(tokens: &[Token<'_>]) -> Option<String> {
    let mut statement = String::new();
    for token in tokens {
        let text = std::str::from_utf8(token.text).ok()?;
        let portable = match token.kind {
            Kind::Bad | Kind::Param => false,
            // A backslash means what standard_conforming_strings says.
            Kind::String => !text.contains('\\') && text.is_ascii(),
            _ => text.is_ascii(),
        };
        if !portable {
            return None;
        }
        if !statement.is_empty() && token.text != b"." && !statement.ends_with('.') {
            statement.push(' ');
        }
        match token.kind {
            Kind::Quoted => statement.extend(["\"", text, "\""]),
            _ => statement.push_str(text),
        }
    }
    Some(statement)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the statements of `sql` change, when they all do.
    fn changes(sql: &str) -> Option<Vec<Change>> {
        let ops = session_ops(sql.as_bytes(), true)?.into_iter();
        let all = ops.map(|op| if let SessionOp::Changes(changes) = op { Some(changes) } else { None });
        all.collect::<Option<Vec<_>>>().map(|all| all.concat())
    }

    fn one(sql: &str, name: &str, statement: &str) {
        let expected = Change::Set { name: name.to_owned(), statement: statement.to_owned() };
        assert_eq!(changes(sql), Some(vec![expected]), "{sql}");
    }

    fn reset_of(sql: &str, name: &str) {
        assert_eq!(changes(sql), Some(vec![Change::Reset { name: name.to_owned() }]), "{sql}");
    }

    #[test]
    fn set_is_kept_as_the_client_said_it() {
        one("SET search_path TO a, \"B c\" , 'd'", "search_path", "SET search_path TO a , \"B c\" , 'd'");
        one("set SESSION Work_Mem = '64MB';", "work_mem", "set SESSION Work_Mem = '64MB'");
        one("SET app.x='it''s'", "app.x", "SET app.x = 'it''s'");
        one("/* c */ SET TIME ZONE 'UTC'", "timezone", "SET TIME ZONE 'UTC'");
        one(
            "SET TIME ZONE INTERVAL '1' HOUR TO MINUTE",
            "timezone",
            "SET TIME ZONE INTERVAL '1' HOUR TO MINUTE",
        );
        one("SET TIMEZONE TO -7.5", "timezone", "SET TIMEZONE TO - 7.5");
        one("SET NAMES 'LATIN1'", "client_encoding", "SET NAMES 'LATIN1'");
        one("SET SCHEMA 's'", "search_path", "SET SCHEMA 's'");
        one("SET ROLE boss", "role", "SET ROLE boss");
        one("SET ROLE NONE", "role", "SET ROLE NONE");
        one("SET SESSION AUTHORIZATION 'bob'", "session_authorization", "SET SESSION AUTHORIZATION 'bob'");
        one(
            "SELECT set_config('App.X', 'v', false)",
            "app.x",
            "SELECT pg_catalog.set_config('app.x','v',false)",
        );
    }

    #[test]
    fn defaults_are_resets() {
        reset_of("RESET work_mem", "work_mem");
        reset_of("SET work_mem TO DEFAULT", "work_mem");
        reset_of("SET TIME ZONE LOCAL", "timezone");
        reset_of("RESET TIME ZONE", "timezone");
        reset_of("RESET ROLE", "role");
        reset_of("SET SESSION AUTHORIZATION DEFAULT", "session_authorization");
        reset_of("RESET SESSION AUTHORIZATION", "session_authorization");
        assert_eq!(changes("RESET ALL"), Some(vec![Change::ResetAll]));
    }

    #[test]
    fn several_in_one_string_and_local_ones() {
        assert_eq!(changes("SET LOCAL work_mem = 1"), Some(vec![]));
        let local = Change::ResetLocal { name: "timezone".to_owned() };
        assert_eq!(changes("SET LOCAL TIME ZONE DEFAULT"), Some(vec![local]));
        assert_eq!(changes("SET a.b = 1; RESET a.c;; SET LOCAL x.y = 2").map(|all| all.len()), Some(2));
        assert_eq!(changes(""), Some(vec![]));
    }

    #[test]
    fn what_cannot_be_repeated_is_not_given() {
        for sql in [
            "SET a.b = $1",
            "SET a.b = 'back\\slash'",
            "SET a.b = 'é'",
            "SET standard_conforming_strings = off",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ NOTHING",
            "SET XML OPTION DOCUMENT",
            "SET SEED TO 0.5",
            "SET x FROM CURRENT",
            "SELECT set_config('a.b', 'v', true)",
            "SELECT set_config('a.b', 'v', false), 1",
            "SELECT set_config(n, 'v', false) FROM t",
            "SET",
            "SET x =",
            "RESET",
            "UPDATE t SET a = 1",
        ] {
            assert_eq!(changes(sql), None, "{sql}");
        }
    }

    #[test]
    fn characteristics_are_defaults() {
        let modes = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        let statements: Vec<String> = changes(modes)
            .unwrap()
            .into_iter()
            .map(|change| match change {
                Change::Set { statement, .. } => statement,
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            "SET default_transaction_read_only = 'on'",
            "SET default_transaction_isolation = 'repeatable read'",
        ];
        assert_eq!(statements, expected);
    }

    #[test]
    fn values_are_read_back() {
        assert_eq!(setting_value("SET a.b = 'it''s'").as_deref(), Some("it's"));
        assert_eq!(setting_value("SET SESSION x TO on").as_deref(), Some("on"));
        assert_eq!(setting_value("SELECT pg_catalog.set_config('a.b','v',false)").as_deref(), Some("v"));
        assert_eq!(setting_value("SET x TO a , b"), None);
        assert_eq!(
            local_value(b"SET LOCAL pgweir.route TO standby;", "pgweir.route").as_deref(),
            Some("standby")
        );
        assert_eq!(local_value(b"SET pgweir.route TO standby", "pgweir.route"), None);
        assert_eq!(local_value(b"SET LOCAL x.y = 1", "pgweir.route"), None);
    }

    #[test]
    fn what_is_followed_does_not_pin() {
        let pin = |sql: &str| {
            let verdict = crate::classify(sql.as_bytes(), &crate::ParseOptions::default());
            unpin_followed(verdict, sql.as_bytes(), true).pin
        };
        assert_eq!(pin("SET search_path = ''"), None);
        assert_eq!(pin("SET ROLE boss"), None);
        assert_eq!(pin("SET default_transaction_isolation = 'serializable'"), None);
        assert_eq!(pin("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"), None);
        assert_eq!(pin("SET standard_conforming_strings = off"), Some(PinReason::SessionSetting));
        assert_eq!(pin("LISTEN x"), Some(PinReason::Listen));
    }
}
