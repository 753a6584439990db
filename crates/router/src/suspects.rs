//! Which names of one database's catalog leave something in a session that a statement's text does not show.
//!
//! A function does so if its own text does ([`Body`]), or if it mentions something that does: another function, a view over
//! one, a table whose triggers call one. Reading a relation and writing it are told apart: triggers, rules, defaults,
//! checks and what a foreign key cascades to count for who writes.
//!
//! Left out: in functions' texts names that are no words (`"a b"`), and operators.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::body::{self, Body};
use crate::catalog::Object;
use crate::leaves::Leaves;
use crate::verdict::Access;

/// More names of users' own parameters are not asked for.
const MAX_SETTINGS: usize = 200;

/// What is known of it when the catalog is read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Suspects {
    /// By name in lower case: for who reads, and for who writes.
    names: HashMap<Box<str>, (Leaves, Leaves)>,
    unseen: Leaves,
    definitions: Leaves,
    /// Parameters that some function sets for the session.
    pub(crate) settings: Vec<Box<str>>,
}

impl Suspects {
    /// What mentioning that name leaves.
    pub(crate) fn named(&self, name: &str, access: Access) -> Leaves {
        if self.names.is_empty() {
            return Leaves::Nothing;
        }
        let known = match name.chars().any(char::is_uppercase) {
            true => self.names.get(&*name.to_lowercase()),
            false => self.names.get(name),
        };
        known.map_or(Leaves::Nothing, |(read, written)| if access == Access::Read { *read } else { *written })
    }

    /// What any statement may leave, whatever it names.
    pub(crate) fn unseen(&self) -> Leaves {
        self.unseen
    }

    /// What definitions leave, whatever they define.
    pub(crate) fn definitions(&self) -> Leaves {
        self.definitions
    }
}

/// The things of a catalog, by what they are called.
pub(crate) struct Things<'a> {
    /// Functions, relations and types, each with its name.
    pub(crate) named: Vec<(Object, &'a str)>,
    /// Operators, with the functions that they call.
    pub(crate) operators: Vec<(Object, &'a str)>,
    /// Who is used by a read, and by whom.
    pub(crate) users: &'a HashMap<Object, Vec<Object>>,
    /// What any statement may use.
    pub(crate) hidden: &'a [Object],
}

/// Gathers what is found of it.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    own: HashMap<Object, Leaves>,
    /// The words of functions' texts.
    words: Vec<(Object, Vec<Box<str>>)>,
    /// Who is used by a write, and by whom.
    writers: HashMap<Object, Vec<Object>>,
    definitions: Vec<Object>,
    settings: BTreeSet<Box<str>>,
    /// Functions that read and write relations whose names they are given.
    fill_in: Vec<Object>,
}

impl Gathering {
    /// The text of a function, where there is one to be looked into; bytes that are kept of it.
    pub(crate) fn text(&mut self, function: Object, text: Option<&str>) -> usize {
        let Some(text) = text else {
            self.own.insert(function, Leaves::Anything);
            return size_of::<Object>() * 2;
        };
        let Body { mut leaves, settings, fills_in } = Body::of(text.as_bytes());
        if fills_in {
            self.fill_in.push(function);
        }
        for name in settings {
            if self.settings.len() >= MAX_SETTINGS && !self.settings.contains(&*name) {
                leaves = Leaves::Unasked;
            } else {
                self.settings.insert(name.into());
            }
        }
        if leaves != Leaves::Nothing {
            self.own.insert(function, leaves);
        }
        let words: HashSet<String> = body::words(text).collect();
        let words: Vec<Box<str>> = words.into_iter().map(String::into_boxed_str).collect();
        let bytes = words.iter().map(|word| word.len() + size_of::<Box<str>>()).sum();
        self.words.push((function, words));
        bytes
    }

    /// A function of that name that has no text to look into, and of which only that is known.
    pub(crate) fn named(&mut self, function: Object, name: &str) {
        let leaves = body::by_name(name);
        if leaves != Leaves::Nothing {
            self.own.insert(function, leaves);
        }
    }

    /// Writing `user` uses `used`.
    pub(crate) fn writes(&mut self, user: Object, used: Object) {
        self.writers.entry(used).or_default().push(user);
    }

