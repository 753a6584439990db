//! "Did you mean": the known name that is nearest to a mistyped one.

/// Names further apart than this many edits are not each other's typing errors.
const MAX_EDITS: usize = 3;

/// Longer names are not compared: no key is that long.
const MAX_NAME: usize = 64;

/// The key whose name is nearest to a mistyped one, if one is near.
#[must_use]
pub fn nearest_key(name: &str) -> Option<&'static str> {
    suggest(name, crate::table::KEYS.iter().map(|key| key.name))
}

/// The nearest known name, if it is near: half of its letters may differ, at most [`MAX_EDITS`].
pub(crate) fn suggest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > MAX_NAME {
        return None;
    }
    let name = name.replace('-', "_").to_ascii_lowercase();
    known
        .map(|known| (edits(&name, known), known))
        .filter(|(edits, known)| *edits <= MAX_EDITS.min(known.len() / 2))
        .min()
        .map(|(_, known)| known)
}

/// Insertions, deletions and replacements that make one name of the other.
fn edits(from: &str, to: &str) -> usize {
    let mut costs: Vec<usize> = (0..=to.chars().count()).collect();
    for (row, a) in from.chars().enumerate() {
        let mut diagonal = row;
        let mut left = row + 1;
        if let Some(first) = costs.first_mut() {
            *first = left;
        }
        for (cost, b) in costs.iter_mut().skip(1).zip(to.chars()) {
            let replaced = diagonal + usize::from(a != b);
            diagonal = *cost;
            *cost = replaced.min(left + 1).min(diagonal + 1);
            left = *cost;
        }
    }
    costs.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (from, to, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("port", "prot", 2), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn suggests_what_is_near() {
        let known = ["port", "pool_mode", "listen_addresses"];
        let suggested = |name| suggest(name, known.iter().copied());
        assert_eq!(suggested("listen_address"), Some("listen_addresses"));
        assert_eq!(suggested("Pool-Mode"), Some("pool_mode"));
        assert_eq!(suggested("num_init_children"), None);
        assert_eq!(suggested(&"x".repeat(1000)), None);
    }
}
