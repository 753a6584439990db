//! TLS towards nodes: libpq's six modes.
//!
//! Invariant: `verify-ca` and `verify-full` never give a connection whose certificate was not verified, and no
//! failure of a verification leads to plain text.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use config::{BackendSslMode, Config};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WantsClientCert, verify_server_cert_signed_by_trust_anchor};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use super::stream::{Socket, Tls};
use super::{ALPN, TlsError, certificate, files, provider};
use crate::stream::Stream;

/// When TLS is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Policy {
    /// Never.
    #[default]
    Disable,
    /// When the node refuses without.
    Allow,
    /// When the node can; without when it cannot or refuses with.
    Prefer,
    /// Always.
    Require,
}

/// What is asked of nodes.
#[derive(Default)]
pub struct NodeTls {
    policy: Policy,
    config: Option<Arc<ClientConfig>>,
    /// What it was made from, so that equal ones are told.
    made_from: Option<MadeFrom>,
}

#[derive(PartialEq, Eq)]
struct MadeFrom {
    mode: BackendSslMode,
    roots: Vec<CertificateDer<'static>>,
    own: Vec<CertificateDer<'static>>,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTls").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl PartialEq for NodeTls {
    fn eq(&self, other: &Self) -> bool {
        self.made_from == other.made_from
    }
}

/// A node's connection over TLS.
pub(crate) struct Encrypted {
    pub(crate) stream: Stream,
    /// The binding that `tls-server-end-point` has with the node's certificate.
    pub(crate) end_point: Option<Vec<u8>>,
}

impl NodeTls {
    /// From the files that `config` names.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub(super) fn build(config: &Config) -> Result<Self, TlsError> {
        let mode = config.backend_sslmode;
        let policy = match mode {
            BackendSslMode::Disable => return Ok(Self::default()),
            BackendSslMode::Allow => Policy::Allow,
            BackendSslMode::Prefer => Policy::Prefer,
            BackendSslMode::Require | BackendSslMode::VerifyCa | BackendSslMode::VerifyFull => {
                Policy::Require
            }
        };
        let roots = match &config.backend_ssl_root_cert {
            Some(path) => files::certificates("backend_ssl_root_cert", path)?,
            None => Vec::new(),
        };
        let check = match mode {
            BackendSslMode::VerifyFull => Check::Full,
            BackendSslMode::VerifyCa => Check::Chain,
            // libpq: with a root file, require means verify-ca.
            BackendSslMode::Require if !roots.is_empty() => Check::Chain,
            _ => Check::Nothing,
        };
        let builder = verifying("backend_sslmode", check, &roots)?;
        let (mut client, own) = match (&config.backend_ssl_cert, &config.backend_ssl_key) {
            (Some(cert), Some(key)) => {
                let chain = files::certificates("backend_ssl_cert", cert)?;
                let secret = files::private_key("backend_ssl_key", key)?;
                let client = builder.with_client_auth_cert(chain.clone(), secret);
                (client.map_err(|error| TlsError::new("backend_ssl_key", key, error))?, chain)
            }
            (None, None) => (builder.with_no_client_auth(), Vec::new()),
            (Some(_), None) => return Err(TlsError::of("backend_ssl_key", "backend_ssl_cert needs its key")),
            (None, Some(_)) => {
                return Err(TlsError::of("backend_ssl_cert", "backend_ssl_key needs its certificate"));
            }
        };
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let made_from = Some(MadeFrom { mode, roots, own });
        Ok(Self { policy, config: Some(Arc::new(client)), made_from })
    }

    /// Towards the pgweir that runs this configuration: what it shows must be in, or signed by, `ssl_cert`. Nothing when
    /// it takes no TLS.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn towards_ourselves(config: &Config) -> Result<Option<Self>, TlsError> {
        let Some(path) = config.ssl_cert.as_deref().filter(|_| config.ssl != config::Ssl::Off) else {
            return Ok(None);
        };
        let roots = files::certificates("ssl_cert", path)?;
        let mut client = verifying("ssl_cert", Check::Chain, &roots)?.with_no_client_auth();
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let made_from = Some(MadeFrom { mode: BackendSslMode::VerifyCa, roots, own: Vec::new() });
        Ok(Some(Self { policy: Policy::Require, config: Some(Arc::new(client)), made_from }))
    }

    /// When it is asked for.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Does the handshake with the node that is called `host`.
    ///
    /// # Errors
    /// Those of the socket, of the handshake and of the verification.
    pub(crate) async fn connect(&self, stream: Stream, host: &str) -> io::Result<Encrypted> {
        let Some(config) = &self.config else { return Err(io::ErrorKind::Unsupported.into()) };
        let connector = TlsConnector::from(Arc::clone(config));
        // A name that DNS does not know of (a name of this machine's own) is not told; it cannot be verified either.
        let unnamed = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
        let name = ServerName::try_from(host.to_owned()).unwrap_or(unnamed);
        let stream = Box::pin(connector.connect(name, Socket::new(stream, Bytes::new())?)).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let end_point = shown.and_then(|shown| certificate::end_point(shown));
        Ok(Encrypted { stream: Stream::Tls(Box::new(Tls::new(stream.into()))), end_point })
    }
}

/// The beginning of a configuration, up to what we show ourselves.
fn verifying(
    key: &'static str,
    check: Check,
    roots: &[CertificateDer<'static>],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let verifier = NodeVerifier {
        check,
        store: files::roots(roots),
        roots: roots.to_vec(),
        algorithms: provider().signature_verification_algorithms,
    };
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::of(key, error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

/// How much of a node's certificate is looked at. That the node has its key is always verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Nothing,
    Chain,
    Full,
}

#[derive(Debug)]
struct NodeVerifier {
    check: Check,
    roots: Vec<CertificateDer<'static>>,
    store: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.check == Check::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        if self.roots.iter().any(|root| root.as_ref() == end_entity.as_ref()) {
            // A certificate that is trusted as it is: self-signed servers are set up this way, and OpenSSL agrees.
            if !certificate::is_current(end_entity, now.as_secs()) {
                return Err(CertificateError::Expired.into());
            }
        } else {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.store,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        if self.check == Check::Full && !certificate::is_for(end_entity, &server_name.to_str()) {
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
