//! What a reload changes: pure, from two configurations.

use std::fmt;

use cluster::NodeId;

use crate::key::{Effect, Key};
use crate::sections::Backend;
use crate::table::{Config, KEYS};

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: &'static str,
    /// Its value now, as YAML; a secret is masked.
    pub old: String,
    /// Its new value, as YAML; a secret is masked.
    pub new: String,
}

/// What becomes of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChange {
    /// A server that was not in the list.
    Added {
        /// Its id in the new list.
        id: NodeId,
        /// Its address.
        address: String,
    },
    /// A server that is not in the list any more.
    Removed {
        /// Its id in the old list.
        id: NodeId,
        /// Its address.
        address: String,
    },
    /// The same server under another id, as something before it was added or removed.
    Moved {
        /// Its id in the old list.
        from: NodeId,
        /// Its id in the new list.
        to: NodeId,
        /// Its address.
        address: String,
    },
    /// The same server under the same id with other settings.
    Changed {
        /// Its id.
        id: NodeId,
        /// Its address.
        address: String,
    },
}

/// The differences between the running and a new configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Keys that a reload applies.
    pub changed: Vec<Change>,
    /// Keys that need a restart; a reload keeps their old value and says so by name.
    pub refused: Vec<Change>,
    /// What becomes of the nodes; `backends` itself is not in `changed`.
    pub nodes: Vec<NodeChange>,
    /// Does the password file hold something else?
    pub secrets: bool,
    /// Are the rules of `pool_hba_file` others?
    pub hba: bool,
}

impl Plan {
    /// Compares.
    #[must_use]
    pub fn between(old: &Config, new: &Config) -> Self {
        let mut plan = Self {
            nodes: node_changes(&old.backends, &new.backends),
            secrets: old.secrets != new.secrets,
            hba: old.hba != new.hba,
            ..Self::default()
        };
        for key in KEYS.iter().filter(|key| differs(key, old, new)) {
            let change = Change { key: key.name, old: key.text(old), new: key.text(new) };
            match key.effect {
                Effect::Restart => plan.refused.push(change),
                Effect::Reload => plan.changed.push(change),
            }
        }
        plan
    }

    /// Would a reload change nothing, and is nothing refused?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A key that neither file sets has not been changed by anybody, even when its default depends on the machine.
fn differs(key: &Key, old: &Config, new: &Config) -> bool {
    let given = old.given.contains(key.name) || new.given.contains(key.name);
    key.name != "backends" && given && !(key.same)(old, new)
}

/// Servers are told apart by their address; the first of two equal ones cannot occur, duplicates are refused.
fn node_changes(old: &[Backend], new: &[Backend]) -> Vec<NodeChange> {
    let ids = || (0..=u16::MAX).map(NodeId);
    let address = |backend: &Backend| backend.to_string();
    let mut changes = Vec::new();
    for (id, backend) in ids().zip(old) {
        if !new.iter().any(|other| address(other) == address(backend)) {
            changes.push(NodeChange::Removed { id, address: address(backend) });
        }
    }
    for (id, backend) in ids().zip(new) {
        let address = address(backend);
        match ids().zip(old).find(|(_, other)| other.to_string() == address) {
            None => changes.push(NodeChange::Added { id, address }),
            Some((from, _)) if from != id => changes.push(NodeChange::Moved { from, to: id, address }),
            Some((_, other)) if other != backend => changes.push(NodeChange::Changed { id, address }),
            Some(_) => {}
        }
    }
    changes
}

impl fmt::Display for NodeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { id, address } => write!(f, "node {id} ({address}) added"),
            Self::Removed { id, address } => write!(f, "node {id} ({address}) removed"),
            Self::Moved { from, to, address } => write!(f, "node {from} ({address}) becomes node {to}"),
            Self::Changed { id, address } => write!(f, "node {id} ({address}) changed"),
        }
    }
}

impl fmt::Display for Plan {
    /// One difference a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for Change { key, old, new } in &self.changed {
            lines.push(format!("{key}: {old} -> {new}"));
        }
        lines.extend(self.nodes.iter().map(ToString::to_string));
        if self.secrets {
            lines.push("pool_passwd: its content has changed".to_owned());
        }
        if self.hba {
            lines.push("pool_hba_file: its rules have changed".to_owned());
        }
        for Change { key, old, new } in &self.refused {
            lines.push(format!("{key}: {old} -> {new} needs a restart, the old value is kept"));
        }
        if lines.is_empty() {
            lines.push("nothing has changed".to_owned());
        }
        f.write_str(&lines.join("\n"))
    }
}
