//! From a client's first byte to AuthenticationOk: start-up packets, who may come in, and the proof.
//!
//! Invariants: everything before authentication is bounded in time and bytes; an unknown user goes through
//! the same exchange as one with a wrong password; bytes behind the last message of the login are handed on;
//! a client that is refused has been told why before [`login`] returns.

mod authenticator;
mod error;
mod ldap;
mod names;
mod outside;
mod pam;
mod rules;
#[cfg(test)]
mod tests;
mod wire;

use bytes::BytesMut;
use config::Config;
use config::hba::Rules;
use config::secrets::Secret;
use protocol::auth::{Challenge, ClientAuth, ClientStep, Learned, Method, StoredSecret};
use protocol::startup::{self, Replication, StartupMessage, StartupPacket};
use protocol::write;
use tokio::time::timeout;

use crate::lookup::Lookups;
use crate::registry::Peer;
use crate::stream::Stream;
use crate::tls::{CertificateNames, ServerTls};
pub use authenticator::Authenticator;
pub use error::LoginError;
use outside::{Claim, Fault, Outside};
use rules::Proof;
use wire::Wire;

/// What the database of physical replication is called, as in pg_hba.conf: it has none.
pub const PHYSICAL: &str = "replication";

/// What a login is judged by.
#[derive(Clone, Copy)]
pub struct LoginContext<'a> {
    /// Rules, secrets, limits.
    pub config: &'a Config,
    /// Keeps what lives longer than one login.
    pub authenticator: &'a Authenticator,
    /// Where the client comes from.
    pub peer: Peer,
    /// What clients that come over TCP are offered.
    pub tls: Option<&'a ServerTls>,
    /// Knows users who are not in `pool_passwd`.
    pub lookups: Option<&'a Lookups>,
}

impl LoginContext<'_> {
    /// What the client's address is called, where the name leads back to it.
    async fn host_name(&self) -> Option<String> {
        match self.peer {
            Peer::Tcp(address) => self.authenticator.names.of(address.ip().to_canonical()).await,
            Peer::Unix => None,
        }
    }
}

/// What TLS says of the client.
#[derive(Debug, Default)]
struct Secured {
    /// The connection is encrypted.
    tls: bool,
    /// The names in its certificate, which is verified.
    certificate: Option<CertificateNames>,
}

/// What came of a connection's first packets.
#[derive(Debug)]
pub enum Outcome {
    /// A client is in.
    LoggedIn(Box<LoggedIn>),
    /// A cancel request; the connection is to be closed without an answer.
    Cancel {
        /// The connection, to be dropped once the request is carried out.
        stream: Stream,
        /// The process id.
        pid: u32,
        /// The secret: 4 to 256 bytes.
        secret: Vec<u8>,
    },
}

/// A client that is in. It has not been told so yet: what it is told next goes out in the same write, as in PostgreSQL.
#[derive(Debug)]
pub struct LoggedIn {
    /// The connection.
    pub stream: Stream,
    /// What the client sent behind its last message of the login.
    pub leftover: BytesMut,
    /// What it is to be sent first: the end of its login, with AuthenticationOk.
    pub due: BytesMut,
    /// As whom.
    pub user: String,
    /// To which database: the user's name when it named none, [`PHYSICAL`] for physical replication.
    pub database: String,
    /// Settings of the start-up packet, those of `options` first; a later one of the same name counts.
    pub settings: Vec<(String, String)>,
    /// The `application_name` among them; empty when there is none.
    pub application_name: String,
    /// Where it comes from.
    pub peer: Peer,
    /// The minor version of protocol 3 that it speaks with us.
    pub minor: u16,
    /// Whether it is a replication connection.
    pub replication: Replication,
    /// What its proof taught us for the nodes.
    pub learned: Learned,
    /// What is stored of it, in `pool_passwd` or for `auth_query`.
    pub secret: Option<Secret>,
}

/// Takes a fresh connection, of which `early` was read already, through start-up and authentication. On success
/// AuthenticationOk is due; it, ParameterStatus, BackendKeyData and ReadyForQuery are the session's to send.
///
/// # Errors
/// See [`LoginError`]; the client has been told, as far as it is to be told anything.
pub async fn login(
    stream: Stream,
    early: BytesMut,
    context: &LoginContext<'_>,
) -> Result<Outcome, LoginError> {
    let mut wire = Wire::new(stream, early);
    let mut progress = Progress::default();
    let limit = context.config.authentication_timeout;
    let entering = Box::pin(enter(&mut wire, context, &mut progress));
    let entered = timeout(limit, entering).await.unwrap_or(Err(LoginError::TimedOut));
    match entered {
        Ok(Entered::Cancel { pid, secret }) => {
            let (stream, ..) = wire.into_parts().ok_or(LoginError::Closed)?;
            Ok(Outcome::Cancel { stream, pid, secret })
        }
        Ok(Entered::Client(message, proven, settings)) => {
            let Proven { learned, secret } = *proven;
            let (stream, leftover, due) = wire.into_parts().ok_or(LoginError::Closed)?;
            let logged_in = LoggedIn {
                stream,
                leftover,
                due,
                application_name: application_name(&settings),
                user: progress.user,
                database: match message.replication {
                    Replication::Physical => PHYSICAL.to_owned(),
                    _ => progress.database,
                },
                settings,
                peer: context.peer,
                minor: message.spoken_minor(),
                replication: message.replication,
                learned,
                secret,
            };
            Ok(Outcome::LoggedIn(Box::new(logged_in)))
        }
        Err(error) => {
            wire.refuse(&error.answer(&progress.user)).await;
            Err(error)
        }
    }
}

