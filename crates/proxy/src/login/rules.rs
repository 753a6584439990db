//! Which rule decides on a client, and which method it must pass.

use config::hba::{self, ConnKind, Request, Rule};
use config::secrets::Secret;
use protocol::auth::Method;
use protocol::startup::Replication;

use super::error::{Applicant, LoginError};
use super::{LoginContext, Secured};
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
    /// By a password that a directory checks.
    Directory,
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
        self.needs_secret() || self.rule().is_some_and(|rule| rule.method == hba::Method::Ldap)
    }

    pub(super) fn proof(&self, secret: Option<&Secret>) -> Proof {
        match (self.rule().map(|rule| rule.method), secret) {
            (None, Some(Secret::Md5(_))) => Proof::Ours(Method::Md5),
            (None, _) | (Some(hba::Method::ScramSha256), _) => Proof::Ours(Method::Scram),
            (Some(hba::Method::Trust), _) => Proof::Ours(Method::Trust),
            (Some(hba::Method::Password), _) => Proof::Ours(Method::Password),
            (Some(hba::Method::Md5), _) => Proof::Ours(Method::Md5),
            (Some(hba::Method::Cert), _) => Proof::Certificate,
            (Some(hba::Method::Peer), _) => Proof::Peer,
            // Refused in `judge`, or when the file is read: nobody comes here.
            (Some(hba::Method::Ldap | hba::Method::Pam | hba::Method::Reject), _) => Proof::Directory,
        }
    }
}

/// The first rule that matches decides.
pub(super) fn judge<'a>(
    context: &LoginContext<'a>,
    application: &Application<'_>,
) -> Result<Judgement<'a>, LoginError> {
    let Application { user, database, replication, secured, groups } = *application;
    if context.tls.is_some_and(|tls| tls.required) && !secured.tls && context.peer != Peer::Unix {
        return Err(LoginError::TlsRequired);
    }
    let Some(rules) = &context.config.hba else { return Ok(Judgement::NoRules) };
    let physical = replication == Replication::Physical;
    let (kind, host) = match context.peer {
        Peer::Unix => (ConnKind::Local, "[local]".to_owned()),
        Peer::Tcp(address) => {
            let address = address.ip().to_canonical();
            (ConnKind::Tcp { tls: secured.tls, addr: address }, address.to_string())
        }
    };
    let applicant = || Applicant {
        host: host.clone(),
        user: user.to_owned(),
        database: (!physical).then(|| database.to_owned()),
        encryption: if secured.tls { "SSL encryption" } else { "no encryption" },
    };
    let request = Request { conn: &kind, database, user, replication: physical, groups };
    let rule = rules.find_for(&request).ok_or_else(|| LoginError::NoRule(applicant()))?;
    match rule.method {
        hba::Method::Reject => Err(LoginError::RejectedByRule { line: rule.line, applicant: applicant() }),
        _ => Ok(Judgement::Rule(rule)),
    }
}
