//! What a server's log says it ran: the second oracle beside `cluster_name`.

use std::path::Path;

use anyhow::{Context, Result};

/// `log_line_prefix` of every server; [`parse`] reads it.
pub(crate) const PREFIX: &str = "@%p|%d|%u|%a| ";

/// One statement that a server ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Process id of the backend.
    pub pid: u32,
    /// Database.
    pub database: String,
    /// Role.
    pub user: String,
    /// `application_name` when it was logged.
    pub application: String,
    /// True for the simple protocol, false for an Execute.
    pub simple: bool,
    /// Its text; further lines joined by `\n`.
    pub sql: String,
}

/// Reads the statements (`log_statement = all`) from a server log.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<Logged>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Vec<Logged> {
    let mut found: Vec<Logged> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        if let Some(more) = line.strip_prefix('\t') {
            if let (true, Some(last)) = (open, found.last_mut()) {
                last.sql.push('\n');
                last.sql.push_str(more);
            }
            continue;
        }
        let statement = parse_line(line);
        open = statement.is_some();
        found.extend(statement);
    }
    found
}

fn parse_line(line: &str) -> Option<Logged> {
    let rest = line.strip_prefix('@')?;
    let mut parts = rest.splitn(5, '|');
    let pid = parts.next()?.parse().ok()?;
    let [database, user, application] = [parts.next()?, parts.next()?, parts.next()?].map(str::to_owned);
    let message = parts.next()?.trim_start().strip_prefix("LOG:")?.trim_start();
    let (simple, sql) = if let Some(sql) = message.strip_prefix("statement: ") {
        (true, sql)
    } else {
        // `execute <unnamed>: SQL`, `execute name/portal: SQL`; a re-execution says `execute fetch from`.
        let named = message.strip_prefix("execute ")?;
        (false, named.split_once(": ")?.1)
    };
    Some(Logged { pid, database, user, application, simple, sql: sql.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_both_protocols_with_continuation_lines() {
        let log = "@12|bench|bench|psql| LOG:  statement: SELECT 1,\n\t2\n\
                   @13|bench|bench|| LOG:  execute s1: SELECT $1\n\
                   @13|bench|bench|| DETAIL:  parameters: $1 = '1'\n\
                   @9||||  LOG:  checkpoint starting\n";
        let found = parse(log);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].simple, found[0].sql.as_str()), (true, "SELECT 1,\n2"));
        assert_eq!((found[1].simple, found[1].sql.as_str(), found[1].pid), (false, "SELECT $1", 13));
    }
}
