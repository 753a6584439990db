//! From the entries of a mapping to the fields of a struct, by its table. The same for the whole file, a node,
//! a database and a user.

use std::collections::BTreeMap;

use crate::error::Sink;
use crate::key::{Key, Status};
use crate::suggest::suggest;
use crate::value::{MASK, describe, shorten};
use crate::yaml::{self, Node, Step};

/// An entry of a mapping with its number there.
pub(crate) type Entry<'n> = (usize, &'n (String, Node));

/// Reads the default of every key.
pub(crate) fn read_defaults<C>(keys: &[Key<C>], of: &mut C, sink: &mut Sink) {
    // `null` and the empty text are what a blank struct has already.
    for key in keys.iter().filter(|key| !matches!(key.default, "" | "null")) {
        match yaml::parse(key.default) {
            Ok(node) => {
                sink.within(&[], key.name, |sink| (key.set)(of, &key.limits, &node, sink));
            }
            Err(error) => {
                sink.within(&[], key.name, |sink| sink.error::<()>(error.message, "YAML"));
            }
        }
    }
}

/// Reads entries into fields; returns the keys that were set, each with its entry. `taken` are keys that
/// another file has set already.
pub(crate) fn fill<C, T>(
    keys: &'static [Key<C>],
    of: &mut C,
    entries: &[Entry<'_>],
    taken: &BTreeMap<&'static str, T>,
    sink: &mut Sink,
) -> Vec<(&'static str, usize)> {
    let mut set: Vec<(&'static str, usize)> = Vec::new();
    for (entry, (name, node)) in entries {
        let label = if sink.at_top() { name.clone() } else { format!(".{name}") };
        let Some(key) = keys.iter().find(|key| key.name == name) else {
            unknown(keys, *entry, name, sink);
            continue;
        };
        if taken.contains_key(key.name) || set.iter().any(|(name, _)| *name == key.name) {
            sink.within(&[Step::Key(*entry)], &label, |sink| {
                sink.error::<()>(format!("a second {name}"), "each key once")
            });
            continue;
        }
        set.push((key.name, *entry));
        sink.within(&[Step::Value(*entry)], &label, |sink| set_one(key, of, node, sink));
    }
    set
}

fn unknown<C>(keys: &[Key<C>], entry: usize, name: &str, sink: &mut Sink) {
    let known = keys.iter().map(|key| key.name);
    let expected = match suggest(name, known) {
        Some(known) => format!("a known key (did you mean {known}?)"),
        None => "a known key".to_owned(),
    };
    let label = if sink.at_top() { name.to_owned() } else { format!(".{name}") };
    sink.within(&[Step::Key(entry)], &label, |sink| {
        sink.error::<()>(format!("the unknown key {}", shorten(name)), expected)
    });
}

/// Reads one value and says what this version makes of it.
fn set_one<C>(key: &Key<C>, of: &mut C, node: &Node, sink: &mut Sink) {
    let default = key.text(of);
    if !(key.set)(of, &key.limits, node, sink) {
        return;
    }
    let text = key.text(of);
    match key.status {
        Status::Unsupported if text != default => {
            let found = if key.masked { MASK.to_owned() } else { describe(node) };
            sink.error::<()>(found, format!("{default} (others are not supported by this version)"));
        }
        Status::Reserved if text != default => {
            sink.warn(format!("{text} is accepted but has no effect in this version"));
        }
        _ => {}
    }
}

/// Reads a mapping into a struct: defaults first, required keys checked.
pub(crate) fn read_mapping<C>(keys: &'static [Key<C>], mut of: C, node: &Node, sink: &mut Sink) -> Option<C> {
    let entries = match node {
        Node::Map(entries) => entries.as_slice(),
        Node::Null => &[],
        other => {
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            return sink.error(describe(other), format!("a mapping with keys out of {}", names.join(", ")));
        }
    };
    read_defaults(keys, &mut of, sink);
    let entries: Vec<Entry<'_>> = entries.iter().enumerate().collect();
    let set = fill::<C, ()>(keys, &mut of, &entries, &BTreeMap::new(), sink);
    for key in keys.iter().filter(|key| key.is_required()) {
        if !set.iter().any(|(name, _)| *name == key.name) {
            sink.error::<()>(format!("no {}", key.name), format!("{}: {}", key.name, key.kind()));
        }
    }
    if sink.failed() { None } else { Some(of) }
}
