//! What the service manager is told: systemd's notification protocol (`sd_notify(3)`), over `NOTIFY_SOCKET`.
//!
//! Without that variable nothing is sent. Nothing waits for the manager either: what its socket does not take at once is
//! lost, and the next word says the same or more.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admin::AdminView;
use admin::view::ProcessState;
use anyhow::Context;
use cluster::{NodeState, Role};
use proxy::Proxy;
use telemetry::Tasks;

/// How often the status is looked at, when the watchdog does not ask for more.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// What a stop may take beyond `shutdown_timeout`: the stricter modes.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The way to the service manager. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notify {
    socket: Option<Arc<UnixDatagram>>,
    /// How often the watchdog wants to hear of us, at the least.
    watchdog: Option<Duration>,
}

impl Notify {
    /// As this process's environment says.
    ///
    /// # Errors
    /// `NOTIFY_SOCKET` names nothing that can be sent to.
    pub(crate) fn from_env() -> anyhow::Result<Self> {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else {
            return Ok(Self::default());
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let connected = address_of(&address).and_then(|address| socket.connect_addr(&address));
        connected.with_context(|| format!("cannot reach NOTIFY_SOCKET {}", address.display()))?;
        let text = |name: &str| std::env::var(name).ok();
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        Ok(Self { socket: Some(Arc::new(socket)), watchdog })
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            tracing::debug!(%error, "the service manager is not told");
        }
    }

    /// Clients are served.
    pub(crate) fn ready(&self) {
        self.send("READY=1\nSTATUS=Serving clients");
    }

    /// A reload begins; [`Notify::reloaded`] ends it.
    pub(crate) fn reloading(&self) {
        self.send("RELOADING=1\nSTATUS=Reading the configuration again");
    }

    /// A reload has ended: the configuration was taken over, or it is refused and the old one stays.
    pub(crate) fn reloaded(&self, was_taken: bool) {
        let status = if was_taken { "Serving clients" } else { "The reload was refused; see the log" };
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The end has begun, and may take this long.
    pub(crate) fn stopping(&self, mode: &str, shutdown_timeout: Duration) {
        let within = shutdown_timeout.saturating_add(STOP_GRACE).as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={within}\nSTATUS=Stopping ({mode})"));
    }

    /// Keeps the status true and the watchdog fed; the latter for as long as every worker answers.
    pub(crate) fn keep(&self, tasks: &Tasks, view: Arc<dyn AdminView>, proxy: Arc<OnceLock<Arc<Proxy>>>) {
        if self.socket.is_none() {
            return;
        }
        let (notify, every) = (self.clone(), self.watchdog.map_or(LOOK_EVERY, |limit| limit / 2));
        tasks.spawn("service manager", async move {
            let mut told = String::new();
            loop {
                tokio::time::sleep(every).await;
                let status = status(&*view);
                if status != told {
                    notify.send(&format!("STATUS={status}"));
                    told = status;
                }
                if notify.watchdog.is_some() {
                    notify.feed(proxy.get().map(|proxy| &**proxy), every).await;
                }
            }
        });
    }

    async fn feed(&self, proxy: Option<&Proxy>, within: Duration) {
        let alive = match proxy {
            Some(proxy) => tokio::time::timeout(within, proxy.workers_answer()).await.is_ok(),
            None => true,
        };
        if alive {
            self.send("WATCHDOG=1");
        } else {
            tracing::error!("a worker does not answer; the watchdog is not told that all is well");
        }
    }
}

/// A path, or after `@` a name in the abstract namespace.
fn address_of(address: &OsStr) -> std::io::Result<SocketAddr> {
    match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(address),
    }
}

/// The watchdog's limit, when it is meant for this process.
fn watchdog(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let limit = usec?.parse().ok().filter(|usec| *usec > 0).map(Duration::from_micros)?;
    is_ours.then_some(limit)
}

/// One line for `systemctl status`.
fn status(view: &dyn AdminView) -> String {
    let nodes = view.nodes();
    let up = nodes.iter().filter(|node| node.state == NodeState::Up).count();
    let primary = nodes.iter().find(|node| node.role == Role::Primary && node.state == NodeState::Up);
    let primary = primary.map_or_else(|| "no primary".to_owned(), |node| format!("primary {}", node.id));
    let doing = match view.state() {
        ProcessState::Active => "Serving",
        ProcessState::Paused => "Paused with",
        ProcessState::Stopping => "Stopping with",
    };
    let clients = view.clients().len();
    format!("{doing} {clients} clients; {up} of {} nodes up, {primary}", nodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_for_the_process_that_is_named() {
        let text = |text: &str| Some(text.to_owned());
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog(text("1000000"), None, 7), second);
        assert_eq!(watchdog(text("1000000"), text("7"), 7), second);
        assert_eq!(watchdog(text("1000000"), text("8"), 7), None);
        for none in [None, text("0"), text("soon")] {
            assert_eq!(watchdog(none, None, 7), None);
        }
    }
}
