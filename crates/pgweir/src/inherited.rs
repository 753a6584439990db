//! Listening sockets that the service manager has opened for us (`LISTEN_FDS`, `sd_listen_fds(3)`).

use anyhow::{Context, bail};
use listenfd::ListenFd;
use proxy::listener::Inherited;

/// The sockets, which are ours from now on. To be called before there are threads: it clears the variables, so
/// that no program that we start takes them for its own.
///
/// # Errors
/// One of them is no listening stream socket.
pub(crate) fn take() -> anyhow::Result<Vec<Inherited>> {
    let mut given = ListenFd::from_env();
    (0..given.len()).map(|at| one(&mut given, at)).collect()
}

fn one(given: &mut ListenFd, at: usize) -> anyhow::Result<Inherited> {
    if let Ok(Some(listener)) = given.take_tcp_listener(at) {
        return Ok(Inherited::Tcp(listener));
    }
    let unix = given.take_unix_listener(at);
    match unix.with_context(|| format!("socket {at} of LISTEN_FDS is neither TCP nor Unix"))? {
        Some(listener) => Ok(Inherited::Unix(listener)),
        None => bail!("socket {at} of LISTEN_FDS is not there"),
    }
}