    /// Definitions call that function.
    pub(crate) fn definition(&mut self, function: Object) {
        self.definitions.push(function);
    }

    /// What comes of it.
    pub(crate) fn build(self, things: &Things<'_>) -> Suspects {
        let mut names: HashMap<Object, Vec<String>> = HashMap::new();
        for (object, name) in &things.named {
            names.entry(*object).or_default().push(name.to_lowercase());
        }
        for (function, operator) in &things.operators {
            names.entry(*function).or_default().push((*operator).to_owned());
        }
        let mentioned = self.mentioned(&names);
        let mut own = self.own.clone();
        let mut written = self.spread(&own, &names, &mentioned, things);
        // A relation that is not known leaves what any may.
        let relations = written.iter().filter(|(object, _)| !matches!(object, Object::Function(_)));
        let worst = relations.map(|(_, leaves)| *leaves).max().unwrap_or_default();
        if worst != Leaves::Nothing && !self.fill_in.is_empty() {
            for function in &self.fill_in {
                let known = own.entry(*function).or_default();
                *known = worst.max(*known);
            }
            written = self.spread(&own, &names, &mentioned, things);
        }
        let read = spread_reads(&written, things);
        let at =
            |map: &HashMap<Object, Leaves>, object: &Object| map.get(object).copied().unwrap_or_default();
        let mut suspects = Suspects { settings: self.settings.into_iter().collect(), ..Suspects::default() };
        for (object, all) in &names {
            let leaves = (at(&read, object), at(&written, object).max(at(&read, object)));
            if leaves == (Leaves::Nothing, Leaves::Nothing) {
                continue;
            }
            for name in all {
                let known = suspects.names.entry(name.as_str().into()).or_default();
                *known = (known.0.max(leaves.0), known.1.max(leaves.1));
            }
        }
        suspects.unseen = things.hidden.iter().map(|object| at(&read, object)).max().unwrap_or_default();
        suspects.definitions =
            self.definitions.iter().map(|function| at(&written, function)).max().unwrap_or_default();
        suspects
    }

    /// Which functions mention a thing of that name.
    fn mentioned(&self, names: &HashMap<Object, Vec<String>>) -> HashMap<&str, Vec<Object>> {
        let known: HashSet<&str> = names.values().flatten().map(String::as_str).collect();
        let mut mentioned: HashMap<&str, Vec<Object>> = HashMap::new();
        for (function, words) in &self.words {
            for word in words.iter().filter(|word| known.contains(&***word)) {
                mentioned.entry(word).or_default().push(*function);
            }
        }
        mentioned
    }

    /// From what leaves something to all that comes to it by a write.
    fn spread(
        &self,
        own: &HashMap<Object, Leaves>,
        names: &HashMap<Object, Vec<String>>,
        mentioned: &HashMap<&str, Vec<Object>>,
        things: &Things<'_>,
    ) -> HashMap<Object, Leaves> {
        let mut found: HashMap<Object, Leaves> = HashMap::new();
        let mut next: Vec<(Object, Leaves)> = own.iter().map(|(object, leaves)| (*object, *leaves)).collect();
        while let Some((object, leaves)) = next.pop() {
            let known = found.entry(object).or_default();
            if *known >= leaves {
                continue;
            }
            *known = leaves;
            let by_name =
                names.get(&object).into_iter().flatten().filter_map(|name| mentioned.get(name.as_str()));
            let users = things.users.get(&object).into_iter().chain(self.writers.get(&object)).chain(by_name);
            next.extend(users.flatten().map(|user| (*user, leaves)));
        }
        found
    }
}

/// From functions that leave something to all that comes to them by a read.
fn spread_reads(written: &HashMap<Object, Leaves>, things: &Things<'_>) -> HashMap<Object, Leaves> {
    let mut found: HashMap<Object, Leaves> = HashMap::new();
    let functions = written.iter().filter(|(object, _)| matches!(object, Object::Function(_)));
    let mut next: Vec<(Object, Leaves)> = functions.map(|(object, leaves)| (*object, *leaves)).collect();
    while let Some((object, leaves)) = next.pop() {
        let known = found.entry(object).or_default();
        if *known >= leaves {
            continue;
        }
        *known = leaves;
        next.extend(things.users.get(&object).into_iter().flatten().map(|user| (*user, leaves)));
    }
    found
}
