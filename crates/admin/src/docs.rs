//! docs/admin.md, made from the tables.

use protocol::table::oid;

use crate::commands::{COMMANDS, Command, OF_SESSIONS, Place};
use crate::http::RESOURCES;
use crate::probes::SETTINGS;

const HEAD: &str = "\
# Administration

This page is made from the tables in `crates/admin`; a test keeps them equal.

## SQL console

Connect to the database `pgweir` (or `pgbouncer`, for programs that know that name) on pgweir's own port, as one
of `admin_users` or `stats_users`. Every driver will do: simple and extended protocol, text and binary results.
The commands marked *any session* are understood in every database, the others there after the word `PGWEIR`
(`PGWEIR SHOW POOLS`). Case, comments and a trailing semicolon do not matter. All times are UTC.

`stats` commands are for `stats_users` and `admin_users`, `admin` commands for `admin_users` only. Whoever lacks the
right gets error 42501; an unknown command is error 42601.

| command | who | where | |
|---|---|---|---|
";

const COLUMNS: &str = "
## Columns

Columns that Pgpool-II or PgBouncer have stand in their order and with PgBouncer's types. What is not known is null or
empty. PgBouncer's pools are per database and user; so are the rows of `SHOW POOLS`, added up over the nodes. Its
`ptr` and `link` hold the numbers of sessions (`c7`) and backends (`s12`). Counters begin with the process.

";

const PROBES: &str = "
## What drivers ask first

In the admin database these are answered, so that drivers, pools and ORMs can connect: `BEGIN`, `COMMIT`, `ROLLBACK`,
`DISCARD ALL`, `SELECT` of one number, string or of `version()`, `current_database()`, `current_schema()`,
`current_user`, `session_user`, `pg_is_in_recovery()`, `pg_backend_pid()`, `pg_advisory_unlock_all()`; `CLOSE ALL`, `UNLISTEN *`;
`SET` and `RESET` of PostgreSQL's settings, which change nothing (a name that neither PostgreSQL nor the configuration has is an
error; so is `RESET` of a configuration key: `RELOAD` gives it the file's value again); and `SHOW` of:

";

const HTTP: &str = "
## HTTP

On `metrics_listen` (port 9719), GET and HEAD. There is no authentication: keep it on a trusted address.

| path | |
|---|---|
";

/// The whole page.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(HEAD);
    COMMANDS.iter().for_each(|command| line(&mut out, &command_row(command)));
    OF_SESSIONS.iter().for_each(|command| {
        line(&mut out, &format!("| `{}` | anyone | sessions | {} |", command.usage, command.help));
    });
    out.push_str(COLUMNS);
    let with_columns = COMMANDS.iter().filter(|command| !command.columns.is_empty());
    with_columns.for_each(|command| line(&mut out, &columns(command)));
    out.push_str(PROBES);
    line(&mut out, "- `server_version`, `transaction isolation level`, `time zone`");
    SETTINGS.iter().for_each(|(name, value)| line(&mut out, &format!("- `{name}`: `{value}`")));
    out.push_str(HTTP);
    RESOURCES
        .iter()
        .for_each(|resource| line(&mut out, &format!("| `{}` | {} |", resource.path, resource.help)));
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn command_row(command: &Command) -> String {
    let place = match command.place {
        Place::AnySession => "any session",
        Place::AdminDatabase => "admin database",
    };
    format!("| `{}` | {} | {place} | {} |", command.usage(), command.rights.as_str(), command.help)
}

fn columns(command: &Command) -> String {
    let columns: Vec<String> =
        command.columns.iter().map(|(name, oid)| format!("{name} {}", type_name(*oid))).collect();
    format!("- `{}`: {}", command.words, columns.join(", "))
}

fn type_name(oid: u32) -> &'static str {
    match oid {
        oid::BOOL => "boolean",
        oid::INT4 => "integer",
        oid::INT8 => "bigint",
        oid::FLOAT8 => "double precision",
        oid::NUMERIC => "numeric",
        oid::TIMESTAMPTZ => "timestamptz",
        _ => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_from_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin.md");
        if std::env::var_os("PGWEIR_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text == markdown(), "docs/admin.md differs: run this test with PGWEIR_WRITE_DOCS=1");
    }
}
