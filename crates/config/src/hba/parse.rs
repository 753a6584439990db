//! Fields to rules: the grammar of pg_hba.conf, and what of it is refused.
//!
//! PostgreSQL: `parse_hba_line()` in src/backend/libpq/hba.c, and the manual's chapter "The pg_hba.conf File".

use std::net::IpAddr;

use super::token::{self, Field, Line, Token, Unclosed};
use super::{Addresses, Databases, Items, Method, Names, Options, ReadFile, Rule, Transport};
use crate::pattern::compile;
use crate::value::shorten;

/// Which field is refused, what stands there, what should.
pub(super) type Refused = (&'static str, String, String);

/// Methods that PostgreSQL knows and this version does not carry out.
const OTHER_METHODS: &[&str] = &["gss", "sspi", "ident", "radius", "bsd", "oauth", "crypt"];

const METHODS: &str = "trust, reject, password, md5, scram-sha-256, cert, peer, ldap or pam";
const ADDRESS: &str = "all, samehost, samenet, an address with a prefix length such as 10.0.0.0/8, an address and a mask, or a host's name";
/// Files of names inside files of names go this deep.
const MAX_DEPTH: usize = 8;

/// One rule of one line.
pub(super) fn rule(line: Line, read: ReadFile<'_>) -> Result<Rule, Refused> {
    let fields = match line.fields {
        Ok(fields) => fields,
        Err(Unclosed) => {
            return Err(("line", "a quote that is not closed".into(), "both quotes on one line".into()));
        }
    };
    let mut fields = fields.into_iter();
    let transport = transport(&single("type", fields.next())?)?;
    let databases = databases(expand("database", fields.next(), read, 0)?)?;
    let users = users(expand("user", fields.next(), read, 0)?)?;
    let addresses = match transport {
        Transport::Local => Addresses::All,
        _ => addresses(&mut fields)?,
    };
    let method = method(&single("method", fields.next())?, transport)?;
    let options = Options::parse(fields, method, transport)?;
    Ok(Rule { line: line.number, transport, databases, users, addresses, method, options })
}

/// Puts what a file holds in place of `@file`.
fn expand(
    name: &'static str,
    field: Option<Field>,
    read: ReadFile<'_>,
    depth: usize,
) -> Result<Option<Field>, Refused> {
    let Some(field) = field else { return Ok(None) };
    let mut all = Field::new();
    for token in field {
        let file = token.text.strip_prefix('@').filter(|file| !token.quoted && !file.is_empty());
        let Some(file) = file else {
            all.push(token);
            continue;
        };
        if depth >= MAX_DEPTH {
            return refused(name, &token, "files of names that do not name each other");
        }
        let text = read(file)
            .map_err(|found| (name, format!("{} ({found})", token.text), "a file of names".into()))?;
        for line in token::lines(&text) {
            let fields = line
                .fields
                .map_err(|Unclosed| (name, token.text.clone(), "both quotes on one line".into()))?;
            for field in fields {
                all.extend(expand(name, Some(field), read, depth + 1)?.unwrap_or_default());
            }
        }
    }
    if all.is_empty() {
        Err((name, "files without a name in them".into(), format!("a {name}")))
    } else {
        Ok(Some(all))
    }
}

fn refused<T>(field: &'static str, token: &Token, expected: impl Into<String>) -> Result<T, Refused> {
    Err((field, shorten(&token.text), expected.into()))
}

fn single(name: &'static str, field: Option<Field>) -> Result<Token, Refused> {
    let mut items = field.into_iter().flatten();
    match (items.next(), items.next()) {
        (Some(token), None) => Ok(token),
        (Some(_), Some(_)) => Err((name, "a list".into(), "one word".into())),
        (None, _) => Err((name, "the end of the line".into(), format!("a {name}"))),
    }
}

fn transport(token: &Token) -> Result<Transport, Refused> {
    let word = if token.quoted { "" } else { token.text.as_str() };
    Ok(match word {
        "local" => Transport::Local,
        "host" | "hostnogssenc" => Transport::Any,
        "hostssl" => Transport::Tls,
        "hostnossl" => Transport::NoTls,
        "hostgssenc" => Transport::GssEncryption,
        "include" | "include_if_exists" | "include_dir" => {
            return refused("type", token, "a rule (including files is not supported by this version)");
        }
        _ => return refused("type", token, "local, host, hostssl, hostnossl, hostgssenc or hostnogssenc"),
    })
}

/// What may stand wherever a name may: `/regex`, or the name. `+group` is the caller's.
fn item(field: &'static str, token: Token) -> Result<Items, Refused> {
    // PostgreSQL reads an expression in quotes too: one with a comma needs them.
    match token.text.strip_prefix('/') {
        Some("") => refused(field, &token, "a regular expression after the slash"),
        Some(expression) => match compile(expression) {
            Ok(regex) => Ok(Items::Matching(regex)),
            Err(_) => refused(field, &token, "a regular expression after the slash"),
        },
        None => Ok(Items::Named(token.text)),
    }
}

fn databases(field: Option<Field>) -> Result<Vec<Databases>, Refused> {
    let tokens = list("database", field)?;
    let database = |token: Token| {
        Ok(if token.is("all") {
            Databases::All
        } else if token.is("sameuser") {
            Databases::SameUser
        } else if token.is("replication") {
            Databases::Replication
        } else if token.is("samerole") || token.is("samegroup") {
            Databases::SameRole
        } else {
            Databases::Item(item("database", token)?)
        })
    };
    tokens.into_iter().map(database).collect()
}

fn users(field: Option<Field>) -> Result<Vec<Names>, Refused> {
    let tokens = list("user", field)?;
    let user = |token: Token| {
        Ok(if token.is("all") {
            Names::All
        } else if let Some(group) =
            token.text.strip_prefix('+').filter(|group| !token.quoted && !group.is_empty())
        {
            Names::Group(group.to_owned())
        } else {
            Names::Item(item("user", token)?)
        })
    };
    tokens.into_iter().map(user).collect()
}

fn list(name: &'static str, field: Option<Field>) -> Result<Field, Refused> {
    field.ok_or_else(|| (name, "the end of the line".into(), format!("a {name}")))
}

fn addresses(fields: &mut impl Iterator<Item = Field>) -> Result<Addresses, Refused> {
    let token = single("address", fields.next())?;
    if token.is("all") {
        return Ok(Addresses::All);
    }
    if token.is("samehost") {
        return Ok(Addresses::SameHost);
    }
    if token.is("samenet") {
        return Ok(Addresses::SameNet);
    }
    if let Some((address, length)) = token.text.split_once('/') {
        return match (address.parse::<IpAddr>(), length.parse::<u8>()) {
            (Ok(address), Ok(length)) if plain_number(length, &token.text) && length <= bits(address) => {
                Ok(Addresses::Net { address, mask: mask(address, length) })
            }
            _ => refused("address", &token, ADDRESS),
        };
    }
    let Ok(address) = token.text.parse::<IpAddr>() else { return host(&token) };
    let mask_token = single("mask", fields.next())?;
    match (address, mask_token.text.parse::<IpAddr>()) {
        (IpAddr::V4(_), Ok(mask @ IpAddr::V4(_))) | (IpAddr::V6(_), Ok(mask @ IpAddr::V6(_))) => {
            Ok(Addresses::Net { address, mask })
        }
        _ => refused(
            "mask",
            &mask_token,
            format!("a mask such as 255.255.255.0 for {address}, or {address}/24"),
        ),
    }
}

/// A name, or the end of names behind a dot. PostgreSQL takes whatever is no address; what can be no name is refused
/// here, for it would be a rule that never matches.
fn host(token: &Token) -> Result<Addresses, Refused> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_number = token.text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match token.text.strip_prefix('.') {
        _ if is_number || !token.text.bytes().all(letter) => refused("address", token, ADDRESS),
        Some(_) => Ok(Addresses::Domain(token.text.clone())),
        None => Ok(Addresses::Host(token.text.clone())),
    }
}