/// What is known of the client so far; errors name it.
#[derive(Default)]
struct Progress {
    user: String,
    database: String,
    tls: bool,
}

enum Entered {
    Cancel { pid: u32, secret: Vec<u8> },
    Client(StartupMessage, Box<Proven>, Vec<(String, String)>),
}

/// How the client proved itself.
struct Proven {
    learned: Learned,
    secret: Option<Secret>,
}

async fn enter(
    wire: &mut Wire,
    context: &LoginContext<'_>,
    progress: &mut Progress,
) -> Result<Entered, LoginError> {
    let (packet, secured) = first_packets(wire, context).await?;
    progress.tls = secured.tls;
    if let Some(names) = &secured.certificate {
        tracing::debug!(peer = %context.peer, subject = names.distinguished_name, "client certificate verified");
    }
    let message = match packet {
        StartupPacket::Startup(message) => message,
        StartupPacket::Cancel { pid, secret } => return Ok(Entered::Cancel { pid, secret }),
        StartupPacket::SslRequest | StartupPacket::GssEncRequest => return Err(LoginError::Closed),
    };
    progress.user = utf8(&message.user)?;
    progress.database = utf8(message.database_or_user())?;
    // Its only failure is a message longer than a start-up packet can make it.
    let _ = startup::write_negotiation(wire.out(), &message);
    let proven = authenticate(wire, context, progress, message.replication, &secured).await?;
    // As in PostgreSQL settings are judged only after the client is known.
    let settings = settings(&message)?;
    write::authentication_ok(wire.out());
    Ok(Entered::Client(message, Box::new(proven), settings))
}

/// Up to the StartupMessage or CancelRequest. TLS is taken over where there is any; GSSAPI encryption is declined,
/// once, and never offered below TLS.
async fn first_packets(
    wire: &mut Wire,
    context: &LoginContext<'_>,
) -> Result<(StartupPacket, Secured), LoginError> {
    let offer = context.tls.filter(|_| matches!(context.peer, Peer::Tcp(_)));
    let mut secured = Secured::default();
    if wire.begins_with_tls().await? {
        let offer = offer.ok_or(LoginError::NoTls)?;
        let accepted = wire.secure(offer).await?;
        if !accepted.has_alpn {
            return Err(LoginError::NoAlpn);
        }
        secured = Secured { tls: true, certificate: accepted.certificate };
    }
    let (mut ssl_done, mut gss_done) = (secured.tls, secured.tls);
    loop {
        let packet = wire.startup_packet().await?;
        let done = match packet {
            StartupPacket::SslRequest => &mut ssl_done,
            StartupPacket::GssEncRequest => &mut gss_done,
            other => return Ok((other, secured)),
        };
        if std::mem::replace(done, true) {
            // Not `None`: it is one of the two requests.
            return Err(startup::repeated(&packet).map_or(LoginError::Closed, LoginError::Startup));
        }
        if wire.has_input() {
            return Err(LoginError::UnencryptedData { ssl: packet == StartupPacket::SslRequest });
        }
        match offer.filter(|_| packet == StartupPacket::SslRequest) {
            Some(offer) => {
                wire.out().extend_from_slice(b"S");
                wire.send().await?;
                let certificate = wire.secure(offer).await?.certificate;
                secured = Secured { tls: true, certificate };
                gss_done = true;
            }
            None => {
                wire.out().extend_from_slice(b"N");
                wire.send().await?;
            }
        }
    }
}

