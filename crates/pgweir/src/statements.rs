//! What was counted for statements, as the console shows it.

use admin::view::StatementRow;
use proxy::Proxy;
use proxy::digest::Digest;
use router::Fingerprint;
use telemetry::metrics::Route;

/// All statements, what took longest in all first.
pub(crate) fn rows(proxy: Option<&Proxy>) -> Vec<StatementRow> {
    let digests = proxy.map(Proxy::digests).unwrap_or_default();
    let mut rows: Vec<StatementRow> = digests
        .into_iter()
        .filter(|(_, digest)| digest.calls > 0)
        .map(|(print, digest)| row(print, digest))
        .collect();
    rows.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.fingerprint.cmp(&b.fingerprint)));
    rows
}

fn row(print: Fingerprint, digest: Digest) -> StatementRow {
    StatementRow {
        fingerprint: print.to_string(),
        text: digest.text,
        calls: digest.calls,
        errors: digest.errors,
        routes: Route::WORDS.iter().copied().zip(digest.routes).collect(),
        reasons: digest.reasons.iter().map(|(reason, count)| (reason.as_str(), *count)).collect(),
        percentiles: [50, 95, 99].map(|percent| digest.times.percentile(percent)),
        time: digest.times.sum(),
        rows: digest.rows,
        bytes: digest.bytes,
    }
}
