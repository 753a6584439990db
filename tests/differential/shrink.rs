//! Makes a script that is answered differently as small as it can be and still be so.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::random::flushed;
use crate::run::{Slot, Way};
use crate::script::Script;

const LIMIT: Duration = Duration::from_secs(20);

/// Leaves out message by message what does not matter for the difference; gives the smallest one found.
pub(crate) fn shrink(slot: &mut Slot, direct: Way, way: Way, script: &Script) -> Result<String> {
    let end = Instant::now() + LIMIT;
    let mut best = script.clone();
    let mut said = "does not happen again".to_owned();
    let mut at = 0;
    while Instant::now() < end {
        let Some(smaller) = without(&best, at) else { break };
        match differs(slot, direct, way, &smaller)? {
            Some(difference) => (best, said) = (smaller, difference),
            None => at += 1,
        }
    }
    Ok(if said.contains(&best.to_string()) { said } else { format!("{best}\n{said}") })
}

fn differs(slot: &mut Slot, direct: Way, way: Way, script: &Script) -> Result<Option<String>> {
    let wanted = slot.direct(direct, script)?;
    slot.compare(way, script, &wanted)
}

/// The script without its message `at`, counted over all steps from the end.
fn without(script: &Script, at: usize) -> Option<Script> {
    let mut smaller = script.clone();
    let mut left = at;
    for (back, step) in smaller.steps.iter_mut().rev().enumerate() {
        if left < step.len() {
            step.remove(step.len() - 1 - left);
            *step = flushed(std::mem::take(step));
            if *step == script.steps[script.steps.len() - 1 - back] {
                return without(script, at + 1);
            }
            smaller.steps.retain(|step| !step.is_empty());
            return Some(smaller);
        }
        left -= step.len();
    }
    None
}
