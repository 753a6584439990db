//! What stands behind the method: `name=value`.
//!
//! PostgreSQL: `parse_hba_auth_opt()` in src/backend/libpq/hba.c. An option that the method does not have is refused.

use std::fmt;

use super::parse::Refused;
use super::token::Field;
use super::{Method, Transport};
use crate::value::{Masked, shorten};

/// What is asked of a client's certificate, beside the method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCert {
    /// Nothing.
    #[default]
    No,
    /// One that an authority of `ssl_ca_cert` signed.
    VerifyCa,
    /// The same, and it is the user's.
    VerifyFull,
}

/// The name in a certificate that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CertName {
    /// The common name of its subject.
    #[default]
    CommonName,
    /// The whole subject, as RFC 2253 writes it.
    DistinguishedName,
}

/// How a directory is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LdapScheme {
    /// In the clear, or with StartTLS.
    #[default]
    Ldap,
    /// Over TLS.
    Ldaps,
}

/// A directory that checks passwords: by a bind as a name made from the user's, or by a search and a bind as what was
/// found, when there is a base.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ldap {
    /// Names or addresses, in the order in which they are tried.
    pub servers: Vec<String>,
    /// The port; 389, or 636 with `ldaps`, when none is given.
    pub port: Option<u16>,
    /// How.
    pub scheme: LdapScheme,
    /// StartTLS.
    pub tls: bool,
    /// Before the user's name.
    pub prefix: String,
    /// Behind it.
    pub suffix: String,
    /// Where the search begins.
    pub base: Option<String>,
    /// Who searches; anonymous when empty.
    pub bind_dn: String,
    /// Its password.
    pub bind_password: Option<Masked>,
    /// The attribute that holds the user's name.
    pub search_attribute: Option<String>,
    /// A filter with `$username` in it, in place of the attribute.
    pub search_filter: Option<String>,
}

/// The system's modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pam {
    /// The service; `postgresql` when none is given.
    pub service: Option<String>,
    /// The modules are told the name of the client's address, where it has one.
    pub by_name: bool,
}

/// All of a line's options.
#[derive(Clone, PartialEq, Default)]
pub struct Options {
    /// The map of `pool_ident_file` between outside names and users.
    pub map: Option<String>,
    /// What is asked of the certificate.
    pub client_cert: ClientCert,
    /// Which of its names counts.
    pub cert_name: CertName,
    /// For `ldap`.
    pub ldap: Box<Ldap>,
    /// For `pam`.
    pub pam: Pam,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("map", &self.map)
            .field("client_cert", &self.client_cert)
            .finish_non_exhaustive()
    }
}

type Read = Result<(), (String, &'static str)>;

impl Options {
    pub(super) fn parse(
        fields: impl Iterator<Item = Field>,
        method: Method,
        transport: Transport,
    ) -> Result<Self, Refused> {
        let mut options = Self::default();
        for token in fields.flatten() {
            let (name, value) = token
                .text
                .split_once('=')
                .ok_or_else(|| ("option", shorten(&token.text), "name=value".to_owned()))?;
            let set = match name {
                "clientcert" if transport == Transport::Tls => options.client_cert(value, method),
                "clientname" if transport == Transport::Tls => options.client_name(value),
                "map" if matches!(method, Method::Cert | Method::Peer) => {
                    options.map = Some(value.to_owned());
                    Ok(())
                }
                "pamservice" if method == Method::Pam => options.pam.service(value),
                "pam_use_hostname" if method == Method::Pam => {
                    flag(value).map(|by_name| options.pam.by_name = by_name)
                }
                _ if method == Method::Ldap => options.ldap.set(name, value),
                _ => Err((name.to_owned(), "an option that this method has, on this type of line")),
            };
            set.map_err(|(found, expected)| ("option", shorten(&found), expected.to_owned()))?;
        }
        if method == Method::Cert {
            options.client_cert = ClientCert::VerifyFull;
        }
        if method == Method::Ldap {
            options.ldap.check().map_err(|(found, expected)| ("option", found, expected.to_owned()))?;
        }
        Ok(options)
    }

    fn client_cert(&mut self, value: &str, method: Method) -> Read {
        self.client_cert = match value {
            "verify-full" => ClientCert::VerifyFull,
            "verify-ca" if method != Method::Cert => ClientCert::VerifyCa,
            _ => return Err((value.to_owned(), "verify-full, or verify-ca with another method than cert")),
        };
        Ok(())
    }

    fn client_name(&mut self, value: &str) -> Read {
        self.cert_name = match value {
            "CN" => CertName::CommonName,
            "DN" => CertName::DistinguishedName,
            _ => return Err((value.to_owned(), "CN or DN")),
        };
        Ok(())
    }
}

fn flag(value: &str) -> Result<bool, (String, &'static str)> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err((value.to_owned(), "0 or 1")),
    }
}

