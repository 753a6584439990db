//! Client certificates that are no longer valid.
//!
//! As with OpenSSL's `CRL_CHECK_ALL` a certificate whose issuer has no list, or only one that is out of date, is refused.
//! A list counts when its issuer has signed it: one of `ssl_ca_cert` when the file is read, an authority below them when
//! a client shows it. rustls' own check is not used because it takes no lists of version 1, which `openssl ca -gencrl`
//! makes by default.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::{TlsError, files};

/// One list.
#[derive(Debug)]
struct List {
    /// When the next one is due, in seconds since 1970.
    until: i64,
    serials: HashSet<Vec<u8>>,
    /// The whole of it, as long as nobody who could have signed it is known.
    unverified: Option<CertificateRevocationListDer<'static>>,
}

/// The lists by the name of their issuer, in DER.
#[derive(Debug)]
pub(super) struct Revocations(HashMap<Vec<u8>, Vec<List>>);

impl Revocations {
    /// Reads a PEM file of lists. One of an issuer among `authorities` has to be signed by it.
    pub(super) fn read(
        key: &'static str,
        path: &Path,
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, TlsError> {
        let mut lists: HashMap<_, Vec<_>> = HashMap::new();
        for der in files::revocations(key, path)? {
            let (issuer, list) = read(&der, authorities).map_err(|error| TlsError::new(key, path, error))?;
            lists.entry(issuer).or_default().push(list);
        }
        Ok(Self(lists))
    }

    /// `shown` are the authorities below ours that the client has sent along.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let (_, certificate) =
            X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let lists = self.0.get(certificate.issuer().as_raw()).map(Vec::as_slice).unwrap_or_default();
        let counts = |list: &&List| match &list.unverified {
            None => true,
            Some(der) => signature(der, shown) == Signature::Good,
        };
        let counting: Vec<&List> = lists.iter().filter(counts).collect();
        if counting.iter().any(|list| list.serials.contains(certificate.raw_serial())) {
            return Err(CertificateError::Revoked.into());
        }
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        match counting.iter().any(|list| list.until >= now) {
            true => Ok(()),
            false => Err(CertificateError::UnknownRevocationStatus.into()),
        }
    }
}

/// What can be said of a list's signature.
#[derive(Debug, PartialEq, Eq)]
enum Signature {
    Good,
    Bad,
    /// Nobody who could have signed it is known.
    Unknown,
}

fn signature(der: &CertificateRevocationListDer<'_>, authorities: &[CertificateDer<'_>]) -> Signature {
    let Ok((_, list)) = CertificateRevocationList::from_der(der) else { return Signature::Bad };
    let parsed = authorities.iter().filter_map(|authority| X509Certificate::from_der(authority).ok());
    let mut found = Signature::Unknown;
    for (_, authority) in parsed.filter(|(_, authority)| authority.subject() == list.issuer()) {
        match list.verify_signature(authority.public_key()) {
            Ok(()) => return Signature::Good,
            Err(_) => found = Signature::Bad,
        }
    }
    found
}

/// A list, and its issuer's name.
fn read(
    der: &CertificateRevocationListDer<'static>,
    authorities: &[CertificateDer<'_>],
) -> Result<(Vec<u8>, List), String> {
    let (_, list) = CertificateRevocationList::from_der(der)
        .map_err(|error| format!("not a revocation list: {error}"))?;
    let issuer = list.issuer();
    let unverified = match signature(der, authorities) {
        Signature::Good => None,
        Signature::Unknown => Some(der.clone()),
        Signature::Bad => {
            return Err(format!("the list of {issuer} is not signed by the one in ssl_ca_cert"));
        }
    };
    let serials = list.iter_revoked_certificates().map(|entry| entry.raw_serial().to_vec()).collect();
    let until = list.next_update().map_or(i64::MAX, |time| time.timestamp());
    Ok((issuer.as_raw().to_vec(), List { until, serials, unverified }))
}

/// What `inner` verifies, less what is revoked.
#[derive(Debug)]
pub(super) struct RevokingVerifier {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) revocations: Revocations,
}

impl ClientCertVerifier for RevokingVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let check = |certificate| self.revocations.check(certificate, intermediates, now);
        check(end_entity)?;
        intermediates.iter().try_for_each(check)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
