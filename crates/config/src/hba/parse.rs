//! Fields to rules: the grammar of pg_hba.conf, and what of it this version refuses.
//!
//! PostgreSQL: `parse_hba_line()` in src/backend/libpq/hba.c, and the manual's chapter "The pg_hba.conf File".

use std::net::IpAddr;

use super::token::{Field, Line, Token, Unclosed};
use super::{Addresses, Databases, Items, Method, Names, Rule, Transport};
use crate::pattern::compile;
use crate::value::shorten;

/// Which field is refused, what stands there, what should.
pub(super) type Refused = (&'static str, String, String);

/// Methods that PostgreSQL knows and this version does not carry out.
const OTHER_METHODS: &[&str] =
    &["gss", "sspi", "ident", "peer", "ldap", "radius", "cert", "pam", "bsd", "oauth", "crypt"];

const METHODS: &str = "trust, reject, password, md5 or scram-sha-256";
const ADDRESS: &str = "all, an address with a prefix length such as 10.0.0.0/8, or an address and a mask";

/// One rule of one line.
pub(super) fn rule(line: Line) -> Result<Rule, Refused> {
    let fields = match line.fields {
        Ok(fields) => fields,
        Err(Unclosed) => {
            return Err(("line", "a quote that is not closed".into(), "both quotes on one line".into()));
        }
    };
    let mut fields = fields.into_iter();
    let transport = transport(&single("type", fields.next())?)?;
    let databases = databases(fields.next())?;
    let users = users(fields.next())?;
    let addresses = match transport {
        Transport::Local => Addresses::All,
        _ => addresses(&mut fields)?,
    };
    let method = method(&single("method", fields.next())?)?;
    if let Some(option) = fields.next() {
        let option = option.first().map(|token| shorten(&token.text)).unwrap_or_default();
        return Err((
            "option",
            option,
            "the end of the line (authentication options are not supported by this version)".into(),
        ));
    }
    Ok(Rule { line: line.number, transport, databases, users, addresses, method })
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

/// What may stand wherever a name may: `@file`, `/regex`, or the name. `+group` is the caller's.
fn item(field: &'static str, token: Token) -> Result<Items, Refused> {
    if !token.quoted && token.text.starts_with('@') && token.text.len() > 1 {
        return refused(field, &token, "names themselves (@file is not supported by this version)");
    }
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

const GROUPS: &str = "a name, all or /regex (membership of roles cannot be evaluated by this version)";

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
            return refused("database", &token, GROUPS);
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
        } else if !token.quoted && token.text.starts_with('+') {
            return refused("user", &token, GROUPS);
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
    if token.is("samehost") || token.is("samenet") {
        let expected = format!("{ADDRESS} ({} is not supported by this version)", token.text);
        return refused("address", &token, expected);
    }
    if let Some((address, length)) = token.text.split_once('/') {
        return match (address.parse::<IpAddr>(), length.parse::<u8>()) {
            (Ok(address), Ok(length)) if plain_number(length, &token.text) && length <= bits(address) => {
                Ok(Addresses::Net { address, mask: mask(address, length) })
            }
            _ => refused("address", &token, ADDRESS),
        };
    }
    let Ok(address) = token.text.parse::<IpAddr>() else {
        return refused(
            "address",
            &token,
            format!("{ADDRESS} (host names are not supported by this version)"),
        );
    };
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

fn method(token: &Token) -> Result<Method, Refused> {
    let word = if token.quoted { "" } else { token.text.as_str() };
    Ok(match word {
        "trust" => Method::Trust,
        "reject" => Method::Reject,
        "password" => Method::Password,
        "md5" => Method::Md5,
        "scram-sha-256" => Method::ScramSha256,
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
