//! Proofs that are not ours to check: certificates, the operating system's word, a directory.

use config::hba::{CertName, ClientCert, IdentMaps, Rule};
use nix::unistd::{Uid, User};
use protocol::auth::{Learned, password_of};
use protocol::write;
use telemetry::off_thread;

use super::ldap::{self, Answer};
use super::wire::Wire;
use super::{LoginContext, LoginError, Secured};

/// Who claims what, under which rule.
pub(super) struct Claim<'a> {
    pub(super) user: &'a str,
    pub(super) database: &'a str,
    pub(super) rule: &'a Rule,
    pub(super) groups: &'a [String],
}

impl Claim<'_> {
    fn refuse(&self, method: Outside, reason: impl ToString) -> LoginError {
        LoginError::Outside {
            method,
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
}

impl Outside {
    /// PostgreSQL's word, at the beginning of "... authentication failed".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Peer => "Peer",
            Self::Ldap => "LDAP",
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

/// A directory checks the password.
pub(super) async fn directory(claim: &Claim<'_>, wire: &mut Wire) -> Result<Learned, LoginError> {
    write::authentication_cleartext_password(wire.out());
    wire.send().await?;
    let message = wire.password_message().await?;
    let wrong =
        |error| LoginError::Auth { error, user: claim.user.to_owned(), database: claim.database.to_owned() };
    let password = password_of(&message).map_err(wrong)?.to_vec();
    let text = String::from_utf8(password.clone())
        .map_err(|_| claim.refuse(Outside::Ldap, "the password is not UTF-8"))?;
    match ldap::check(&claim.rule.options.ldap, claim.user, &text).await {
        Answer::Right => Ok(Learned::Password(password)),
        Answer::Wrong(reason) | Answer::Failed(reason) => Err(claim.refuse(Outside::Ldap, reason)),
    }
}
