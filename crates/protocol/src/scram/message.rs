//! The four messages of an exchange, read strictly.
//!
//! Attributes come in a fixed order; unknown ones are allowed where RFC 5802 has extensions, and a
//! mandatory extension (`m=`) is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Key, MAX_ITERATIONS, MAX_MESSAGE_LEN, Mechanism, ScramError};

/// The client's word about channel binding (the GS2 header's first letter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// `n`: the client cannot.
    Unsupported,
    /// `y`: the client could, and believes that the server cannot.
    NotOffered,
    /// `p=tls-server-end-point`.
    EndPoint,
}

impl Binding {
    /// The GS2 header.
    pub(super) fn header(self) -> &'static str {
        match self {
            Self::Unsupported => "n,,",
            Self::NotOffered => "y,,",
            Self::EndPoint => "p=tls-server-end-point,,",
        }
    }

    /// The value of `c=` in the client's final message: the header and, with `EndPoint`, the channel's hash.
    pub(super) fn encoded(self, end_point: &[u8]) -> String {
        let hash = if self == Self::EndPoint { end_point } else { &[] };
        STANDARD.encode([self.header().as_bytes(), hash].concat())
    }
}

/// `n,,n=user,r=nonce`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFirst<'a> {
    pub(super) binding: Binding,
    /// The message without the GS2 header.
    pub(super) bare: &'a str,
    pub(super) nonce: &'a str,
}

/// `r=nonce,s=salt,i=count`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerFirst<'a> {
    pub(super) nonce: &'a str,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
}

/// `c=biws,r=nonce,p=proof`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFinal<'a> {
    pub(super) binding: &'a str,
    pub(super) nonce: &'a str,
    /// The message up to the proof.
    pub(super) without_proof: &'a str,
    pub(super) proof: Key,
}

const INVALID: &str = "Message is not printable or too long.";

/// SCRAM messages are UTF-8 without NUL, and short.
fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE_LEN || message.contains(&0) {
        return Err(ScramError::Malformed(INVALID));
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed(INVALID))
}

/// Takes the value of the attribute `name` from the front; what follows is the rest behind the comma.
fn attribute<'a>(
    rest: &mut Option<&'a str>,
    name: &str,
    wanted: &'static str,
) -> Result<&'a str, ScramError> {
    let part = rest.take().ok_or(ScramError::Malformed(wanted))?;
    let (first, after) = part.split_once(',').map_or((part, None), |(first, after)| (first, Some(after)));
    *rest = after;
    first.strip_prefix(name).and_then(|value| value.strip_prefix('=')).ok_or(ScramError::Malformed(wanted))
}

/// Extensions: any letter and a value, ignored; they end the message.
fn extensions(mut rest: Option<&str>) -> Result<(), ScramError> {
    while let Some(part) = rest {
        let (first, after) = part.split_once(',').map_or((part, None), |(first, after)| (first, Some(after)));
        extension(first)?;
        rest = after;
    }
    Ok(())
}

fn extension(part: &str) -> Result<(), ScramError> {
    let mut letters = part.chars();
    let valid = letters.next().is_some_and(|name| name.is_ascii_alphabetic()) && letters.next() == Some('=');
    if valid { Ok(()) } else { Err(ScramError::Malformed("Attribute expected.")) }
}

/// Printable ASCII without a comma, at least one.
fn nonce(value: &str) -> Result<&str, ScramError> {
    let valid = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
    if valid { Ok(value) } else { Err(ScramError::Malformed("Non-printable characters in SCRAM nonce.")) }
}

