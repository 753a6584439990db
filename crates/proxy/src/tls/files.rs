//! Certificates, keys and lists from files, and what can be wrong with them.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// TLS cannot be set up: which key of the configuration, and why.
#[derive(Debug, thiserror::Error)]
#[error("{key}{}: {reason}", .path.as_ref().map(|path| format!(" ({})", path.display())).unwrap_or_default())]
pub struct TlsError {
    /// The configuration key.
    pub key: &'static str,
    /// The file.
    pub path: Option<PathBuf>,
    /// What is wrong.
    pub reason: String,
}

impl TlsError {
    pub(super) fn new(key: &'static str, path: &Path, reason: impl ToString) -> Self {
        Self { key, path: Some(path.to_owned()), reason: reason.to_string() }
    }

    pub(super) fn of(key: &'static str, reason: impl ToString) -> Self {
        Self { key, path: None, reason: reason.to_string() }
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;
    let told = |error: std::io::Error| TlsError::new(key, path, error);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(told)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(told)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(TlsError::new(key, path, format!("more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The certificates of a PEM file, at least one.
pub(super) fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| TlsError::new(key, path, error))?;
    if all.is_empty() { Err(TlsError::new(key, path, "no certificate in it")) } else { Ok(all) }
}

/// The private key of a PEM file. As PostgreSQL demands, nobody but its owner, or root's group, may read it.
pub(super) fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let metadata = path.metadata().map_err(|error| TlsError::new(key, path, error))?;
    let mode = metadata.permissions().mode();
    let allowed = if metadata.uid() == 0 { 0o740 } else { 0o700 };
    if mode & 0o777 & !allowed != 0 {
        let text = format!("others may read or write it (mode {:04o}); chmod 600 it", mode & 0o777);
        return Err(TlsError::new(key, path, text));
    }
    let bytes = read(key, path)?;
    if String::from_utf8_lossy(&bytes).contains("ENCRYPTED") {
        let text =
            "it is protected by a passphrase, which nobody is there to type; remove it with openssl pkey";
        return Err(TlsError::new(key, path, text));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| TlsError::new(key, path, error))
}

/// Authorities from a PEM file.
pub(super) fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut store = RootCertStore::empty();
    // One that cannot be an authority is of use only as itself, see `NodeVerifier`.
    store.add_parsable_certificates(certificates.iter().cloned());
    store
}

/// Revocation lists from a PEM file, at least one.
pub(super) fn revocations(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| TlsError::new(key, path, error))?;
    if all.is_empty() { Err(TlsError::new(key, path, "no revocation list in it")) } else { Ok(all) }
}
