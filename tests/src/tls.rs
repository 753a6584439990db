//! TLS for the raw client: any certificate is taken, and told.

use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

/// A connection over TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// What a client offers.
#[derive(Clone, Debug)]
pub struct TlsOffer {
    /// Names in ALPN.
    pub alpn: Vec<&'static [u8]>,
    /// The versions.
    pub versions: &'static [&'static SupportedProtocolVersion],
}

impl Default for TlsOffer {
    fn default() -> Self {
        Self { alpn: vec![b"postgresql"], versions: rustls::ALL_VERSIONS }
    }
}

#[derive(Debug)]
struct Anything(Arc<CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Does the handshake, the whole of it.
///
/// # Errors
/// When it fails.
pub(crate) fn handshake(mut socket: TcpStream, offer: &TlsOffer) -> Result<TlsStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(offer.versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything(provider)))
        .with_no_client_auth();
    config.alpn_protocols = offer.alpn.iter().map(|name| name.to_vec()).collect();
    let mut session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket).context("TLS handshake")?;
    }
    Ok(StreamOwned::new(session, socket))
}
