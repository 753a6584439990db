//! What is read in certificates: names, the hash of channel binding, the dates.

use std::net::IpAddr;

use protocol::scram::BindingHash;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

/// Names of attributes in a distinguished name (RFC 4514, section 3, and those that OpenSSL adds).
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "street"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Who a client's certificate says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateNames {
    /// The last common name of the subject, where there is one.
    pub common_name: Option<String>,
    /// The whole subject, as RFC 2253 writes it.
    pub distinguished_name: String,
}

/// The names in a certificate; `None` when it cannot be read.
pub(super) fn names(der: &[u8]) -> Option<CertificateNames> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    Some(CertificateNames { common_name: common_name(subject), distinguished_name: distinguished(subject) })
}

/// The most specific common name; none when it holds a NUL, which OpenSSL's users cut names at.
fn common_name(name: &X509Name<'_>) -> Option<String> {
    let last = name.iter_common_name().last()?;
    last.as_str().ok().filter(|text| !text.contains('\0')).map(str::to_owned)
}

fn distinguished(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name
        .iter_rdn()
        .map(|rdn| {
            let one = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
                let oid = attribute.attr_type().to_id_string();
                let short = SHORT_NAMES.iter().find(|(known, _)| *known == oid).map(|(_, short)| *short);
                format!("{}={}", short.unwrap_or(&oid), escaped(attribute.as_str().unwrap_or_default()))
            };
            rdn.iter().map(one).collect::<Vec<_>>().join("+")
        })
        .collect();
    parts.reverse();
    parts.join(",")
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (index, letter) in value.chars().enumerate() {
        let special = matches!(letter, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || (index == 0 && matches!(letter, '#' | ' '));
        if special {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// The hash of `tls-server-end-point` (RFC 5929, section 4.1): that of the certificate's signature, SHA-256 in
/// place of MD5 and SHA-1. A signature without one hash of its own (Ed25519) has no such binding.
pub(super) fn end_point(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let algorithm = certificate.signature_algorithm.algorithm.to_id_string();
    let hash = match algorithm.as_str() {
        // MD5 and SHA-1 with RSA, SHA-1 with ECDSA and DSA; then SHA-256 with RSA, ECDSA, DSA.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.10045.4.1"
        | "1.2.840.10040.4.3"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.3.2"
        | "2.16.840.1.101.3.4.3.2" => BindingHash::Sha256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => BindingHash::Sha384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => BindingHash::Sha512,
        "1.2.840.113549.1.1.10" => pss_hash(&certificate)?,
        _ => return None,
    };
    Some(hash.of(der))
}

/// The hash that RSA-PSS is parametrised with (RFC 4055); SHA-1 when it names none.
fn pss_hash(certificate: &X509Certificate<'_>) -> Option<BindingHash> {
    use x509_parser::signature_algorithm::SignatureAlgorithm;
    let Ok(SignatureAlgorithm::RSASSA_PSS(params)) =
        SignatureAlgorithm::try_from(&certificate.signature_algorithm)
    else {
        return None;
    };
    match params.hash_algorithm_oid().to_id_string().as_str() {
        "1.3.14.3.2.26" | "2.16.840.1.101.3.4.2.1" => Some(BindingHash::Sha256),
        "2.16.840.1.101.3.4.2.2" => Some(BindingHash::Sha384),
        "2.16.840.1.101.3.4.2.3" => Some(BindingHash::Sha512),
        _ => None,
    }
}

/// Whether a node's certificate is for `host`: as libpq looks (`pq_verify_peer_name_matches_certificate`), at the
/// alternative names of the host's kind, and at the common name only when there is none of these.
pub(super) fn is_for(der: &[u8], host: &str) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return false };
    let address: Option<IpAddr> = host.parse().ok();
    let mut same_kind = false;
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        for name in &alternatives.value.general_names {
            let fits = match (name, address) {
                (GeneralName::DNSName(pattern), None) => name_fits(pattern, host),
                (GeneralName::IPAddress(bytes), Some(address)) => is_address(bytes, address),
                // A host that is an address may stand among the names too, written out.
                (GeneralName::DNSName(_), Some(_)) | (_, _) => continue,
            };
            same_kind = true;
            if fits {
                return true;
            }
        }
    }
    !same_kind && common_name(certificate.subject()).is_some_and(|name| name_fits(&name, host))
}

fn is_address(bytes: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => *bytes == address.octets(),
        IpAddr::V6(address) => *bytes == address.octets(),
    }
}

/// A name, or `*.` and the rest of one: the star is one label (`wildcard_certificate_match`).
fn name_fits(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let (Some(rest), Some((label, domain))) = (pattern.strip_prefix("*."), host.split_once('.')) else {
        return false;
    };
    !label.is_empty() && rest.eq_ignore_ascii_case(domain) && host.parse::<IpAddr>().is_err()
}

/// Whether the certificate is valid at that time (seconds since 1970).
pub(super) fn is_current(der: &[u8], now: u64) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return false };
    let validity = certificate.validity();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    validity.not_before.timestamp() <= now && now <= validity.not_after.timestamp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_one_label() {
        for (pattern, host, fits) in [
            ("db.example.com", "DB.example.com", true),
            ("*.example.com", "db.example.com", true),
            ("*.example.com", "a.db.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("d*.example.com", "db.example.com", false),
            ("*", "db", false),
            ("*.0.0.1", "127.0.0.1", false),
        ] {
            assert_eq!(name_fits(pattern, host), fits, "{pattern} {host}");
        }
    }

    #[test]
    fn what_separates_names_is_escaped() {
        assert_eq!(escaped("a,b+c"), "a\\,b\\+c");
        assert_eq!(escaped("#x y"), "\\#x y");
    }

    #[test]
    fn nonsense_is_no_certificate() {
        assert_eq!(names(b"nonsense"), None);
        assert_eq!(end_point(b"nonsense"), None);
        assert!(!is_for(b"nonsense", "db") && !is_current(b"nonsense", 0));
    }
}
