//! Which functions and operators a standby answers just as well, and which leave state in the session.
//!
//! The tables in [`crate::builtins`] are made from PostgreSQL's catalog by `tools/builtins.sh`. What is not
//! in them is not built in; a [`FunctionCatalog`] may know it.

use crate::builtins;
use crate::leaves::Leaves;
use crate::lexer::{Kind, Token};
use crate::sequences::Sequences;
use crate::verdict::{Access, Misroute, PinReason};

/// Whether a standby may run a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Safety {
    /// Writes nothing and gives the same answer: a standby may run it.
    AnyNode,
    /// Belongs to the primary.
    PrimaryOnly,
}

impl Safety {
    pub(crate) fn primary_if(primary: bool) -> Self {
        if primary { Self::PrimaryOnly } else { Self::AnyNode }
    }

    /// The more careful of the two.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self::primary_if(self == Self::PrimaryOnly || other == Self::PrimaryOnly)
    }
}

/// What is known about the database a statement runs in. `None` = unknown, hence primary. Names are as the
/// catalog has them (folded, unquoted).
pub trait FunctionCatalog {
    /// What the configuration says of a function; it goes before all else.
    fn listed(&self, _schema: Option<&str>, _name: &str) -> Option<Safety> {
        None
    }
    /// A function of that name that is not built in; all its overloads count.
    fn function(&self, schema: Option<&str>, name: &str) -> Option<Safety>;
    /// An operator of that name that is not built in.
    fn operator(&self, schema: Option<&str>, name: &str) -> Option<Safety>;
    /// Reading a relation of that name. Without a catalog relations are taken for tables.
    fn relation(&self, _schema: Option<&str>, _name: &str) -> Option<Safety> {
        Some(Safety::AnyNode)
    }
    /// Whether it knows what there is.
    fn is_loaded(&self) -> bool {
        true
    }
    /// Converting to a type of that name.
    fn type_name(&self, _name: &str) -> Safety {
        Safety::AnyNode
    }
    /// `row.name`, which may be a call.
    fn field(&self, _name: &str) -> Safety {
        Safety::AnyNode
    }
    /// `value.name` of a value that is no row, which is a call.
    fn scalar_field(&self, _name: &str) -> Safety {
        Safety::AnyNode
    }
    /// What any read may call with nothing in its text to show for it (implicit casts, `=`).
    fn hidden(&self) -> Safety {
        Safety::AnyNode
    }
    /// What mentioning something of that name may leave in the session, as far as its text does not show it.
    fn named(&self, _name: &str, _access: Access) -> Leaves {
        Leaves::Nothing
    }
    /// What any statement may leave so, whatever it names.
    fn unseen(&self) -> Leaves {
        Leaves::Nothing
    }
    /// What any definition may leave so (event triggers).
    fn definitions(&self) -> Leaves {
        Leaves::Nothing
    }
    /// Changes whenever an answer may have changed; cached verdicts of another generation are not used.
    fn generation(&self) -> u64;
}

/// Nothing is known beyond what is built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoCatalog;

impl FunctionCatalog for NoCatalog {
    fn function(&self, _: Option<&str>, _: &str) -> Option<Safety> {
        None
    }

