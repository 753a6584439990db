//! Proofs that are not ours to check: certificates, the operating system's word, a directory, the system's modules.

use config::hba::{CertName, ClientCert, IdentMaps, Rule};
use nix::unistd::{Uid, User};
use protocol::auth::{Learned, password_of};
use protocol::write;
use telemetry::off_thread;

use super::wire::Wire;
use super::{LoginContext, LoginError, Secured};
use super::{ldap, pam};

/// Who claims what, under which rule.
pub(super) struct Claim<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    pub(super) rule: &'a Rule,
    pub(super) groups: &'a [String],
}

impl Claim<'_> {
    fn refuse(&self, method: Outside, reason: impl ToString) -> LoginError {
        self.refuse_for(method, Fault::Client, reason)
    }

    fn refuse_for(&self, method: Outside, fault: Fault, reason: impl ToString) -> LoginError {
        LoginError::Outside {
            method,
            fault,
            user: self.user.to_owned(),
            database: self.database.to_owned(),
            line: self.rule.line,
            reason: reason.to_string(),
        }
    }

    fn is_mapped(&self, idents: &IdentMaps, outside: &str) -> bool {
        idents.allows(self.rule.options.map.as_deref(), outside, self.user, self.groups)
    }
}

/// What checks the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// Its certificate.
    Certificate,
    /// The operating system.
    Peer,
    /// A directory.
    Ldap,
    /// The system's modules.
    Pam,
}

/// Whose fault it is that a proof failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client's: it looks like a guess.
    Client,
    /// Theirs who could not be asked.
    Checker,
}

/// What those say who check a password.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The password is the user's.
    Right,
    /// It is not, or there is no such user.
    Wrong(String),
    /// They could not be asked.
    Failed(String),
}

impl Outside {
    /// PostgreSQL's word, at the beginning of "... authentication failed".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Peer => "Peer",
            Self::Ldap => "LDAP",
            Self::Pam => "PAM",
        }
    }
}

/// What the rule asks of the certificate, for `cert` and beside other methods.
pub(super) fn certificate(
    context: &LoginContext<'_>,
    claim: &Claim<'_>,
    secured: &Secured,
) -> Result<(), LoginError> {
    if claim.rule.options.client_cert == ClientCert::No {
        return Ok(());
    }
    let Some(names) = &secured.certificate else {
        return Err(LoginError::NoCertificate(claim.user.to_owned()));
    };
    if claim.rule.options.client_cert == ClientCert::VerifyCa {
        return Ok(());
    }
    let name = match claim.rule.options.cert_name {
        CertName::CommonName => names.common_name.as_deref(),
        CertName::DistinguishedName => Some(names.distinguished_name.as_str()),
    };
    match name {
        Some(name) if claim.is_mapped(&context.config.idents, name) => Ok(()),
        Some(name) => Err(claim.refuse(Outside::Certificate, format!("the certificate is for {name:?}"))),
        None => Err(claim.refuse(Outside::Certificate, "the certificate has no common name")),
    }
}

/// The operating system tells who is at the other end of a Unix socket.
pub(super) async fn peer(
    context: &LoginContext<'_>,
    claim: &Claim<'_>,
    wire: &Wire,
) -> Result<(), LoginError> {
    let uid = wire.peer_uid().ok_or_else(|| claim.refuse(Outside::Peer, "not a Unix socket"))?;
    // It may ask a directory.
    let name = match off_thread("peer", move || User::from_uid(Uid::from_raw(uid))).await {
        Some(Ok(Some(user))) => user.name,
        Some(Ok(None)) => return Err(claim.refuse(Outside::Peer, format!("no local user has the id {uid}"))),
        Some(Err(error)) => return Err(claim.refuse(Outside::Peer, error)),
        None => return Err(claim.refuse(Outside::Peer, "the look at the local users failed")),
    };
    match claim.is_mapped(&context.config.idents, &name) {
        true => Ok(()),
        false => Err(claim.refuse(Outside::Peer, format!("the local user is {name:?}"))),
    }
}

/// A directory or the system's modules check the password.
pub(super) async fn password(
    context: &LoginContext<'_>,
    claim: &Claim<'_>,
    method: Outside,
    wire: &mut Wire,
) -> Result<Learned, LoginError> {
    write::authentication_cleartext_password(wire.out());
    wire.send().await?;
    let message = wire.password_message().await?;
    let wrong =
        |error| LoginError::Auth { error, user: claim.user.to_owned(), database: claim.database.to_owned() };
    let password = password_of(&message).map_err(wrong)?.to_vec();
    let answer = match method {
        Outside::Pam => pam::check(context, &claim.rule.options.pam, claim.user, &password).await,
        _ => match std::str::from_utf8(&password) {
            Ok(text) => ldap::check(&claim.rule.options.ldap, claim.user, text).await,
            Err(_) => Answer::Wrong("the password is not UTF-8".to_owned()),
        },
    };
    match answer {
        Answer::Right => Ok(Learned::Password(password)),
        Answer::Wrong(reason) => Err(claim.refuse(method, reason)),
        Answer::Failed(reason) => Err(claim.refuse_for(method, Fault::Checker, reason)),
    }
}