impl Pam {
    /// The name of a file: libpam would look elsewhere for a path.
    fn service(&mut self, value: &str) -> Read {
        if value.is_empty() || value.contains(['/', '\0']) {
            return Err((value.to_owned(), "the name of a service"));
        }
        self.service = Some(value.to_owned());
        Ok(())
    }
}

impl Ldap {
    fn set(&mut self, name: &str, value: &str) -> Read {
        let text = value.to_owned();
        match name {
            "ldapserver" => self.servers = value.split_whitespace().map(str::to_owned).collect(),
            "ldapport" => {
                let port = value.parse().ok().filter(|port| *port > 0);
                self.port = Some(port.ok_or((text, "a port from 1 to 65535"))?);
            }
            "ldapscheme" => {
                self.scheme = match value {
                    "ldap" => LdapScheme::Ldap,
                    "ldaps" => LdapScheme::Ldaps,
                    _ => return Err((text, "ldap or ldaps")),
                }
            }
            "ldaptls" => {
                self.tls = flag(value)?;
            }
            "ldapprefix" => self.prefix = text,
            "ldapsuffix" => self.suffix = text,
            "ldapbasedn" => self.base = Some(text),
            "ldapbinddn" => self.bind_dn = text,
            "ldapbindpasswd" => self.bind_password = Some(Masked::new(value)),
            "ldapsearchattribute" => self.search_attribute = Some(text),
            "ldapsearchfilter" => self.search_filter = Some(text),
            "ldapurl" => return self.url(value),
            _ => return Err((name.to_owned(), "an option of ldap")),
        }
        Ok(())
    }

    /// `ldap[s]://host[:port]/base[?attribute[?scope[?filter]]]` (RFC 4516); the scope is always the whole tree.
    fn url(&mut self, url: &str) -> Read {
        const EXPECTED: &str = "ldap[s]://host[:port]/base[?attribute[?sub[?filter]]]";
        let refused = || (url.to_owned(), EXPECTED);
        let (scheme, rest) = url.split_once("://").ok_or_else(refused)?;
        self.scheme = match scheme {
            "ldap" => LdapScheme::Ldap,
            "ldaps" => LdapScheme::Ldaps,
            _ => return Err(refused()),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port.parse().map_err(|_| refused())?)),
            _ => (host, None),
        };
        self.servers = vec![host.to_owned()];
        self.port = port;
        let mut parts = path.split('?');
        self.base = parts.next().filter(|base| !base.is_empty()).map(str::to_owned);
        self.search_attribute = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
        if parts.next().is_some_and(|scope| !matches!(scope, "" | "sub")) {
            return Err(refused());
        }
        self.search_filter = parts.next().filter(|filter| !filter.is_empty()).map(str::to_owned);
        Ok(())
    }

    /// The two ways of using a directory do not mix.
    fn check(&self) -> Read {
        let simple = !self.prefix.is_empty() || !self.suffix.is_empty();
        let searches = !self.bind_dn.is_empty()
            || self.bind_password.is_some()
            || self.search_attribute.is_some()
            || self.search_filter.is_some();
        let refused = |expected| Err(("what stands there together".to_owned(), expected));
        match () {
            () if self.servers.is_empty() => refused("ldapserver or ldapurl as well"),
            () if simple && (self.base.is_some() || searches) => {
                refused("ldapprefix and ldapsuffix, or ldapbasedn and the options of a search")
            }
            () if !simple && self.base.is_none() => refused("ldapbasedn, ldapprefix or ldapsuffix as well"),
            () if self.search_attribute.is_some() && self.search_filter.is_some() => {
                refused("ldapsearchattribute or ldapsearchfilter, not both")
            }
            () if self.tls && self.scheme == LdapScheme::Ldaps => refused("ldaptls or ldaps, not both"),
            () => Ok(()),
        }
    }
}