/// Is the number written with digits only (`u8::from_str` takes a plus sign)?
fn plain_number(number: u8, address: &str) -> bool {
    address.ends_with(&format!("/{number}"))
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The mask of so many leading ones.
fn mask(address: IpAddr, length: u8) -> IpAddr {
    let zeros = u32::from(bits(address).saturating_sub(length));
    match address {
        IpAddr::V4(_) => IpAddr::V4(u32::MAX.checked_shl(zeros).unwrap_or(0).into()),
        IpAddr::V6(_) => IpAddr::V6(u128::MAX.checked_shl(zeros).unwrap_or(0).into()),
    }
}

fn method(token: &Token, transport: Transport) -> Result<Method, Refused> {
    let word = if token.quoted { "" } else { token.text.as_str() };
    Ok(match word {
        "trust" => Method::Trust,
        "reject" => Method::Reject,
        "password" => Method::Password,
        "md5" => Method::Md5,
        "scram-sha-256" => Method::ScramSha256,
        "cert" if transport == Transport::Tls => Method::Cert,
        "cert" => return refused("method", token, "cert on hostssl lines only"),
        "peer" if transport == Transport::Local => Method::Peer,
        "peer" => return refused("method", token, "peer on local lines only"),
        "ldap" => Method::Ldap,
        "pam" => Method::Pam,
        other if OTHER_METHODS.contains(&other) => {
            return refused(
                "method",
                token,
                format!("{METHODS} (method {other} is not supported by this version)"),
            );
        }
        _ => return refused("method", token, METHODS),
    })
}
