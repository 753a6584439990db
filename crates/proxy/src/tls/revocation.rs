//! Client certificates that are no longer valid.
//!
//! The lists are files of the administrator's, trusted as `ssl_ca_cert` is: their signatures are not checked, their
//! dates are. As with OpenSSL's `CRL_CHECK_ALL` a certificate whose issuer has no list is refused. rustls' own
//! check is not used because it takes no lists of version 1, which `openssl ca -gencrl` makes by default.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::{TlsError, files};

/// One issuer's list.
#[derive(Debug)]
struct List {
    /// When the next one is due, in seconds since 1970.
    until: i64,
    serials: HashSet<Vec<u8>>,
}

/// The lists by the name of their issuer, in DER.
#[derive(Debug)]
pub(super) struct Revocations(HashMap<Vec<u8>, List>);

impl Revocations {
    /// Reads a PEM file of lists.
    pub(super) fn read(key: &'static str, path: &Path) -> Result<Self, TlsError> {
        let mut lists = HashMap::new();
        for der in files::revocations(key, path)? {
            let (_, list) = CertificateRevocationList::from_der(&der)
                .map_err(|error| TlsError::new(key, path, format!("not a revocation list: {error}")))?;
            let serials = list.iter_revoked_certificates().map(|entry| entry.raw_serial().to_vec()).collect();
            let until = list.next_update().map_or(i64::MAX, |time| time.timestamp());
            lists.insert(list.issuer().as_raw().to_vec(), List { until, serials });
        }
        Ok(Self(lists))
    }

    fn check(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        let (_, certificate) =
            X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let list =
            self.0.get(certificate.issuer().as_raw()).ok_or(CertificateError::UnknownRevocationStatus)?;
        if list.until < i64::try_from(now.as_secs()).unwrap_or(i64::MAX) {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        match list.serials.contains(certificate.raw_serial()) {
            true => Err(CertificateError::Revoked.into()),
            false => Ok(()),
        }
    }
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
        self.revocations.check(end_entity, now)?;
        intermediates.iter().try_for_each(|certificate| self.revocations.check(certificate, now))?;
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
