//! How long statements take, by node and route: histograms that each worker fills for itself.
//!
//! Invariants: observing is three additions to memory that other workers seldom touch; what is counted is
//! never lost and never falls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::MetricsError;
use super::table::MetricRow;

/// Where a statement was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// To the primary.
    Primary,
    /// To a node that reads are balanced to.
    Read,
    /// To a standby.
    Standby,
    /// To a certain node, or to any.
    Any,
}

impl Route {
    /// The words, in the order of the variants.
    pub const WORDS: &[&str] = &["primary", "read", "standby", "any"];
}

/// Upper bounds of the buckets, in nanoseconds.
const BOUNDS: [u64; 16] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
    60_000_000_000,
];
/// Workers beyond this number share.
const SHARDS: usize = 16;

/// One worker's histogram; a cache line of its own at both ends.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram([Shard; SHARDS]);

/// The histograms of one node.
#[derive(Debug, Clone)]
pub struct Latency(Arc<[Histogram; Route::WORDS.len()]>);

impl Latency {
    fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| Histogram::default())))
    }

    /// A statement of that route took so long; counted by `worker`.
    pub fn observe(&self, route: Route, worker: usize, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let shard = self.0.get(route as usize).and_then(|histogram| histogram.0.get(worker % SHARDS));
        let bucket = BOUNDS.partition_point(|bound| *bound < nanos);
        if let Some(shard) = shard
            && let Some(count) = shard.buckets.get(bucket)
        {
            count.fetch_add(1, Ordering::Relaxed);
            shard.sum.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// How many were observed on that route.
    #[must_use]
    pub fn count(&self, route: Route) -> u64 {
        self.0.get(route as usize).map_or(0, |histogram| histogram.buckets().iter().sum())
    }
}

impl Histogram {
    fn buckets(&self) -> [u64; BOUNDS.len() + 1] {
        let mut all = [0; BOUNDS.len() + 1];
        for shard in &self.0 {
            for (total, count) in all.iter_mut().zip(&shard.buckets) {
                *total += count.load(Ordering::Relaxed);
            }
        }
        all
    }

    #[allow(clippy::cast_precision_loss, reason = "a sum of seconds needs no more digits than a float has")]
    fn proto(&self) -> proto::Histogram {
        let buckets = self.buckets();
        let sum: u64 = self.0.iter().map(|shard| shard.sum.load(Ordering::Relaxed)).sum();
        let mut histogram = proto::Histogram::default();
        let mut so_far = 0;
        let bounded = BOUNDS.iter().zip(buckets).map(|(bound, count)| {
            so_far += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_cumulative_count(so_far);
            bucket.set_upper_bound(*bound as f64 / 1e9);
            bucket
        });
        histogram.set_bucket(bounded.collect());
        histogram.set_sample_count(buckets.iter().sum());
        histogram.set_sample_sum(sum as f64 / 1e9);
        histogram
    }
}

/// The family: the histograms of every node that was ever configured.
#[derive(Debug, Clone)]
pub(super) struct LatencyFamily {
    row: &'static MetricRow,
    desc: Desc,
    nodes: Arc<Mutex<Vec<(String, Latency)>>>,
}

impl LatencyFamily {
    pub(super) fn new(row: &'static MetricRow) -> Result<Self, MetricsError> {
        let labels = row.labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(row.name.to_owned(), row.help.to_owned(), labels, Default::default())?;
        Ok(Self { row, desc, nodes: Arc::default() })
    }

    /// The histograms of a node; the same ones for the same node.
    pub(super) fn node(&self, node: &str) -> Latency {
        let mut nodes = self.nodes.lock();
        if let Some((_, known)) = nodes.iter().find(|(name, _)| name == node) {
            return known.clone();
        }
        let latency = Latency::new();
        nodes.push((node.to_owned(), latency.clone()));
        latency
    }
}

impl Collector for LatencyFamily {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let label = |name: &str, value: &str| {
            let mut pair = proto::LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let mut metrics = Vec::new();
        for (node, latency) in &*self.nodes.lock() {
            for (route, histogram) in Route::WORDS.iter().zip(&*latency.0) {
                let mut metric = proto::Metric::default();
                metric.set_label(vec![label("node", node), label("route", route)]);
                metric.set_histogram(histogram.proto());
                metrics.push(metric);
            }
        }
        let mut family = proto::MetricFamily::default();
        family.set_name(self.row.name.to_owned());
        family.set_help(self.row.help.to_owned());
        family.set_field_type(proto::MetricType::HISTOGRAM);
        family.set_metric(metrics);
        vec![family]
    }
}
