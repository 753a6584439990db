//! Open files: as many as the system allows, and whether that is enough.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that are open without any client: the log, epoll, listeners, timers, the binary's own.
const OWN_FILES: u64 = 64;

/// Raises the soft limit to the hard one and returns what holds now; `None` is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(%error, current = ?limit.current, "cannot raise the limit of open files");
    }
    getrlimit(Resource::Nofile).current
}

/// What may be open at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// `max_client_conn`.
    pub(crate) clients: u64,
    /// Connections to the nodes that the configuration bounds; pools of users it does not name come on top.
    pub(crate) backends: u64,
}

impl Need {
    /// By how many files the limit is too small.
    pub(crate) fn exceeds(self, limit: Option<u64>) -> u64 {
        let need = self.clients.saturating_add(self.backends).saturating_add(OWN_FILES);
        need.saturating_sub(limit.unwrap_or(u64::MAX))
    }
}

/// Says by how much the configuration wants more files than may be open.
pub(crate) fn compare(need: Need, limit: Option<u64>) {
    let missing = need.exceeds(limit);
    if missing > 0 {
        tracing::warn!(
            limit = limit.unwrap_or(u64::MAX),
            max_client_conn = need.clients,
            backends = need.backends,
            missing,
            "the limit of open files (ulimit -n, LimitNOFILE) is too small for max_client_conn and the pools"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_counted() {
        let need = Need { clients: 1000, backends: 60 };
        assert_eq!(need.exceeds(Some(1024)), 100);
        assert_eq!(need.exceeds(Some(1124)), 0);
        assert_eq!(need.exceeds(None), 0);
    }
}
