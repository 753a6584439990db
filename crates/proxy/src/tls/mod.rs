//! TLS on both sides: what it is made from, and how a connection is taken over into it.
//!
//! Everything that can fail because of files fails in [`TlsSetup::build`], before a configuration is put in force;
//! sessions keep what they began with when certificates change. One provider (ring), TLS 1.2 and 1.3, no
//! resumption: PostgreSQL does none either.

mod certificate;
mod files;
mod node;
mod revocation;
mod server;
mod stream;

use std::sync::Arc;

use config::Config;
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::CryptoProvider;

pub use certificate::CertificateNames;
pub use files::TlsError;
pub use node::NodeTls;
pub(crate) use node::{Encrypted, Policy};
pub use server::{Accepted, ServerTls};
pub use stream::Tls;

/// The protocol's name in ALPN.
pub(crate) const ALPN: &[u8] = b"postgresql";

/// Both sides, ready for use.
#[derive(Debug, Clone, Default)]
pub struct TlsSetup {
    /// For clients; `None` when they cannot have it.
    pub server: Option<Arc<ServerTls>>,
    /// For nodes.
    pub nodes: Arc<NodeTls>,
}

impl TlsSetup {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// The first file that cannot be used, by key.
    pub fn build(config: &Config) -> Result<Self, TlsError> {
        let server = match config.ssl {
            config::Ssl::Off => None,
            config::Ssl::Allow | config::Ssl::Require => Some(Arc::new(ServerTls::build(config)?)),
        };
        Ok(Self { server, nodes: Arc::new(NodeTls::build(config)?) })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
