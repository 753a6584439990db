//! Who may come in and how: rules in the grammar of pg_hba.conf (`pool_hba_file`).
//!
//! The first rule that matches decides; none is a refusal. A file is taken whole or refused whole: what this
//! version cannot evaluate (other methods, options, groups, host names, `samehost`, files) is an error at its
//! line, never a rule that silently does not match.

mod parse;
mod token;

use std::net::IpAddr;

use regex::Regex;

use crate::error::{ConfigError, ConfigErrors};
use crate::files;

/// How a client came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnKind {
    /// Over a Unix socket.
    Local,
    /// Over TCP.
    Tcp {
        /// Is it encrypted?
        tls: bool,
        /// The client's address.
        addr: IpAddr,
    },
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Not at all.
    Trust,
    /// It cannot.
    Reject,
    /// By its password in clear text.
    Password,
    /// By the md5 challenge; by SCRAM when a SCRAM verifier is what is stored.
    Md5,
    /// By SCRAM-SHA-256.
    ScramSha256,
}

impl Method {
    /// The word in the file and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Reject => "reject",
            Self::Password => "password",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
        }
    }
}

/// The first field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Local,
    /// TCP, encrypted or not.
    Any,
    Tls,
    NoTls,
    /// GSSAPI encryption, which is never offered: matches nobody.
    GssEncryption,
}

/// A name or an expression.
#[derive(Debug, Clone)]
enum Items {
    Named(String),
    Matching(Regex),
}

impl PartialEq for Items {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(one), Self::Named(other)) => one == other,
            (Self::Matching(one), Self::Matching(other)) => one.as_str() == other.as_str(),
            _ => false,
        }
    }
}

impl Items {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Named(own) => own == name,
            Self::Matching(regex) => regex.is_match(name),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Databases {
    /// Every database, but not physical replication.
    All,
    SameUser,
    Replication,
    Item(Items),
}

#[derive(Debug, Clone, PartialEq)]
enum Names {
    All,
    Item(Items),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addresses {
    All,
    /// Both of one family.
    Net {
        address: IpAddr,
        mask: IpAddr,
    },
}

impl Addresses {
    fn contains(self, client: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Net { address, mask } => match (address, mask, client) {
                (IpAddr::V4(address), IpAddr::V4(mask), IpAddr::V4(client)) => {
                    (address.to_bits() ^ client.to_bits()) & mask.to_bits() == 0
                }
                (IpAddr::V6(address), IpAddr::V6(mask), IpAddr::V6(client)) => {
                    (address.to_bits() ^ client.to_bits()) & mask.to_bits() == 0
                }
                _ => false,
            },
        }
    }
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The line, from 1.
    pub line: usize,
    /// The method for whom it matches.
    pub method: Method,
    transport: Transport,
    databases: Vec<Databases>,
    users: Vec<Names>,
    addresses: Addresses,
}

impl Rule {
    fn matches(&self, conn: &ConnKind, database: &str, user: &str, replication: bool) -> bool {
        let transport = match (self.transport, conn) {
            (Transport::Local, ConnKind::Local) => true,
            // A dual-stack socket tells IPv4 clients as ::ffff:a.b.c.d; rules are written for the former.
            (Transport::Any, ConnKind::Tcp { addr, .. })
            | (Transport::Tls, ConnKind::Tcp { tls: true, addr })
            | (Transport::NoTls, ConnKind::Tcp { tls: false, addr }) => {
                self.addresses.contains(addr.to_canonical())
            }
            _ => false,
        };
        let to_database = |wanted: &Databases| match wanted {
            Databases::Replication => replication,
            _ if replication => false,
            Databases::All => true,
            Databases::SameUser => database == user,
            Databases::Item(item) => item.matches(database),
        };
        let by_user = |wanted: &Names| match wanted {
            Names::All => true,
            Names::Item(item) => item.matches(user),
        };
        transport && self.databases.iter().any(to_database) && self.users.iter().any(by_user)
    }
}

/// The rules in their order. The empty set, which is the default, lets nobody in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Reads rules; `origin` is the file in errors.
    ///
    /// # Errors
    /// Everything that is wrong, by line and field.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for line in token::lines(text) {
            let number = line.number;
            match parse::rule(line) {
                Ok(rule) => rules.push(rule),
                Err((field, found, expected)) => {
                    let error = files::error(origin, Some(number), &found, &expected);
                    errors.push(ConfigError { key: field.to_owned(), ..error });
                }
            }
        }
        if errors.is_empty() { Ok(Self(rules)) } else { Err(ConfigErrors::new(errors)) }
    }

    /// The first rule that matches; none is a refusal. `replication` is for physical replication, which only
    /// the keyword `replication` admits; logical replication connects to a database and counts as that.
    #[must_use]
    pub fn find(&self, conn: &ConnKind, database: &str, user: &str, replication: bool) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.matches(conn, database, user, replication))
    }
}

#[cfg(test)]
mod tests;
