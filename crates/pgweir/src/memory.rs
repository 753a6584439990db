//! What the memory is used for, as far as it is counted.

use admin::view::MemoryRow;
use proxy::Proxy;

/// The process as a whole, then what is known of its parts.
pub(crate) fn rows(proxy: Option<&Proxy>) -> Vec<MemoryRow> {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let mut rows = vec![MemoryRow { what: "process", items: 1, bytes: resident().unwrap_or(0) }];
    if let Some(proxy) = proxy {
        let (statements, statement_bytes) = proxy.statements();
        let (verdicts, verdict_bytes) = proxy.verdicts();
        let (digests, digest_bytes) = proxy.digest_size();
        let (buffers, buffer_bytes) = proxy.free_buffers();
        rows.extend([
            MemoryRow {
                what: "prepared_statements",
                items: count(statements),
                bytes: count(statement_bytes),
            },
            MemoryRow { what: "verdict_caches", items: count(verdicts), bytes: count(verdict_bytes) },
            MemoryRow { what: "statement_counts", items: count(digests), bytes: count(digest_bytes) },
            MemoryRow { what: "free_buffers", items: count(buffers), bytes: count(buffer_bytes) },
        ]);
    }
    rows
}

/// Bytes of the process that are in memory (`/proc/self/status`); none where there is no such file.
pub(crate) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}
