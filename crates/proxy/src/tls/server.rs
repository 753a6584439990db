//! TLS towards clients.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use config::{Config, Ssl};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::certificate::{self, CertificateNames};
use super::revocation::{Revocations, RevokingVerifier};
use super::stream::{Socket, Tls};
use super::{ALPN, TlsError, files, provider};
use crate::stream::Stream;

/// What clients are offered.
pub struct ServerTls {
    acceptor: TlsAcceptor,
    /// The binding that `tls-server-end-point` has with our certificate.
    pub end_point: Option<Arc<[u8]>>,
    /// Those who do not want it are refused.
    pub required: bool,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("required", &self.required).finish_non_exhaustive()
    }
}

/// What a client's handshake told.
#[derive(Debug)]
pub struct Accepted {
    /// It named the protocol.
    pub has_alpn: bool,
    /// The names in the certificate that it showed; the certificate is verified.
    pub certificate: Option<CertificateNames>,
}

impl ServerTls {
    /// From the files that `config` names.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub(super) fn build(config: &Config) -> Result<Self, TlsError> {
        let missing = |key| TlsError::of(key, "it is needed because ssl is not off");
        let cert = config.ssl_cert.as_deref().ok_or_else(|| missing("ssl_cert"))?;
        let key = config.ssl_key.as_deref().ok_or_else(|| missing("ssl_key"))?;
        let chain = files::certificates("ssl_cert", cert)?;
        let end_point = chain.first().and_then(|own| certificate::end_point(own)).map(Arc::from);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::of("ssl", error))?;
        let builder = match &config.ssl_ca_cert {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let own = files::certificates("ssl_ca_cert", path)?;
                let authorities = files::roots(&own);
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider());
                let verifier = verifier.allow_unauthenticated().build();
                let inner = verifier.map_err(|error| TlsError::new("ssl_ca_cert", path, error))?;
                let verifier = match &config.ssl_crl_file {
                    None => inner,
                    Some(path) => {
                        let revocations = Revocations::read("ssl_crl_file", path, &own)?;
                        Arc::new(RevokingVerifier { inner, revocations })
                    }
                };
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut server = builder
            .with_single_cert(chain, files::private_key("ssl_key", key)?)
            .map_err(|error| TlsError::new("ssl_key", key, error))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        // PostgreSQL resumes no sessions, and what is not kept takes no memory.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(server)),
            end_point,
            required: config.ssl == Ssl::Require,
        })
    }

    /// Does the handshake; `prefix` was read already.
    ///
    /// # Errors
    /// Those of the socket and of the handshake.
    pub async fn accept(&self, stream: Stream, prefix: Bytes) -> io::Result<(Stream, Accepted)> {
        let accepting = Box::pin(self.acceptor.accept(Socket::new(stream, prefix)?));
        let stream = accepting.await?;
        let (_, session) = stream.get_ref();
        let has_alpn = session.alpn_protocol() == Some(ALPN);
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let certificate = match shown.map(|shown| certificate::names(shown)) {
            Some(None) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "unreadable client certificate"));
            }
            names => names.flatten(),
        };
        let stream = Stream::Tls(Box::new(Tls::new(stream.into())));
        Ok((stream, Accepted { has_alpn, certificate }))
    }
}
