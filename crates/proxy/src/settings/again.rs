//! Start-up values that a reset has taken away are given back by a statement behind it.
//!
//! It is SET wherever that means the same as the start-up packet did: unlike `set_config` it is no query, so SET
//! TRANSACTION may still follow, and it answers with nothing but its tag.

use std::fmt::Write;

use super::Literal;

/// How long a value is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// For the session.
    Session,
    /// For the transaction.
    Local,
}

/// Parameters whose value is a list of names, each of which SET quotes (`GUC_LIST_QUOTE`).
const LISTS: [&str; 4] =
    ["local_preload_libraries", "search_path", "session_preload_libraries", "temp_tablespaces"];

/// The statement that gives `name` that value.
pub(super) fn statement(name: &str, value: &str, scope: Scope) -> String {
    let local = scope == Scope::Local;
    let values = if LISTS.contains(&name) { list(value) } else { Some(Literal(value).to_string()) };
    let Some(values) = values else {
        return format!("SELECT pg_catalog.set_config('{name}',{},{local})", Literal(value));
    };
    let quoted: Vec<String> = name.split('.').map(|part| format!("\"{part}\"")).collect();
    format!("SET {}{}={values}", if local { "LOCAL " } else { "" }, quoted.join("."))
}

/// The elements of a list as SET wants them; `None` when SET would write it otherwise than it stands.
fn list(value: &str) -> Option<String> {
    let names: Vec<String> = value.split(", ").map(element).collect::<Option<_>>()?;
    let mut literals = String::new();
    for name in names {
        // Writing to a String cannot fail.
        let _ = write!(literals, "{}{}", if literals.is_empty() { "" } else { "," }, Literal(&name));
    }
    Some(literals)
}

/// A name as `quote_identifier` writes it, keywords aside: in quotes if and only if it needs them.
fn element(text: &str) -> Option<String> {
    let plain = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && name
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
    };
    if plain(text) {
        return Some(text.to_owned());
    }
    let name = text.strip_prefix('"')?.strip_suffix('"')?;
    (!name.is_empty() && !name.contains(['"', ',']) && !plain(name)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(name: &str, value: &str) -> String {
        statement(name, value, Scope::Session)
    }

    #[test]
    fn what_set_says_is_what_the_packet_said() {
        assert_eq!(again("work_mem", "5MB"), "SET \"work_mem\"=E'5MB'");
        assert_eq!(again("app.user", "it's"), "SET \"app\".\"user\"=E'it''s'");
        assert_eq!(again("datestyle", "ISO, DMY"), "SET \"datestyle\"=E'ISO, DMY'");
        assert_eq!(statement("timezone", "UTC", Scope::Local), "SET LOCAL \"timezone\"=E'UTC'");
        assert_eq!(again("search_path", "app"), "SET \"search_path\"=E'app'");
        assert_eq!(again("search_path", "\"$user\", app"), "SET \"search_path\"=E'$user',E'app'");
    }

    #[test]
    fn a_list_that_set_would_write_otherwise_is_given_as_it_stands() {
        for value in ["", "a,b", "A", "\"a\"", "a, ", "\"a\"\"b\"", "\"a, b\"", "1a"] {
            let sql = format!("SELECT pg_catalog.set_config('search_path',{},false)", Literal(value));
            assert_eq!(again("search_path", value), sql);
        }
    }
}
