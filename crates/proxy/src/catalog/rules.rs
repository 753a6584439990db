//! The routing section's lists, compiled: which functions the configuration vouches for, which it suspects,
//! which statements it sends to the primary, and whom it sends where.

use std::sync::Arc;

use config::{Config, Matcher, Pattern, Redirect, RedirectTarget};
use router::{ListedFunctions, Safety};

/// The lists as they are written.
#[derive(Debug, PartialEq)]
struct Source {
    functions: [Vec<Pattern>; 2],
    patterns: Vec<Pattern>,
    redirects: [Vec<Redirect>; 3],
}

impl Source {
    fn of(config: &Config) -> Self {
        Self {
            functions: [config.read_only_function_list.clone(), config.write_function_list.clone()],
            patterns: config.primary_routing_query_pattern_list.clone(),
            redirects: [
                config.database_redirect_preference_list.clone(),
                config.app_name_redirect_preference_list.clone(),
                config.user_redirect_preference_list.clone(),
            ],
        }
    }
}

/// The lists of one configuration.
#[derive(Debug)]
pub(crate) struct Rules {
    source: Source,
    read_only: Vec<Matcher>,
    write: Vec<Matcher>,
    patterns: Vec<Matcher>,
    by_database: Vec<(Matcher, RedirectTarget, f64)>,
    by_application: Vec<(Matcher, RedirectTarget, f64)>,
    by_user: Vec<(Matcher, RedirectTarget, f64)>,
    /// Of verdicts that are made while no catalog is known.
    pub(super) careful: u64,
}

impl Rules {
    /// `careful` is a number that nothing else has.
    pub(crate) fn new(config: &Config, careful: u64) -> Self {
        let whole = |list: &[Pattern]| list.iter().filter_map(Pattern::whole).collect();
        let redirects = |list: &[Redirect]| {
            let compiled =
                |redirect: &Redirect| Some((redirect.pattern.whole()?, redirect.target, redirect.share));
            list.iter().filter_map(compiled).collect()
        };
        let patterns = &config.primary_routing_query_pattern_list;
        Self {
            source: Source::of(config),
            read_only: whole(&config.read_only_function_list),
            write: whole(&config.write_function_list),
            patterns: patterns.iter().filter_map(Pattern::anywhere).collect(),
            by_database: redirects(&config.database_redirect_preference_list),
            by_application: redirects(&config.app_name_redirect_preference_list),
            by_user: redirects(&config.user_redirect_preference_list),
            careful,
        }
    }

    /// Whether that configuration has the same lists.
    pub(super) fn are_of(&self, config: &Config) -> bool {
        self.source == Source::of(config)
    }

    /// Whether a statement of that text is to go to the primary.
    pub(crate) fn matches(&self, sql: &[u8]) -> bool {
        !self.patterns.is_empty() && {
            let text = String::from_utf8_lossy(sql);
            self.patterns.iter().any(|pattern| pattern.is_match(&text))
        }
    }

    /// Where reads of a session are sent: the application counts before the user, the user before the
    /// database. Of one list the first that matches counts. The share says of which part of the reads.
    pub(crate) fn redirect(
        &self,
        database: &str,
        user: &str,
        application: &str,
    ) -> Option<(RedirectTarget, f64)> {
        let of = |list: &[(Matcher, RedirectTarget, f64)], name: &str| {
            let found = list.iter().find(|(matcher, ..)| matcher.is_match(name));
            found.map(|(_, target, share)| (*target, *share))
        };
        of(&self.by_application, application)
            .or_else(|| of(&self.by_user, user))
            .or_else(|| of(&self.by_database, database))
    }

    /// Whether any session may be redirected.
    pub(crate) fn redirects(&self) -> bool {
        !(self.by_database.is_empty() && self.by_application.is_empty() && self.by_user.is_empty())
    }

    /// What the lists say of a function of the catalog.
    pub(super) fn of(&self, schema: &str, name: &str) -> Option<Safety> {
        self.say(&|matcher| matcher.is_match(name) || matcher.is_match(&format!("{schema}.{name}")))
    }

    /// A function in both lists is suspected.
    fn say(&self, fits: &dyn Fn(&Matcher) -> bool) -> Option<Safety> {
        if self.write.iter().any(fits) {
            return Some(Safety::PrimaryOnly);
        }
        self.read_only.iter().any(fits).then_some(Safety::AnyNode)
    }
}

impl ListedFunctions for Rules {
    /// Without a schema the built-in one may be meant; others are judged with the catalog ([`Rules::of`]).
    fn listed(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        if self.write.is_empty() && self.read_only.is_empty() {
            return None;
        }
        self.of(schema.unwrap_or("pg_catalog"), name)
    }
}

/// Rules that are shared.
pub(crate) type SharedRules = Arc<Rules>;
