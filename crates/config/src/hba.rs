//! Who may come in and how: rules in the grammar of pg_hba.conf (`pool_hba_file`).
//!
//! The first rule that matches decides; none is a refusal. A file is taken whole or refused whole: what this
//! version cannot evaluate (other methods and options, included rules) is an error at its line, never a rule that
//! silently does not match.

pub(crate) mod ident;
mod options;
mod parse;
pub(crate) mod token;

pub use ident::IdentMaps;
pub use options::{CertName, ClientCert, Ldap, LdapScheme, Options, Pam};

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
    /// By the certificate that it showed over TLS.
    Cert,
    /// By the operating system's word on a Unix socket.
    Peer,
    /// By its password, which a directory checks.
    Ldap,
    /// By its password, which the system's modules check.
    Pam,
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
            Self::Cert => "cert",
            Self::Peer => "peer",
            Self::Ldap => "ldap",
            Self::Pam => "pam",
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
    /// The user is a member of the role that is called as the database.
    SameRole,
    Replication,
    Item(Items),
}

#[derive(Debug, Clone, PartialEq)]
enum Names {
    All,
    /// Members of this role, directly or not.
    Group(String),
    Item(Items),
}

/// A network of this machine, or one of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// The address.
    pub address: IpAddr,
    /// Its network's mask, of the same family.
    pub mask: IpAddr,
}

/// Who wants to come in.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// How it came.
    pub conn: &'a ConnKind,
    /// To which database.
    pub database: &'a str,
    /// As whom.
    pub user: &'a str,
    /// Physical replication, which only the keyword `replication` admits; logical replication connects to a database
    /// and counts as that.
    pub replication: bool,
    /// The roles that the user is a member of, itself included.
    pub groups: &'a [String],
    /// What its address is called.
    pub host: HostName<'a>,
}

/// What a client's address is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostName<'a> {
    /// Nobody has been asked.
    #[default]
    NotAsked,
    /// It has no name, or one that does not lead back to it.
    Nameless,
    /// This; the name leads back to the address.
    Verified(&'a str),
}

/// What the rules say of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Found<'a> {
    /// The first rule that matches.
    Rule(&'a Rule),
    /// No rule matches: a refusal.
    Nothing,
    /// It depends on what the client's address is called.
    AskForName,
}

impl Request<'_> {
    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Addresses {
    All,
    /// An address of this machine.
    SameHost,
    /// A network of this machine.
    SameNet,
    /// Both of one family.
    Net {
        address: IpAddr,
        mask: IpAddr,
    },
    /// The address of that name.
    Host(String),
    /// The addresses of names that end so; it begins with a dot.
    Domain(String),
}

/// Whether a rule is for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Yes,
    No,
    /// When its address is called as the rule says.
    Named,
}

