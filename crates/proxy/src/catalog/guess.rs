//! What a statement is as far as the configuration and the built-ins tell, where there is no database to ask
//! (`pgweir route`).

use config::Config;
use router::{FunctionCatalog, ListedFunctions, ParseOptions, Safety, Verdict};

use super::rules::Rules;

/// What relations are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relations {
    /// Logged tables, and views over nothing that writes.
    Ordinary,
    /// Anything.
    Unknown,
}

#[derive(Debug)]
struct Guess<'a> {
    rules: &'a Rules,
    relations: Relations,
}

/// What a text says about itself; functions and operators that are not built in are unknown.
#[must_use]
pub fn judge(config: &Config, sql: &[u8], relations: Relations) -> Verdict {
    let options = ParseOptions {
        max_parsed_statement: config.max_parsed_statement,
        standard_conforming_strings: true,
        allow_sql_comments: config.allow_sql_comments,
    };
    let rules = Rules::new(config, 0);
    let mut verdict = router::classify_with(sql, &options, &Guess { rules: &rules, relations });
    verdict.by_pattern = rules.matches(sql);
    router::unpin_followed(verdict, sql, true)
}

impl FunctionCatalog for Guess<'_> {
    fn listed(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.rules.listed(schema, name)
    }

    fn function(&self, _: Option<&str>, _: &str) -> Option<Safety> {
        None
    }

    fn operator(&self, _: Option<&str>, _: &str) -> Option<Safety> {
        None
    }

    fn relation(&self, _: Option<&str>, name: &str) -> Option<Safety> {
        let known = self.relations == Relations::Ordinary || name.starts_with("pg_");
        known.then_some(Safety::AnyNode)
    }

    fn is_loaded(&self) -> bool {
        self.relations == Relations::Ordinary
    }

    fn generation(&self) -> u64 {
        0
    }
}