    fn operator(&self, _: Option<&str>, _: &str) -> Option<Safety> {
        None
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// A built-in function by its catalog name.
pub(crate) fn builtin(name: &[u8]) -> Option<Safety> {
    // A client that asks wants to know whether it may write here, and it may (`target_session_attrs`).
    if name == b"pg_is_in_recovery" {
        return Some(Safety::PrimaryOnly);
    }
    if contains(builtins::PRIMARY_ONLY, name) {
        return Some(Safety::PrimaryOnly);
    }
    contains(builtins::ANY_NODE, name).then_some(Safety::AnyNode)
}

/// Names like those of built-in functions that say less of what they do than they should: STABLE ones that a standby
/// refuses, or answers differently. For what a newer server has.
pub(crate) fn is_suspect(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "advisory",
        "backup",
        "cancel",
        "conf",
        "export",
        "notify",
        "promote",
        "recovery",
        "replication",
        "reset",
        "slot",
        "snapshot",
        "sync",
        "terminate",
        "wal",
        "xact",
        "xid",
        "lsn",
    ];
    const FAMILIES: &[&str] = &["lo_", "txid_", "binary_upgrade_"];
    let family = FAMILIES.iter().any(|prefix| name.starts_with(prefix));
    family || (name.starts_with("pg_") && PARTS.iter().any(|part| name.contains(part)))
}

/// Functions of the primary that planning a statement may call: they are not VOLATILE (`unsafe` in
/// `tools/builtins.sh`).
pub(crate) fn runs_in_planning(name: &[u8]) -> bool {
    const NOT_VOLATILE: &[&str] = &[
        "database_to_xml",
        "database_to_xml_and_xmlschema",
        "pg_current_xact_id",
        "pg_current_xact_id_if_assigned",
        "pg_get_publication_tables",
        "pg_get_replication_slots",
        "pg_walfile_name",
        "pg_walfile_name_offset",
        "schema_to_xml",
        "schema_to_xml_and_xmlschema",
        "table_to_xml",
        "table_to_xml_and_xmlschema",
        "txid_current",
        "txid_current_if_assigned",
    ];
    contains(NOT_VOLATILE, name)
}

/// A built-in operator.
pub(crate) fn is_builtin_operator(name: &[u8]) -> bool {
    // `!=` is the lexer's alias of `<>`, `=>` names an argument.
    matches!(name, b"!=" | b"=>") || contains(builtins::OPERATORS, name)
}

/// A name as the catalog has it: words folded to lower case (ASCII only), quotes undone.
pub(crate) fn catalog_name(token: &Token<'_>) -> Vec<u8> {
    match token.kind {
        Kind::Quoted if token.text.contains(&b'"') => {
            let mut name = Vec::with_capacity(token.text.len());
            let mut bytes = token.text.iter();
            while let Some(byte) = bytes.next() {
                name.push(*byte);
                if *byte == b'"' {
                    let _ = bytes.next();
                }
            }
            name
        }
        Kind::Word => token.text.to_ascii_lowercase(),
        _ => token.text.to_vec(),
    }
}

/// Keywords that a parenthesis may follow without a call: those that cannot be function names, and those
/// that stand before a parenthesis in a query's grammar. In the latter places the parsed tree tells calls.
pub(crate) fn is_syntax(token: &Token<'_>) -> bool {
    /// Not reserved, yet part of the grammar before a parenthesis.
    const GRAMMAR: &[&str] = &[
        "by",
        "cube",
        "escape",
        "filter",
        "first",
        "ilike",
        "is",
        "join",
        "like",
        "materialized",
        "next",
        "operator",
        "over",
        "passing",
        "rollup",
        "second",
        "sets",
        "varying",
        "zone",
    ];
    is_reserved(token) || (token.kind == Kind::Word && contains(GRAMMAR, &token.text.to_ascii_lowercase()))
}

/// Keywords that cannot be the name of a function.
pub(crate) fn is_reserved(token: &Token<'_>) -> bool {
    token.kind == Kind::Word && contains(builtins::NOT_CALLABLE, &token.text.to_ascii_lowercase())
}

/// What calling a built-in pins the session for. `set_config` is not here: its last argument decides.
pub(crate) fn pin_of(name: &[u8]) -> Option<PinReason> {
    match name {
        b"pg_advisory_lock"
        | b"pg_advisory_lock_shared"
        | b"pg_try_advisory_lock"
        | b"pg_try_advisory_lock_shared" => Some(PinReason::AdvisoryLock),
        b"lo_open" => Some(PinReason::LargeObject),
        b"setseed" => Some(PinReason::SessionSetting),
        b"pg_replication_origin_session_setup" => Some(PinReason::Unknown),
        _ => None,
    }
}

/// What calling a built-in does with what the server remembers of sequences.
pub(crate) fn sequences_of(name: &[u8]) -> Sequences {
    match name {
        b"nextval" | b"setval" => Sequences::Advances,
        b"currval" | b"lastval" => Sequences::Asks,
        _ => Sequences::Nothing,
    }
}

/// Built-in functions that a standby runs with a wrong effect, beside `pg_stat_reset*`; sorted.
const SILENT: &[&str] = &[
    "lo_export",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_advisory_unlock",
    "pg_advisory_unlock_all",
    "pg_advisory_unlock_shared",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_backup_start",
    "pg_backup_stop",
    "pg_cancel_backend",
    "pg_copy_logical_replication_slot",
    "pg_copy_physical_replication_slot",
    "pg_create_logical_replication_slot",
    "pg_create_physical_replication_slot",
    "pg_drop_replication_slot",
    "pg_export_snapshot",
    "pg_log_backend_memory_contexts",
    "pg_logical_slot_get_binary_changes",
    "pg_logical_slot_get_changes",
    "pg_promote",
    "pg_reload_conf",
    "pg_replication_slot_advance",
    "pg_rotate_logfile",
    "pg_rotate_logfile_old",
    "pg_sync_replication_slots",
    "pg_terminate_backend",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "pg_wal_replay_pause",
    "pg_wal_replay_resume",
    "setseed",
];

/// What comes of calling a built-in on a standby. `set_config` is not here: its last argument decides.
///
/// Refused are those that write or need a transaction id (`nextval`, `lo_create`, `pg_notify`), and those that
/// PostgreSQL says cannot run during recovery (`pg_switch_wal`, `pg_replication_origin_create`).
pub(crate) fn misroute_of(name: &[u8]) -> Misroute {
    let silent = contains(SILENT, name) || name.starts_with(b"pg_stat_reset");
    if silent { Misroute::Silent } else { Misroute::Refused }
}

fn contains(sorted: &[&str], name: &[u8]) -> bool {
    sorted.binary_search_by(|entry| entry.as_bytes().cmp(name)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_disjoint() {
        for table in [builtins::PRIMARY_ONLY, builtins::ANY_NODE, builtins::OPERATORS, builtins::NOT_CALLABLE]
        {
            assert!(table.is_sorted_by(|a, b| a.as_bytes() < b.as_bytes()));
            assert!(!table.is_empty());
        }
        let both = builtins::ANY_NODE.iter().find(|name| builtins::PRIMARY_ONLY.contains(name));
        assert_eq!(both, None);
        assert!(SILENT.is_sorted());
        for name in ["txid_current", "pg_current_xact_id", "table_to_xml", "database_to_xml_and_xmlschema"] {
            assert!(runs_in_planning(name.as_bytes()), "{name}");
        }
        let elsewhere = SILENT.iter().find(|name| !builtins::PRIMARY_ONLY.contains(name));
        assert_eq!(elsewhere, None, "what a standby does wrongly belongs to the primary");
    }

    #[test]
    fn volatility_alone_does_not_decide() {
        for name in [
            "nextval",
            "txid_current",
            "pg_current_xact_id",
            "set_config",
            "pg_export_snapshot",
            "pg_advisory_xact_lock",
            "pg_notify",
            "lo_create",
            "pg_stat_reset",
            "pg_reload_conf",
            "lastval",
            "pg_terminate_backend",
            "pg_switch_wal",
            "pg_current_wal_lsn",
            "pg_create_restore_point",
            "pg_logical_emit_message",
            "query_to_xml",
            "pg_walfile_name",
            "pg_backup_start",
            "currval",
            "pg_is_in_recovery",
            "table_to_xml",
            "database_to_xml_and_xmlschema",
            "pg_relation_size",
        ] {
            assert_eq!(builtin(name.as_bytes()), Some(Safety::PrimaryOnly), "{name}");
        }
        for name in [
            "random",
            "clock_timestamp",
            "gen_random_uuid",
            "pg_sleep",
            "lower",
            "pg_last_wal_replay_lsn",
            "count",
            "generate_series",
            "current_setting",
        ] {
            assert_eq!(builtin(name.as_bytes()), Some(Safety::AnyNode), "{name}");
        }
        assert_eq!(builtin(b"my_function"), None);
    }

    #[test]
    fn what_is_new_is_judged_by_its_name_too() {
        for name in
            ["pg_newer_xact_id", "txid_newer", "lo_newer", "pg_stat_reset_newer", "pg_newer_wal_summary"]
        {
            assert!(is_suspect(name), "{name}");
        }
        for name in ["json_newer", "array_newer", "pg_get_newer", "conformal", "slot_of"] {
            assert!(!is_suspect(name), "{name}");
        }
    }
}