async fn authenticate(
    wire: &mut Wire,
    context: &LoginContext<'_>,
    progress: &Progress,
    replication: Replication,
    secured: &Secured,
) -> Result<Proven, LoginError> {
    let Progress { user, database, .. } = progress;
    let groups = groups_of(context, user).await?;
    let application = rules::Application { user, database, replication, secured, groups: &groups };
    let judgement = rules::judge(context, &application).await?;
    if judgement.tries_password() {
        context.authenticator.admit(context.peer, user).await?;
    }
    let secret = secret_of(context, user, judgement.needs_secret()).await?;
    let claim = judgement.rule().map(|rule| Claim { user, database, rule, groups: &groups });
    if let Some(claim) = &claim {
        outside::certificate(context, claim, secured)?;
    }
    let learned = match (judgement.proof(secret.as_ref(), &context.config.secrets), &claim) {
        (Proof::Peer, Some(claim)) => outside::peer(context, claim, wire).await.map(|()| Learned::Nothing),
        (Proof::Password(method), Some(claim)) => outside::password(context, claim, method, wire).await,
        (Proof::Ours(method), _) => {
            let stored = secret.as_ref().map(|secret| context.authenticator.stored(user, secret, method));
            exchange(wire, context, progress, (method, stored)).await
        }
        // Its certificate was looked at above, as the rule demands.
        (Proof::Certificate | Proof::Peer | Proof::Password(_), _) => Ok(Learned::Nothing),
    };
    match &learned {
        Ok(_) if judgement.tries_password() => context.authenticator.succeeded(context.peer, user),
        Err(error) if error.is_wrong_secret() => {
            context.authenticator.failed(context.peer, user);
            context.lookups.into_iter().for_each(|lookups| lookups.doubt(user));
        }
        _ => {}
    }
    Ok(Proven { learned: learned?, secret })
}

/// Our own exchange: password, md5 or SCRAM.
async fn exchange(
    wire: &mut Wire,
    context: &LoginContext<'_>,
    progress: &Progress,
    (method, stored): (Method, Option<StoredSecret>),
) -> Result<Learned, LoginError> {
    let Progress { user, database, tls } = progress;
    let end_point = context.tls.filter(|_| *tls).and_then(|tls| tls.end_point.clone());
    let challenge = Challenge { end_point, ..context.authenticator.challenge(method) };
    let mut auth = ClientAuth::new(method, user.as_bytes(), stored, challenge);
    let mut step = auth.begin(wire.out());
    loop {
        match step {
            ClientStep::Done(learned) => return Ok(learned),
            ClientStep::Failed(error) => {
                return Err(LoginError::Auth { error, user: user.clone(), database: database.clone() });
            }
            ClientStep::Wait => {}
        }
        wire.send().await?;
        let message = wire.password_message().await?;
        step = auth.feed(&message, wire.out());
    }
}

/// The roles that the user is a member of, where a rule asks for them.
async fn groups_of(context: &LoginContext<'_>, user: &str) -> Result<Vec<String>, LoginError> {
    let asked = context.config.hba.as_ref().is_some_and(Rules::uses_groups);
    match context.lookups.filter(|_| asked) {
        None => Ok(Vec::new()),
        Some(lookups) => {
            let told = |error| LoginError::Lookup { error, user: user.to_owned() };
            lookups.groups(user).await.map_err(told)
        }
    }
}

/// What is stored of the user. Where none is needed for the login, one that is at hand still serves for the nodes.
async fn secret_of(
    context: &LoginContext<'_>,
    user: &str,
    needed: bool,
) -> Result<Option<Secret>, LoginError> {
    match (context.config.secrets.get(user), context.lookups) {
        (Some(secret), _) => Ok(Some(secret.clone())),
        (None, Some(lookups)) => match lookups.secret(user).await {
            Ok(secret) => Ok(secret),
            Err(error) if needed => Err(LoginError::Lookup { error, user: user.to_owned() }),
            Err(error) => {
                tracing::warn!(user, %error, "no secret for the nodes");
                Ok(None)
            }
        },
        (None, None) => Ok(None),
    }
}

fn utf8(bytes: &[u8]) -> Result<String, LoginError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| LoginError::Encoding)
}

/// The settings as text. An application name in another encoding is shown as PostgreSQL shows it, with
/// question marks; other settings must be UTF-8.
fn settings(message: &StartupMessage) -> Result<Vec<(String, String)>, LoginError> {
    let pairs = message.settings().map_err(LoginError::Startup)?;
    let text = |(name, value): (Vec<u8>, Vec<u8>)| {
        let name = utf8(&name)?;
        let value = match String::from_utf8(value) {
            Ok(value) => value,
            Err(bytes) if name.eq_ignore_ascii_case("application_name") => clean(bytes.as_bytes()),
            Err(_) => return Err(LoginError::Encoding),
        };
        Ok((name, value))
    };
    pairs.into_iter().map(text).collect()
}

fn clean(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| if matches!(byte, 32..=126) { char::from(byte) } else { '?' }).collect()
}

fn application_name(settings: &[(String, String)]) -> String {
    let last = settings.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("application_name"));
    last.map(|(_, value)| value.clone()).unwrap_or_default()
}
