//! Names outside and users: `pool_ident_file`, in the grammar of pg_ident.conf.
//!
//! PostgreSQL: `check_ident_usermap()` in src/backend/libpq/hba.c. A line is `map outside-name user`; the outside name
//! may be `/regex` with one group, which `\\1` in the user stands for; the user may be `all`, `+group` or `/regex`.

use regex::Regex;

use super::token::{self, Field, Token};
use crate::error::{ConfigError, ConfigErrors};
use crate::files;
use crate::pattern::compile;
use crate::value::shorten;

#[derive(Debug, Clone)]
enum Outside {
    Named(String),
    Matching(Regex),
}

#[derive(Debug, Clone)]
enum User {
    All,
    Group(String),
    Named(String),
    Matching(Regex),
}

#[derive(Debug, Clone)]
struct Entry {
    map: String,
    outside: Outside,
    user: User,
    /// As it was written, to tell entries apart.
    written: String,
}

/// The lines in their order.
#[derive(Debug, Clone, Default)]
pub struct IdentMaps(Vec<Entry>);

impl PartialEq for IdentMaps {
    fn eq(&self, other: &Self) -> bool {
        let written = |maps: &Self| maps.0.iter().map(|entry| entry.written.clone()).collect::<Vec<_>>();
        written(self) == written(other)
    }
}

impl IdentMaps {
    /// Reads lines; `origin` is the file in errors.
    ///
    /// # Errors
    /// Everything that is wrong, by line.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        let (mut entries, mut errors) = (Vec::new(), Vec::new());
        for line in token::lines(text) {
            let number = line.number;
            match line.fields.map_err(|_| "a quote that is not closed".to_owned()).and_then(entry) {
                Ok(entry) => entries.push(entry),
                Err(found) => {
                    let expected = "a map, an outside name (or /regex) and a user";
                    let error = files::error(origin, Some(number), &found, expected);
                    errors.push(ConfigError { key: "line".to_owned(), ..error });
                }
            }
        }
        if errors.is_empty() { Ok(Self(entries)) } else { Err(ConfigErrors::new(errors)) }
    }

    /// Whether whoever is called `outside` there may be `user` here. Without a map the two must be equal. `groups` are
    /// the roles that the user is a member of.
    #[must_use]
    pub fn allows(&self, map: Option<&str>, outside: &str, user: &str, groups: &[String]) -> bool {
        match map {
            None => outside == user,
            Some(map) => self.0.iter().any(|entry| entry.map == map && entry.allows(outside, user, groups)),
        }
    }
}

impl Entry {
    fn allows(&self, outside: &str, user: &str, groups: &[String]) -> bool {
        let group = match &self.outside {
            Outside::Named(name) if name == outside => None,
            Outside::Named(_) => return false,
            Outside::Matching(regex) => match regex.captures(outside) {
                Some(found) => found.get(1).map(|group| group.as_str()),
                None => return false,
            },
        };
        match &self.user {
            User::All => true,
            User::Group(name) => groups.iter().any(|own| own == name),
            User::Matching(regex) => regex.is_match(user),
            User::Named(name) => match (name.contains("\\1"), &self.outside, group) {
                (true, Outside::Matching(_), Some(group)) => name.replacen("\\1", group, 1) == user,
                (true, Outside::Matching(_), None) => false,
                _ => name == user,
            },
        }
    }
}

fn entry(fields: Vec<Field>) -> Result<Entry, String> {
    let written = format!("{fields:?}");
    let mut single = fields.into_iter().map(|field| match <[Token; 1]>::try_from(field) {
        Ok([token]) => Ok(token),
        Err(_) => Err("a list".to_owned()),
    });
    let mut next = || single.next().unwrap_or_else(|| Err("the end of the line".to_owned()));
    let (map, outside, user) = (next()?, next()?, next()?);
    if single.next().is_some() {
        return Err("more than three words".to_owned());
    }
    let regex = |text: &str| compile(text).map_err(|_| shorten(text));
    let outside = match outside.text.strip_prefix('/') {
        Some(expression) => Outside::Matching(regex(expression)?),
        None => Outside::Named(outside.text),
    };
    let user = match () {
        () if user.is("all") => User::All,
        () if user.quoted => User::Named(user.text),
        () => match (user.text.strip_prefix('+'), user.text.strip_prefix('/')) {
            (Some(group), _) => User::Group(group.to_owned()),
            (None, Some(expression)) => User::Matching(regex(expression)?),
            (None, None) => User::Named(user.text),
        },
    };
    Ok(Entry { map: map.text, outside, user, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mapped_as_in_postgresql() {
        let maps = IdentMaps::parse(
            "# map outside user\n\
             m joe bench\n\
             m /^(.*)@example\\.com$ \\1\n\
             m \"with space\" bench\n\
             n root all\n\
             n /^x +team\n\
             n op /^(a|b)$\n",
            "pool_ident.conf",
        )
        .unwrap();
        for (map, outside, user, allowed) in [
            (None, "joe", "joe", true),
            (None, "joe", "Joe", false),
            (Some("m"), "joe", "bench", true),
            (Some("m"), "joe", "joe", false),
            (Some("m"), "kim@example.com", "kim", true),
            (Some("m"), "kim@example.com", "joe", false),
            (Some("m"), "kim@example.org", "kim", false),
            (Some("m"), "with space", "bench", true),
            (Some("n"), "joe", "bench", false),
            (Some("n"), "root", "anybody", true),
            (Some("n"), "xy", "member", true),
            (Some("n"), "op", "a", true),
            (Some("n"), "op", "c", false),
            (Some("nowhere"), "joe", "joe", false),
        ] {
            assert_eq!(
                maps.allows(map, outside, user, &["team".to_owned()]),
                allowed,
                "{map:?} {outside} {user}"
            );
        }
        assert!(!maps.allows(Some("n"), "xy", "other", &[]));
    }

    #[test]
    fn bad_lines_are_told() {
        for (text, told) in [
            ("m joe", "pool_ident.conf:1: line: found the end of the line"),
            ("m joe a b", "found more than three words"),
            ("m joe,jim a", "found a list"),
            ("m /( a", "found \"(\""),
            ("m \"joe a", "found a quote that is not closed"),
        ] {
            let whole = IdentMaps::parse(text, "pool_ident.conf").unwrap_err().to_string();
            assert!(whole.contains(told), "{text}: {whole}");
        }
    }
}
