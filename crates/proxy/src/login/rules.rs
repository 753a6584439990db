//! Which rule decides on a client, and which method it must pass.

use config::hba::{self, ConnKind, Found, HostName, Request, Rule};
use config::secrets::{Passwords, Secret};
use protocol::auth::Method;
use protocol::startup::Replication;

use super::error::{Applicant, LoginError};
use super::{LoginContext, Outside, Secured};
use crate::registry::Peer;

/// Who wants to come in.
#[derive(Clone, Copy)]
pub(super) struct Application<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    pub(super) replication: Replication,
    pub(super) secured: &'a Secured,
    /// The roles that the user is a member of.
    pub(super) groups: &'a [String],
}

/// What is asked of the client.
#[derive(Debug, Clone, Copy)]
pub(super) enum Judgement<'a> {
    /// Without rules (`enable_pool_hba` off): SCRAM-SHA-256, and md5 for those of whom only an md5 hash is stored.
    NoRules,
    /// What a rule says.
    Rule(&'a Rule),
}

/// How the client proves itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// By our own exchange, against what is stored.
    Ours(Method),
    /// By its certificate alone.
    Certificate,
    /// By the operating system's word.
    Peer,
    /// By a password that others check.
    Password(Outside),
}

impl Judgement<'_> {
    pub(super) fn rule(&self) -> Option<&Rule> {
        match self {
            Self::NoRules => None,
            Self::Rule(rule) => Some(rule),
        }
    }

    /// Whether what is stored of the user decides.
    pub(super) fn needs_secret(&self) -> bool {
        use hba::Method::{Cert, Ldap, Pam, Peer, Reject, Trust};
        self.rule().is_none_or(|rule| !matches!(rule.method, Trust | Cert | Peer | Ldap | Pam | Reject))
    }

    /// Whether a password is tried: those who fail are slowed down.
    pub(super) fn tries_password(&self) -> bool {
        self.needs_secret()
            || self.rule().is_some_and(|rule| matches!(rule.method, hba::Method::Ldap | hba::Method::Pam))
    }

    pub(super) fn proof(&self, secret: Option<&Secret>, others: &Passwords) -> Proof {
        match (self.rule().map(|rule| rule.method), secret) {
            // As those are asked who are known: by SCRAM where a verifier is stored.
            (Some(hba::Method::Md5), None) if others.are_mostly_verifiers() => Proof::Ours(Method::Scram),
            (None, Some(Secret::Md5(_))) => Proof::Ours(Method::Md5),
            (None, _) | (Some(hba::Method::ScramSha256), _) => Proof::Ours(Method::Scram),
            (Some(hba::Method::Trust), _) => Proof::Ours(Method::Trust),
            (Some(hba::Method::Password), _) => Proof::Ours(Method::Password),
            (Some(hba::Method::Md5), _) => Proof::Ours(Method::Md5),
            (Some(hba::Method::Cert), _) => Proof::Certificate,
            (Some(hba::Method::Peer), _) => Proof::Peer,
            (Some(hba::Method::Pam), _) => Proof::Password(Outside::Pam),
            // Those who are rejected do not come here: `judge` refuses them.
            (Some(hba::Method::Ldap | hba::Method::Reject), _) => Proof::Password(Outside::Ldap),
        }
    }
}

/// The first rule that matches decides. Where a rule is for a host's name, the system is asked for that of the client's
/// address.
pub(super) async fn judge<'a>(
    context: &LoginContext<'a>,
    application: &Application<'_>,
) -> Result<Judgement<'a>, LoginError> {
    match judged(context, application, HostName::NotAsked)? {
        Some(judgement) => Ok(judgement),
        None => {
            let name = context.host_name().await;
            let host = name.as_deref().map_or(HostName::Nameless, HostName::Verified);
            judged(context, application, host)?.ok_or(LoginError::Closed)
        }
    }
}

/// As [`judge`]; none when it depends on the name of the client's address, and nobody has asked for it.
fn judged<'a>(
    context: &LoginContext<'a>,
    application: &Application<'_>,
    host_name: HostName<'_>,
) -> Result<Option<Judgement<'a>>, LoginError> {
    let Application { user, database, replication, secured, groups } = *application;
    if context.tls.is_some_and(|tls| tls.required) && !secured.tls && context.peer != Peer::Unix {
        return Err(LoginError::TlsRequired);
    }
    let Some(rules) = &context.config.hba else { return Ok(Some(Judgement::NoRules)) };
    let physical = replication == Replication::Physical;
    let kind = match context.peer {
        Peer::Unix => ConnKind::Local,
        Peer::Tcp(address) => ConnKind::Tcp { tls: secured.tls, addr: address.ip().to_canonical() },
    };
    let applicant = || Applicant {
        host: match context.peer {
            Peer::Unix => "[local]".to_owned(),
            Peer::Tcp(address) => address.ip().to_canonical().to_string(),
        },
        user: user.to_owned(),
        database: (!physical).then(|| database.to_owned()),
        encryption: if secured.tls { "SSL encryption" } else { "no encryption" },
    };
    let request = Request { conn: &kind, database, user, replication: physical, groups, host: host_name };
    match rules.find_for(&request) {
        Found::Nothing => Err(LoginError::NoRule(applicant())),
        Found::AskForName => Ok(None),
        Found::Rule(rule) if rule.method == hba::Method::Reject => {
            Err(LoginError::RejectedByRule { line: rule.line, applicant: applicant() })
        }
        Found::Rule(rule) => Ok(Some(Judgement::Rule(rule))),
    }
}