impl From<bool> for Fit {
    fn from(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

impl Addresses {
    /// `hostname_match()` and `check_hostname()` of src/backend/libpq/hba.c, where there are names.
    fn fit(&self, client: IpAddr, own: &[Interface], host: HostName<'_>) -> Fit {
        let named = |fits: &dyn Fn(&str) -> bool| match host {
            HostName::NotAsked => Fit::Named,
            HostName::Nameless => Fit::No,
            HostName::Verified(name) => fits(name).into(),
        };
        match self {
            Self::Host(own) => named(&|name| name.eq_ignore_ascii_case(own)),
            Self::Domain(suffix) => named(&|name| ends_with(name, suffix)),
            _ => self.contains(client, own).into(),
        }
    }

    fn contains(&self, client: IpAddr, own: &[Interface]) -> bool {
        match self {
            Self::All => true,
            Self::Host(_) | Self::Domain(_) => false,
            Self::SameHost => own.iter().any(|interface| interface.address == client),
            Self::SameNet => own.iter().any(|interface| is_within(client, interface.address, interface.mask)),
            Self::Net { address, mask } => is_within(client, *address, *mask),
        }
    }
}

fn ends_with(name: &str, suffix: &str) -> bool {
    let at = name.len().checked_sub(suffix.len());
    at.and_then(|at| name.get(at..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

fn is_within(client: IpAddr, address: IpAddr, mask: IpAddr) -> bool {
    match (address, mask, client) {
        (IpAddr::V4(address), IpAddr::V4(mask), IpAddr::V4(client)) => {
            (address.to_bits() ^ client.to_bits()) & mask.to_bits() == 0
        }
        (IpAddr::V6(address), IpAddr::V6(mask), IpAddr::V6(client)) => {
            (address.to_bits() ^ client.to_bits()) & mask.to_bits() == 0
        }
        _ => false,
    }
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The line, from 1.
    pub line: usize,
    /// The method for whom it matches.
    pub method: Method,
    /// What stands behind the method.
    pub options: Options,
    transport: Transport,
    databases: Vec<Databases>,
    users: Vec<Names>,
    addresses: Addresses,
}

impl Rule {
    /// Whether it is for connections over TLS only.
    #[must_use]
    pub fn needs_tls(&self) -> bool {
        self.transport == Transport::Tls
    }

    fn uses_groups(&self) -> bool {
        self.users.iter().any(|name| matches!(name, Names::Group(_)))
            || self.databases.contains(&Databases::SameRole)
    }

    fn fit(&self, request: &Request<'_>, own: &[Interface]) -> Fit {
        let Request { conn, database, user, replication, .. } = *request;
        let transport = match (self.transport, conn) {
            (Transport::Local, ConnKind::Local) => Fit::Yes,
            // A dual-stack socket tells IPv4 clients as ::ffff:a.b.c.d; rules are written for the former.
            (Transport::Any, ConnKind::Tcp { addr, .. })
            | (Transport::Tls, ConnKind::Tcp { tls: true, addr })
            | (Transport::NoTls, ConnKind::Tcp { tls: false, addr }) => {
                self.addresses.fit(addr.to_canonical(), own, request.host)
            }
            _ => Fit::No,
        };
        let to_database = |wanted: &Databases| match wanted {
            Databases::Replication => replication,
            _ if replication => false,
            Databases::All => true,
            Databases::SameUser => database == user,
            Databases::SameRole => request.is_in(database),
            Databases::Item(item) => item.matches(database),
        };
        let by_user = |wanted: &Names| match wanted {
            Names::All => true,
            Names::Group(group) => request.is_in(group),
            Names::Item(item) => item.matches(user),
        };
        match self.databases.iter().any(to_database) && self.users.iter().any(by_user) {
            true => transport,
            false => Fit::No,
        }
    }
}

/// The rules in their order. The empty set, which is the default, lets nobody in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// For `samehost` and `samenet`.
    own: Vec<Interface>,
}

/// Reads a file that rules name by `@name`, or tells why not.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

impl Rules {
    /// Reads rules; `origin` is the file in errors.
    ///
    /// # Errors
    /// Everything that is wrong, by line and field.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, origin, &|_| Err("a file that cannot be read here".to_owned()))
    }

    /// As [`Rules::parse`]; `read` reads the files that names stand in.
    pub(crate) fn parse_with(text: &str, origin: &str, read: ReadFile<'_>) -> Result<Self, ConfigErrors> {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for line in token::lines(text) {
            let number = line.number;
            match parse::rule(line, read) {
                Ok(rule) => rules.push(rule),
                Err((field, found, expected)) => {
                    let error = files::error(origin, Some(number), &found, &expected);
                    errors.push(ConfigError { key: field.to_owned(), ..error });
                }
            }
        }
        if errors.is_empty() { Ok(Self { rules, own: Vec::new() }) } else { Err(ConfigErrors::new(errors)) }
    }

    /// With this machine's addresses, for `samehost` and `samenet`.
    #[must_use]
    pub fn at(mut self, own: Vec<Interface>) -> Self {
        self.own = own;
        self
    }

    /// The first rule that matches, unless a rule before it asks for the name of the client's address.
    #[must_use]
    pub fn find_for(&self, request: &Request<'_>) -> Found<'_> {
        let fits = self.rules.iter().map(|rule| (rule, rule.fit(request, &self.own)));
        match fits.into_iter().find(|(_, fit)| *fit != Fit::No) {
            None => Found::Nothing,
            Some((_, Fit::Named)) => Found::AskForName,
            Some((rule, _)) => Found::Rule(rule),
        }
    }

    /// As [`Rules::find_for`], for a user who is a member of no role, from an address without a name.
    #[must_use]
    pub fn find(&self, conn: &ConnKind, database: &str, user: &str, replication: bool) -> Option<&Rule> {
        let host = HostName::Nameless;
        match self.find_for(&Request { conn, database, user, replication, groups: &[], host }) {
            Found::Rule(rule) => Some(rule),
            Found::Nothing | Found::AskForName => None,
        }
    }

    /// Whether a rule depends on the roles that a user is a member of.
    #[must_use]
    pub fn uses_groups(&self) -> bool {
        self.rules.iter().any(Rule::uses_groups)
    }

    /// Every rule, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }
}

#[cfg(test)]
mod tests;
