//! Texts longer than `max_parsed_statement`: to the primary, but what they do to the transaction and the
//! session is still read from their tokens, one at a time, nothing kept.

use crate::classify::Border;
use crate::functions::{self, FunctionCatalog, Safety};
use crate::lexer::{Kind, Token};
use crate::normal::Normal;
use crate::reason::Reason;
use crate::scan::names_what_is_the_primarys;
use crate::sequences::Sequences;
use crate::transaction;
use crate::verdict::{Misroute, PinReason, StatementKind, TxControl, Verdict};

/// Beyond this many bytes nothing is read but the first word (reading 1 MiB takes a few milliseconds, during
/// which a worker serves nobody else).
pub const MAX_SCANNED: usize = 1 << 20;

/// The verdict on a text that is too long to be parsed.
pub(crate) fn classify(
    sql: &[u8],
    standard_conforming_strings: bool,
    catalog: &dyn FunctionCatalog,
) -> Verdict {
    let mut tokens = Normal::new(sql, standard_conforming_strings);
    let verdict = Verdict::unparsed(Reason::TooLong);
    if sql.len() > MAX_SCANNED {
        let Some(first) = tokens.next() else { return Verdict::empty() };
        // One INSERT is by far the likeliest; of anything else only the server knows what it did.
        let tx = if kind_of(&first) == StatementKind::Insert { TxControl::None } else { TxControl::Mixed };
        return verdict.with_kind(kind_of(&first)).with_tx(tx);
    }
    let mut seen = Seen { misroute: hidden(catalog), ..Seen::default() };
    for token in tokens {
        seen.token(&token, catalog);
    }
    if seen.statements == 0 {
        return Verdict::empty();
    }
    let tx = if seen.controls { TxControl::Mixed } else { TxControl::None };
    let mut verdict =
        verdict.with_kind(seen.kind.unwrap_or(StatementKind::Other)).with_tx(tx).with_pin(seen.pin);
    verdict.misroute = seen.misroute;
    verdict.named_sequences = Sequences::Perhaps.and(seen.sequences);
    verdict.statements = seen.statements;
    verdict
}

fn kind_of(first: &Token<'_>) -> StatementKind {
    const KINDS: &[(&str, StatementKind)] = &[
        ("insert", StatementKind::Insert),
        ("update", StatementKind::Update),
        ("delete", StatementKind::Delete),
        ("select", StatementKind::Select),
        ("with", StatementKind::Select),
        ("values", StatementKind::Select),
        ("create", StatementKind::Ddl),
        ("alter", StatementKind::Ddl),
    ];
    KINDS.iter().find(|(word, _)| first.is(word)).map_or(StatementKind::Other, |(_, kind)| *kind)
}

/// What every statement may call unseen.
fn hidden(catalog: &dyn FunctionCatalog) -> Misroute {
    Misroute::silent_if(catalog.hidden() == Safety::PrimaryOnly)
}

/// What comes of a call of what the token names, if it is a name: a function of somebody's own counts for all of that
/// name.
fn misroute_of(token: &Token<'_>, catalog: &dyn FunctionCatalog) -> Misroute {
    if !matches!(token.kind, Kind::Word | Kind::Quoted) {
        return Misroute::Refused;
    }
    let name = functions::catalog_name(token);
    let own = std::str::from_utf8(&name)
        .ok()
        .and_then(|name| catalog.listed(None, name).or_else(|| catalog.function(None, name)));
    functions::misroute_of(&name).or(Misroute::silent_if(own == Some(Safety::PrimaryOnly)))
}

/// What has gone by.
#[derive(Default)]
struct Seen {
    border: Border,
    statements: u32,
    kind: Option<StatementKind>,
    controls: bool,
    pin: Option<PinReason>,
    /// The last token was a name whose call would pin.
    pins_if_called: Option<PinReason>,
    /// What comes of what was called on a standby.
    misroute: Misroute,
    /// The same, if the last token was a name that is called.
    misroute_if_called: Misroute,
    /// What of sequences it names.
    sequences: Sequences,
    /// A CREATE, or an INTO, whose next words may say TEMP.
    may_be_temporary: u8,
}

impl Seen {
    fn token(&mut self, token: &Token<'_>, catalog: &dyn FunctionCatalog) {
        let begins = self.border.is_empty();
        if self.border.ends_at(token) {
            self.border = Border::default();
            return;
        }
        if begins {
            self.begin(token);
        }
        if token.is_punct("(") {
            self.pin = self.pin.or(self.pins_if_called);
            self.misroute = self.misroute.or(self.misroute_if_called);
        }
        self.misroute_if_called = misroute_of(token, catalog);
        self.misroute = self.misroute.or(Misroute::silent_if(names_what_is_the_primarys(token, catalog)));
        if token.is_name() {
            self.sequences = self.sequences.and(functions::sequences_of(&functions::catalog_name(token)));
        }
        self.pins_if_called = match token.kind {
            Kind::Word | Kind::Quoted => match functions::catalog_name(token).as_slice() {
                b"set_config" => Some(PinReason::SessionSetting),
                name => functions::pin_of(name),
            },
            Kind::Bad => Some(PinReason::Unknown),
            _ => None,
        };
        if self.may_be_temporary > 0 && token.is_any(&["temp", "temporary", "pg_temp"]) {
            self.pin = self.pin.or(Some(PinReason::TempTable));
        }
        self.may_be_temporary = match token.kind {
            Kind::Word if token.is_any(&["create", "into"]) => 4,
            _ => self.may_be_temporary.saturating_sub(1),
        };
    }

    fn begin(&mut self, first: &Token<'_>) {
        self.statements = self.statements.saturating_add(1);
        self.kind = self.kind.or(Some(kind_of(first)));
        // SET and PREPARE may be of the transaction.
        self.controls |= first.is_any(transaction::VERBS) || first.is_any(&["set", "prepare"]);
        self.pin = self.pin.or(if first.is("set") {
            Some(PinReason::SessionSetting)
        } else if first.is("listen") {
            Some(PinReason::Listen)
        } else if first.is("prepare") {
            Some(PinReason::SqlPrepare)
        } else if first.is_any(&["do", "load", "declare"]) {
            Some(PinReason::Unknown)
        } else {
            None
        });
    }
}
