//! What `pgweir route` and `PGWEIR EXPLAIN` print about a text.

use crate::classify::{ParseOptions, classify_with};
use crate::decide::{Policy, Target, TxView, decide};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::functions::NoCatalog;
use crate::lexer::Lexer;
use crate::normal::Normal;
use crate::query;
use crate::reason::Reason;
use crate::verdict::Verdict;

/// All that the router knows about a text, taken as sent in autocommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What the text says about itself.
    pub verdict: Verdict,
    /// Under which statements of its kind are counted.
    pub fingerprint: Fingerprint,
    /// The text with literals left out, as the fingerprint sees it.
    pub normalized: String,
    /// Where it would go outside a transaction, load balancing on.
    pub target: Target,
    /// Why.
    pub reason: Reason,
}

/// The statement that `PGWEIR EXPLAIN statement` asks about.
#[must_use]
pub fn explained(sql: &[u8]) -> Option<&[u8]> {
    let mut lexer = Lexer::new(sql, true);
    let (first, second) = (lexer.next()?, lexer.next()?);
    (first.is("pgweir") && second.is("explain")).then(|| lexer.rest())
}

/// The fingerprint of a text, and the text with literals left out, cut to `max` bytes.
#[must_use]
pub fn normalized(sql: &[u8], max: usize) -> (Fingerprint, String) {
    // A token is at least a byte: more of them are cut off anyway.
    let tokens: Vec<_> = Normal::new(sql, true).take(max).collect();
    let mut text = query::canonical(&tokens);
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.truncate(end);
    text.shrink_to_fit();
    (fingerprint(sql, true), text)
}

/// Explains a text.
#[must_use]
pub fn explain(sql: &[u8], options: &ParseOptions) -> Explanation {
    let verdict = classify_with(sql, options, &NoCatalog);
    let (target, reason) = decide(&verdict, &TxView::default(), &Policy::default());
    let tokens: Vec<_> = Normal::new(sql, options.standard_conforming_strings).collect();
    Explanation {
        verdict,
        fingerprint: fingerprint(sql, options.standard_conforming_strings),
        normalized: query::canonical(&tokens),
        target,
        reason,
    }
}
