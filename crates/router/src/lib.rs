//! Where a statement goes, and why.
//!
//! A text becomes tokens by PostgreSQL's lexical rules ([`lexer`]), the tokens a [`Fingerprint`] (literals
//! left out) and, by way of a cache or sqlparser, a [`Verdict`]; [`decide`](decide()) turns that and the
//! transaction into a [`Target`], and a [`Picker`] the target into a node.
//!
//! Invariants:
//! - What is not understood goes to the primary. A read is called one only when the tokens show nothing that
//!   writes, sqlparser understands all of it, and every function and operator in it is known to be safe.
//! - One fingerprint, one verdict: the classifier sees nothing of a text that the fingerprint leaves out.
//! - Text is bytes; nothing assumes UTF-8. Nothing here panics, whatever the bytes.
//! - No clock, network, file or randomness; nothing here changes the state of the cluster.
//!
//! Left out: what only the catalog knows (user functions, operators, casts, views, unlogged tables) comes in
//! through [`FunctionCatalog`]; lag and consistency are the caller's.

mod body;
mod builtins;
pub mod cache;
mod call;
pub mod catalog;
pub mod classify;
pub mod decide;
mod exact;
pub mod explain;
pub mod fingerprint;
pub mod functions;
mod handed;
mod hint;
mod leaves;
mod lexer;
mod made;
mod normal;
pub mod ops;
mod oversize;
pub mod own;
mod parameters;
pub mod pick;
mod planned;
mod query;
pub mod reason;
mod scan;
mod sequences;
mod session;
pub mod setting;
mod state;
mod statement;
mod suspects;
mod timeless;
mod transaction;
pub mod verdict;

pub use body::Body;
pub use cache::Classifier;
pub use call::function_call;
pub use catalog::{Builder, Catalog, ListedFunctions, Loaded, Object, Origin};
pub use classify::{ParseOptions, classify, classify_with};
pub use decide::{Policy, Redirect, Target, TxView, decide, may_run_early};
pub use explain::{Explanation, explain, explained, normalized};
pub use fingerprint::{Fingerprint, fingerprint};
pub use functions::{FunctionCatalog, NoCatalog, Safety};
pub use leaves::Leaves;
pub use ops::{
    RESERVED_PREFIX, Repeatable, SessionOp, StateOp, covers, disguised, session_ops, statement_ends,
    with_names_disguised,
};
pub use oversize::MAX_SCANNED;
pub use parameters::parameters;
pub use pick::{Algorithm, Choice, Loads, PeakEwma, Picker};
pub use reason::Reason;
pub use sequences::Sequences;
pub use setting::{Change, local_value, setting_value, unpin_followed};
pub use timeless::is_timeless;
pub use verdict::{
    Access, Changes, Effect, Hint, Isolation, Misroute, PinReason, StatementKind, TxControl, TxMode, Verdict,
};
