//! The few things that are asked of the file system, bounded.

use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::error::{ConfigError, ConfigErrors, Warning};
use crate::hba::Interface;

/// The largest configuration file that is read.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The largest `pool_passwd` or `pool_hba.conf` that is read.
pub(crate) const MAX_SIDE_BYTES: u64 = 64 << 20;

/// An error about a file.
pub(crate) fn error(file: &str, line: Option<usize>, found: &str, expected: &str) -> ConfigError {
    ConfigError {
        file: file.to_owned(),
        line,
        column: None,
        key: String::new(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

fn refuse(path: &Path, found: &str, expected: &str) -> ConfigErrors {
    ConfigErrors::new(vec![error(&path.display().to_string(), None, found, expected)])
}

/// The path from the root, without following links.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, ConfigErrors> {
    std::path::absolute(path).map_err(|cause| refuse(path, &cause.to_string(), "a usable path"))
}

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, ConfigErrors> {
    let refuse = |found: &str| refuse(path, found, "a readable text file");
    let file = File::open(path).map_err(|cause| refuse(&cause.to_string()))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|cause| refuse(&cause.to_string()))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(refuse(&format!("more than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| refuse("bytes that are not UTF-8"))
}

/// A warning when everybody on this machine may read a file of secrets.
pub(crate) fn warn_if_public(path: &Path, key: &str) -> Option<Warning> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = path.metadata().ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| Warning {
        file: path.display().to_string(),
        line: None,
        key: key.to_owned(),
        message: format!("everybody on this machine may read it (mode {:04o}); chmod 600 it", mode & 0o777),
    })
}

/// This machine's addresses and their networks; none when the system does not tell.
pub(crate) fn interfaces() -> Vec<Interface> {
    use nix::ifaddrs::getifaddrs;
    use nix::sys::socket::SockaddrStorage;
    let ip = |address: Option<SockaddrStorage>| -> Option<IpAddr> {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let all = getifaddrs().into_iter().flatten();
    all.filter_map(|interface| {
        Some(Interface { address: ip(interface.address)?, mask: ip(interface.netmask)? })
    })
    .collect()
}
