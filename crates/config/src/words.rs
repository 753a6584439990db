//! Values that are one word of a few.
//!
//! A word that the full product knows and this version does not carry out is in `refused`: it is told apart
//! from a typing error, and no code can meet it.

use crate::error::Sink;
use crate::value::{Limits, Value, describe};
use crate::yaml::Node;

macro_rules! words {
    ($(
        $(#[$meta:meta])* $Name:ident {
            $( $(#[$vmeta:meta])* $Variant:ident = $word:literal ),+ $(,)?
        } $(; except { $($refused:literal),+ })?
    )+) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $Name { $( $(#[$vmeta])* $Variant ),+ }

        impl $Name {
            /// The word in the file, SHOW, metrics and logs.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$Variant => $word ),+ }
            }
        }

        impl Value for $Name {
            fn read(_: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
                const WORDS: &[(&str, $Name)] = &[$( ($word, $Name::$Variant) ),+];
                read_word(WORDS, &[$($($refused),+)?], node, sink)
            }

            fn text(&self, _: &Limits) -> String {
                self.as_str().to_owned()
            }

            fn expects(_: &Limits) -> String {
                alternatives(&[$($word),+])
            }
        }
    )+ };
}

/// `a, b or c`.
pub(crate) fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn read_word<T: Copy>(words: &[(&str, T)], refused: &[&str], node: &Node, sink: &mut Sink) -> Option<T> {
    let text = match node {
        Node::Text(text) => text.as_str(),
        Node::Bool(true) => "on",
        Node::Bool(false) => "off",
        _ => "",
    };
    // `ssl: on` is what everybody tries first.
    let allow_too = text == "on" && words.iter().all(|(word, _)| *word != "on");
    let text = if allow_too && words.iter().any(|(word, _)| *word == "off") { "allow" } else { text };
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Some(*value);
    }
    let mut expected = alternatives(&words.iter().map(|(word, _)| *word).collect::<Vec<_>>());
    if refused.contains(&text) {
        expected.push_str(&format!(" ({text} is not supported by this version)"));
    }
    sink.error(describe(node), expected)
}

words! {
    /// How the nodes relate to each other.
    ClusteringMode {
        /// One primary, standbys that replay its WAL.
        #[default] StreamingReplication = "streaming_replication",
        /// Nodes that have nothing to do with each other.
        Raw = "raw",
    }; except { "multi_primary", "native_replication", "snapshot_isolation" }

    /// Whether a failed health check may take the node out.
    BackendFlag {
        /// It may.
        #[default] AllowToFailover = "ALLOW_TO_FAILOVER",
        /// It may not: somebody else manages this node.
        DisallowToFailover = "DISALLOW_TO_FAILOVER",
        /// This node is the primary, whatever it says.
        AlwaysPrimary = "ALWAYS_PRIMARY",
    }

    /// TLS towards the nodes: libpq's `sslmode`.
    BackendSslMode {
        /// Never.
        Disable = "disable",
        /// When the node insists.
        Allow = "allow",
        /// When the node can.
        #[default] Prefer = "prefer",
        /// Always; with `backend_ssl_root_cert` as `verify-ca`.
        Require = "require",
        /// Always, with a certificate that an authority signed.
        VerifyCa = "verify-ca",
        /// As `verify-ca`, and the certificate is for the name of the node.
        VerifyFull = "verify-full",
    }

    /// TLS towards clients that come over TCP.
    Ssl {
        /// They cannot have it.
        #[default] Off = "off",
        /// They may; `on` is the same.
        Allow = "allow",
        /// They must.
        Require = "require",
    }

    /// How long a session keeps its backend.
    PoolMode {
        /// Until it ends.
        Session = "session",
        /// Until its transaction ends.
        #[default] Transaction = "transaction",
    }; except { "statement" }

    /// What becomes of session state that cannot be moved to another backend.
    SessionState {
        /// The session keeps its backend while it has such state.
        #[default] Pin = "pin",
        /// A statement that would leave such state fails, with an error that names it.
        Reject = "reject",
        /// Nothing: the state is lost at the end of the transaction.
        Ignore = "ignore",
    }

    /// How a node is chosen for a read.
    LoadBalance {
        /// By chance, by weight.
        Random = "random",
        /// In turn, by weight.
        RoundRobin = "round_robin",
        /// The one with the fewest statements under way for its weight.
        #[default] LeastOutstanding = "least_outstanding",
        /// The one with the fewest backends in use for its weight.
        LeastConnections = "least_connections",
        /// As `least_outstanding`, judged by how long answers take.
        Latency = "latency",
    }

    /// What a write does to the reads that follow it.
    DisableLoadBalanceOnWrite {
        /// Nothing.
        Off = "off",
        /// Reads of the same transaction go to the primary.
        #[default] Transaction = "transaction",
        /// Reads of the same and the following explicit transactions go to the primary.
        TransTransaction = "trans_transaction",
        /// All reads of the session go to the primary.
        Always = "always",
    }

    /// How old a read may be.
    Consistency {
        /// As old as the standby is.
        Eventual = "eventual",
        /// Not older than the session's last write.
        #[default] ReadYourWrites = "read_your_writes",
        /// Nor older than what the session has read.
        Monotonic = "monotonic",
        /// Nor older than the last write of anybody.
        Global = "global",
    }

    /// Who promotes a standby.
    FailoverMode {
        /// Somebody else; pgweir follows.
        #[default] Observe = "observe",
        /// pgweir: the most advanced standby, when the primary is dead.
        Promote = "promote",
        /// `failover_command`, which pgweir runs when the primary is dead.
        Command = "command",
    }

    /// How much is logged.
    LogLevel {
        /// Everything.
        Trace = "trace",
        /// For developers.
        Debug = "debug",
        /// What an operator wants to know.
        #[default] Info = "info",
        /// What an operator should look at.
        Warn = "warn",
        /// What is broken.
        Error = "error",
    }

    /// The shape of a log line.
    LogFormat {
        /// For people.
        #[default] Text = "text",
        /// For programs.
        Json = "json",
    }
}
