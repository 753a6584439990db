//! Series that are made when somebody asks, from what is known elsewhere: they come and go with what they tell of.

use super::table::MetricRow;

/// One series of a family of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The family.
    pub name: &'static str,
    /// The values of its labels, in the order of the table.
    pub labels: Vec<String>,
    /// The value now.
    pub value: f64,
}

/// What stands for a label value that is empty, which the format forbids.
const NOTHING: &str = "(none)";

/// Writes the family of `row` with those of `samples` that are its.
pub(super) fn write(out: &mut String, row: &MetricRow, samples: &[Sample]) {
    out.push_str(&format!("# HELP {} {}\n# TYPE {} {}\n", row.name, row.help, row.name, row.kind.as_str()));
    for sample in samples.iter().filter(|sample| sample.name == row.name) {
        out.push_str(row.name);
        let labels = row.labels.iter().zip(&sample.labels);
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        if !labels.is_empty() {
            out.push_str(&format!("{{{}}}", labels.join(",")));
        }
        out.push_str(&format!(" {}\n", sample.value));
    }
}

fn escaped(value: &str) -> String {
    let value = if value.is_empty() { NOTHING } else { value };
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
