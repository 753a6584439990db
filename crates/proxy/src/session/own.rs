//! `SHOW` of pgweir's own parameters: the console, and what it does not know of the session that asks.

use config::Consistency;
use protocol::console::{Answer, Caller, Console, Pending};
use protocol::error::PgError;
use protocol::table::{Cell, Column, Table};

/// A console for one session.
pub(super) struct SessionConsole<'a> {
    pub(super) console: &'a dyn Console,
    /// The level that holds for it.
    pub(super) consistency: Consistency,
}

impl SessionConsole<'_> {
    fn shown(&self, sql: &str) -> Option<Table> {
        let name = router::own::shown(sql.as_bytes()).filter(|name| *name == router::own::CONSISTENCY)?;
        let mut table = Table::show(vec![Column::text(name)]);
        table.rows.push(vec![Cell::from(self.consistency.as_str())]);
        Some(table)
    }
}

impl Console for SessionConsole<'_> {
    fn columns(&self, caller: &Caller, sql: &str) -> Result<Option<Vec<Column>>, PgError> {
        match self.shown(sql) {
            Some(table) => Ok(Some(table.columns)),
            None => self.console.columns(caller, sql),
        }
    }

    fn run<'a>(&'a self, caller: &'a Caller, sql: &'a str) -> Pending<'a> {
        match self.shown(sql) {
            Some(table) => Box::pin(async move { Ok(Answer::Table(table)) }),
            None => self.console.run(caller, sql),
        }
    }

    fn progress(&self, caller: &Caller, sql: &str) -> Option<String> {
        self.console.progress(caller, sql)
    }
}
