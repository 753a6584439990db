//! Which method a client must pass.

use config::hba::{self, ConnKind};
use config::secrets::Secret;
use protocol::auth::Method;
use protocol::startup::Replication;

use super::LoginContext;
use super::error::{Applicant, LoginError};
use crate::registry::Peer;

/// The method of the first rule that matches. Without rules (`enable_pool_hba` off) it is SCRAM-SHA-256 for
/// everybody, and md5 for those of whom only an md5 hash is stored.
pub(super) fn method(
    context: &LoginContext<'_>,
    user: &str,
    database: &str,
    replication: Replication,
) -> Result<Method, LoginError> {
    let Some(rules) = &context.config.hba else {
        return Ok(match context.config.secrets.get(user) {
            Some(Secret::Md5(_)) => Method::Md5,
            _ => Method::Scram,
        });
    };
    let physical = replication == Replication::Physical;
    let (kind, host) = match context.peer {
        Peer::Unix => (ConnKind::Local, "[local]".to_owned()),
        Peer::Tcp(address) => {
            let address = address.ip().to_canonical();
            (ConnKind::Tcp { tls: false, addr: address }, address.to_string())
        }
    };
    let applicant = || Applicant {
        host: host.clone(),
        user: user.to_owned(),
        database: (!physical).then(|| database.to_owned()),
    };
    let rule = rules.find(&kind, database, user, physical).ok_or_else(|| LoginError::NoRule(applicant()))?;
    match rule.method {
        hba::Method::Trust => Ok(Method::Trust),
        hba::Method::Password => Ok(Method::Password),
        hba::Method::Md5 => Ok(Method::Md5),
        hba::Method::ScramSha256 => Ok(Method::Scram),
        hba::Method::Reject => Err(LoginError::RejectedByRule { line: rule.line, applicant: applicant() }),
    }
}
