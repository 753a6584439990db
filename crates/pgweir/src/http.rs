//! Binds `metrics_listen` and serves it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use admin::AdminView;
use anyhow::{Context, bail};
use config::{Config, HostPort};
use telemetry::{Metrics, Tasks};
use tokio::net::{TcpListener, lookup_host};

/// Serves on every address of `metrics_listen`, if it is on.
///
/// # Errors
/// No address can be bound, or one is taken.
pub(crate) async fn start(
    config: &Config,
    tasks: &Tasks,
    view: &Arc<dyn AdminView>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<()> {
    let Some(listen) = &config.metrics_listen else { return Ok(()) };
    for listener in
        bind(listen).await.with_context(|| format!("cannot listen on {listen} (metrics_listen)"))?
    {
        let address = listener.local_addr()?;
        tracing::info!(%address, "serving HTTP");
        tasks.spawn("http", admin::serve(listener, tasks.clone(), Arc::clone(view), Arc::clone(metrics)));
    }
    Ok(())
}

/// Every address of the name that this machine has.
pub(crate) async fn bind(listen: &HostPort) -> anyhow::Result<Vec<TcpListener>> {
    if listen.host == "*" {
        return Ok(vec![bind_all(listen.port).await?]);
    }
    let (mut bound, mut absent) = (Vec::new(), None);
    for address in lookup_host((listen.host.as_str(), listen.port)).await? {
        match TcpListener::bind(address).await {
            Ok(listener) => bound.push(listener),
            // localhost is ::1 as well, which a machine without IPv6 does not have.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => absent = Some(error),
            Err(error) => return Err(error).with_context(|| address.to_string()),
        }
    }
    match absent {
        Some(error) if bound.is_empty() => Err(error.into()),
        _ if bound.is_empty() => bail!("the name has no address"),
        _ => Ok(bound),
    }
}

/// IPv6 with IPv4 in it where there is IPv6, else IPv4.
async fn bind_all(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}