/// `mechanism` is the one that the client selected.
pub(super) fn client_first(message: &[u8], mechanism: Mechanism) -> Result<ClientFirst<'_>, ScramError> {
    let text = text(message)?;
    let (flag, rest) = text.split_once(',').ok_or(ScramError::Malformed("Comma expected."))?;
    let binding = match flag {
        "n" => Binding::Unsupported,
        "y" => Binding::NotOffered,
        _ if flag.starts_with("p=") && mechanism == Mechanism::Sha256 => {
            let text = "The client selected SCRAM-SHA-256 without channel binding, \
                but the SCRAM message includes channel binding data.";
            return Err(ScramError::Malformed(text));
        }
        "p=tls-server-end-point" => Binding::EndPoint,
        _ if flag.starts_with("p=") => {
            return Err(ScramError::Unsupported("unsupported SCRAM channel-binding type"));
        }
        _ => return Err(ScramError::Malformed("Unexpected channel-binding flag.")),
    };
    if mechanism == Mechanism::Sha256Plus && binding != Binding::EndPoint {
        let text = "The client selected SCRAM-SHA-256-PLUS, \
            but the SCRAM message does not include channel binding data.";
        return Err(ScramError::Malformed(text));
    }
    let (authzid, bare) = rest.split_once(',').ok_or(ScramError::Malformed("Comma expected."))?;
    if authzid.starts_with("a=") {
        return Err(ScramError::Unsupported("client uses authorization identity, but it is not supported"));
    }
    if !authzid.is_empty() {
        return Err(ScramError::Malformed("Unexpected attribute in client-first-message."));
    }
    if bare.starts_with("m=") {
        return Err(ScramError::Unsupported("client requires an unsupported SCRAM extension"));
    }
    let mut rest = Some(bare);
    // The user name counts as given at start-up; what stands here is ignored, as in PostgreSQL.
    attribute(&mut rest, "n", "User name expected.")?;
    let nonce = nonce(attribute(&mut rest, "r", "Nonce expected.")?)?;
    extensions(rest)?;
    Ok(ClientFirst { binding, bare, nonce })
}

pub(super) fn client_final(message: &[u8]) -> Result<ClientFinal<'_>, ScramError> {
    const PROOF: &str = "Malformed proof in client-final-message.";
    let text = text(message)?;
    let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed(PROOF))?;
    let proof = STANDARD.decode(proof).ok().and_then(|proof| proof.try_into().ok());
    let proof = proof.ok_or(ScramError::Malformed(PROOF))?;
    let mut rest = Some(without_proof);
    let binding = attribute(&mut rest, "c", "Channel binding expected.")?;
    let nonce = nonce(attribute(&mut rest, "r", "Nonce expected.")?)?;
    extensions(rest)?;
    Ok(ClientFinal { binding, nonce, without_proof, proof })
}

pub(super) fn server_first(message: &[u8]) -> Result<ServerFirst<'_>, ScramError> {
    let text = text(message)?;
    if text.starts_with("m=") {
        return Err(ScramError::Unsupported("server requires an unsupported SCRAM extension"));
    }
    let mut rest = Some(text);
    let nonce = nonce(attribute(&mut rest, "r", "Nonce expected.")?)?;
    let salt = STANDARD.decode(attribute(&mut rest, "s", "Salt expected.")?).ok();
    let salt = salt.filter(|salt| !salt.is_empty()).ok_or(ScramError::Malformed("Invalid salt."))?;
    let count = attribute(&mut rest, "i", "Iteration count expected.")?;
    extensions(rest)?;
    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(ScramError::Malformed("Invalid iteration count."));
    }
    let count: u64 = count.parse().unwrap_or(u64::MAX);
    match u32::try_from(count) {
        Ok(iterations @ 1..=MAX_ITERATIONS) => Ok(ServerFirst { nonce, salt, iterations }),
        _ => Err(ScramError::Iterations(count)),
    }
}

/// The server's signature, or the error it names.
pub(super) fn server_final(message: &[u8]) -> Result<Key, ScramError> {
    const SIGNATURE: &str = "Malformed server signature.";
    let text = text(message)?;
    if let Some(error) = text.strip_prefix("e=") {
        let name = error.split(',').next().unwrap_or_default();
        return Err(ScramError::Server(name.chars().filter(char::is_ascii_graphic).take(100).collect()));
    }
    let mut rest = Some(text);
    let signature = STANDARD.decode(attribute(&mut rest, "v", SIGNATURE)?).ok();
    extensions(rest)?;
    signature.and_then(|bytes| bytes.try_into().ok()).ok_or(ScramError::Malformed(SIGNATURE))
}
