//! Writers that go on whatever happens, and remember what was acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, RawClient};

/// Longer than any hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running load.
pub(crate) struct Writers {
    done: Arc<AtomicBool>,
    acked: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<Written>>,
}

/// What it came to.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The rows that were acknowledged, and when.
    pub(crate) acked: Vec<(Instant, i64)>,
    /// Connections that were lost with a statement in flight.
    pub(crate) lost: usize,
    /// Everything else that went wrong.
    pub(crate) refused: Vec<String>,
}

impl Writers {
    /// Starts `count` of them.
    pub(crate) fn start(port: u16, count: i64) -> Self {
        let (done, acked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let start = |me: i64| {
            let (done, acked) = (Arc::clone(&done), Arc::clone(&acked));
            std::thread::spawn(move || write(port, me, &done, &acked))
        };
        let threads = (0..count).map(start).collect();
        Self { done, acked, threads }
    }

    /// Rows acknowledged so far.
    pub(crate) fn acked(&self) -> usize {
        self.acked.load(Ordering::Relaxed)
    }

    /// Ends the load.
    pub(crate) fn stop(self) -> Result<Written> {
        self.done.store(true, Ordering::Relaxed);
        let mut all = Written::default();
        for thread in self.threads {
            let one = thread.join().ok().context("a writer panicked")?;
            all.acked.extend(one.acked);
            all.lost += one.lost;
            all.refused.extend(one.refused);
        }
        all.acked.sort();
        Ok(all)
    }
}

impl Written {
    /// From the last acknowledgement of the primary that died at about that moment to the first one of the next: an
    /// answer may have been on its way to a writer when it died, so it is the longest gap that begins around then.
    #[allow(dead_code, reason = "not every test measures it")]
    pub(crate) fn outage(&self, at: Instant) -> Duration {
        const AROUND: Duration = Duration::from_secs(1);
        let times: Vec<Instant> = self.acked.iter().map(|(when, _)| *when).collect();
        let begins_then = |pair: &&[Instant]| pair[0] + AROUND >= at && pair[0] <= at + AROUND;
        times.windows(2).filter(begins_then).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }

    /// Every acknowledged row is there.
    pub(crate) fn are_all_on(&self, cluster: &Cluster, node: usize) -> Result<()> {
        let rows = cluster.sql(node, "SELECT id FROM t")?.first_column();
        let there: BTreeSet<i64> = rows.iter().filter_map(|id| id.parse().ok()).collect();
        let missing: Vec<i64> =
            self.acked.iter().map(|(_, id)| *id).filter(|id| !there.contains(id)).collect();
        ensure!(missing.is_empty(), "{} of {} rows are lost: {missing:?}", missing.len(), self.acked.len());
        Ok(())
    }
}

fn write(port: u16, me: i64, done: &AtomicBool, acked: &AtomicUsize) -> Written {
    let mut written = Written::default();
    let mut client: Option<RawClient> = None;
    let mut next = me * 1_000_000;
    while !done.load(Ordering::Relaxed) {
        let Some(open) = &mut client else {
            match RawClient::bench(port) {
                Ok(mut fresh) => {
                    fresh.set_deadline(PATIENCE);
                    client = Some(fresh);
                }
                Err(error) => written.refused.push(format!("login: {error:#}")),
            }
            continue;
        };
        next += 1;
        match open.simple(&format!("INSERT INTO t VALUES ({next})")) {
            Ok(_) => {
                written.acked.push((Instant::now(), next));
                acked.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                client = None;
                let text = format!("{error:#}");
                let lost =
                    ["57P01", "08006", "57P02"].iter().any(|code| text.contains(code)) || !text.contains(' ');
                if lost { written.lost += 1 } else { written.refused.push(text) }
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    written
}
