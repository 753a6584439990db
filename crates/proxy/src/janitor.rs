//! Looks after what nobody holds: idle backends that are too old, dead, or of a node that changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;

use crate::open::open;
use crate::pool::Pool;
use crate::shared::Shared;
use crate::workers::Workers;

/// How often.
const PERIOD: Duration = Duration::from_secs(1);
/// How many backends a pool is given at a time, towards `min_pool_size`.
const FILLED_AT_ONCE: usize = 8;

/// Runs for ever, on the control plane.
pub(crate) async fn run(shared: Arc<Shared>, workers: Arc<Workers>) {
    let mut counted = (0, 0);
    loop {
        tokio::time::sleep(PERIOD).await;
        sweep(&shared);
        fill(&shared, &workers);
        counted = count_verdicts(&shared, &workers, counted);
    }
}

fn sweep(shared: &Shared) {
    let config = shared.deps.config.load();
    let topology = shared.deps.topology.load();
    let now = Instant::now();
    for pool in shared.pools.all() {
        let Some(node) = topology.node(pool.key.node) else {
            pool.retire();
            continue;
        };
        if node.port != pool.address.port || *node.hostname != *pool.address.hostname {
            pool.retire();
            continue;
        }
        let idle_limit = config.server_idle_timeout;
        let mut spare = pool.counts().taken().saturating_sub(least(&pool, &config));
        let closed = pool.close_idle(|backend| {
            let idle = !idle_limit.is_zero() && now.duration_since(backend.idle_since) >= idle_limit;
            let superfluous = idle && spare > 0;
            spare -= u32::from(superfluous);
            superfluous
                || backend.is_older_than(config.server_lifetime, now)
                || backend.epoch < node.changed_epoch
                || !backend.is_alive()
        });
        if closed > 0 {
            tracing::debug!(node = %node.id, closed, "idle backends closed");
        }
    }
    shared.pools.sweep();
}

/// How many backends of `pool` are kept even when nobody uses them.
fn least(pool: &Pool, config: &Config) -> u32 {
    pool.opened_as().map_or(0, |who| config.min_pool_size(&who.database, &who.user))
}

/// Opens what is missing for `min_pool_size` in pools that have been used.
fn fill(shared: &Arc<Shared>, workers: &Workers) {
    let config = shared.deps.config.load();
    let topology = shared.deps.topology.load();
    for pool in shared.pools.all() {
        let (Some(who), Some(node)) = (pool.opened_as(), topology.node(pool.key.node)) else { continue };
        let least = least(&pool, &config);
        for _ in 0..FILLED_AT_ONCE {
            if !node.is_usable() || pool.retry.must_wait(Instant::now()) {
                break;
            }
            let (Some(slot), Some(worker)) = (pool.vacancy(least), workers.least_busy()) else { break };
            let opening = open(worker, Arc::clone(&who), &config, slot, node);
            let pool = Arc::clone(&pool);
            worker.tasks.spawn("fill", async move {
                match opening.await {
                    Ok(backend) => {
                        backend.entry.returned(0);
                        pool.release(backend);
                    }
                    Err(error) => tracing::debug!(node = %pool.key.node, error = %error, "pool not filled"),
                }
            });
        }
    }
}

/// The workers count for themselves; the metrics learn the difference.
fn count_verdicts(shared: &Shared, workers: &Workers, before: (u64, u64)) -> (u64, u64) {
    let counts = workers.all().map(|worker| worker.classifier_counts());
    let now = counts.fold((0, 0), |(hits, misses), (h, m)| (hits + h, misses + m));
    let metrics = &shared.deps.metrics;
    metrics.verdict_cache_hits.inc_by(now.0.saturating_sub(before.0));
    metrics.verdict_cache_misses.inc_by(now.1.saturating_sub(before.1));
    now
}
