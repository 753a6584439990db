//! Counters and gauges of one family, found by position instead of by label.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::MetricsError;

/// SQLSTATE classes of errors (PostgreSQL manual, appendix A), sorted; all others count as `other`.
const CLASSES: [&str; 37] = [
    "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22", "23", "24", "25", "26", "27",
    "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55", "57",
    "58", "P0", "XX",
];

/// The counters of one family whose last label takes the words of a list.
#[derive(Debug, Clone)]
pub struct CounterSet {
    counters: Box<[IntCounter]>,
}

impl CounterSet {
    /// Resolves one counter per word; `before` are the values of the labels before the last one.
    pub(super) fn new(
        name: &'static str,
        family: &IntCounterVec,
        before: &[&str],
        words: &[&'static str],
    ) -> Result<Self, MetricsError> {
        let resolve = |word: &&'static str| {
            let values = label_values(name, before, word)?;
            Ok(family.get_metric_with_label_values(&values)?)
        };
        Ok(Self { counters: words.iter().map(resolve).collect::<Result<_, MetricsError>>()? })
    }

    /// Adds one to the counter of the word at `position`.
    pub fn inc(&self, position: usize) {
        debug_assert!(position < self.counters.len(), "no word at {position}");
        if let Some(counter) = self.counters.get(position) {
            counter.inc();
        }
    }

    /// The count of the word at `position`; 0 when there is no such word.
    #[must_use]
    pub fn get(&self, position: usize) -> u64 {
        self.counters.get(position).map_or(0, IntCounter::get)
    }

    /// The sum over all words.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counters.iter().map(IntCounter::get).sum()
    }
}

/// The gauges of one family whose last label takes the words of a list.
#[derive(Debug, Clone)]
pub struct GaugeSet {
    gauges: Box<[(&'static str, IntGauge)]>,
}

impl GaugeSet {
    /// Resolves one gauge per word; `before` are the values of the labels before the last one.
    pub(super) fn new(
        name: &'static str,
        family: &IntGaugeVec,
        before: &[&str],
        words: &[&'static str],
    ) -> Result<Self, MetricsError> {
        let resolve = |word: &&'static str| {
            let values = label_values(name, before, word)?;
            Ok((*word, family.get_metric_with_label_values(&values)?))
        };
        Ok(Self { gauges: words.iter().map(resolve).collect::<Result<_, MetricsError>>()? })
    }

    /// The gauge of the word at `position`.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&IntGauge> {
        self.gauges.get(position).map(|(_, gauge)| gauge)
    }

    /// Sets the gauge of `word` to 1 and the others to 0.
    pub fn select(&self, word: &str) {
        for (name, gauge) in &self.gauges {
            gauge.set(i64::from(*name == word));
        }
    }
}

/// Errors by SQLSTATE class.
#[derive(Debug, Clone)]
pub struct ErrorClasses {
    classes: CounterSet,
    other: IntCounter,
}

impl ErrorClasses {
    pub(super) fn new(family: &IntCounterVec) -> Result<Self, MetricsError> {
        let classes = CounterSet::new("pgweir_errors_total", family, &[], &CLASSES)?;
        Ok(Self { classes, other: family.get_metric_with_label_values(&["other"])? })
    }

    /// Counts an error by its SQLSTATE (five characters, or as many as there are).
    pub fn inc(&self, sqlstate: &[u8]) {
        let class = sqlstate.get(..2).and_then(|class| std::str::from_utf8(class).ok());
        match class.and_then(|class| CLASSES.binary_search(&class).ok()) {
            Some(position) => self.classes.inc(position),
            None => self.other.inc(),
        }
    }

    /// All errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.classes.total() + self.other.get()
    }
}

fn label_values<'a>(
    name: &'static str,
    before: &[&'a str],
    word: &'a str,
) -> Result<Vec<&'a str>, MetricsError> {
    let values: Vec<&str> = before.iter().copied().chain([word]).collect();
    if values.iter().any(|value| value.is_empty()) {
        return Err(MetricsError::EmptyLabel(name));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_sorted_as_the_search_needs() {
        assert!(CLASSES.is_sorted());
    }
}
