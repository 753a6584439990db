//! Leading comments that say where a statement goes.
//!
//! `/*NO LOAD BALANCE*/` (Pgpool-II's) and `/* pgweir: primary | standby | node=N */`. Read only where the
//! text begins, before the first token; the first that is understood counts.

use cluster::NodeId;

use crate::verdict::Hint;

/// A hint comment longer than this is none.
const MAX_HINT: usize = 64;

/// The hint that a text begins with.
pub(crate) fn leading(sql: &[u8]) -> Option<Hint> {
    let mut rest = sql.trim_ascii_start();
    while let Some((comment, after)) = block_comment(rest) {
        if let Some(hint) = parse(comment) {
            return Some(hint);
        }
        rest = after.trim_ascii_start();
    }
    None
}

/// The inside of an unnested block comment at the start, and what follows it.
fn block_comment(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = text.strip_prefix(b"/*")?;
    let window = inside.get(..MAX_HINT).unwrap_or(inside);
    let end = window.windows(2).position(|pair| pair == b"*/")?;
    let comment = inside.get(..end)?;
    if comment.windows(2).any(|pair| pair == b"/*") {
        return None;
    }
    Some((comment, inside.get(end + 2..)?))
}

fn parse(comment: &[u8]) -> Option<Hint> {
    let text = std::str::from_utf8(comment).ok()?.trim().to_ascii_lowercase();
    if text == "no load balance" {
        return Some(Hint::Primary);
    }
    Hint::parse(text.strip_prefix("pgweir:")?)
}

impl Hint {
    /// `primary`, `standby` or `node=N`: what a hint and `SET pgweir.route` say.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_target(text.trim().to_ascii_lowercase().as_str())
    }
}

fn parse_target(text: &str) -> Option<Hint> {
    match text {
        "primary" => Some(Hint::Primary),
        "standby" => Some(Hint::Standby),
        other => {
            let number = other.strip_prefix("node")?.trim_start().strip_prefix('=')?.trim();
            number.parse().ok().map(|id| Hint::Node(NodeId(id)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read_at_the_start_only() {
        let hint = |sql: &str| leading(sql.as_bytes());
        assert_eq!(hint("/*NO LOAD BALANCE*/ SELECT 1"), Some(Hint::Primary));
        assert_eq!(hint("  /* x */ /* No Load Balance */SELECT 1"), Some(Hint::Primary));
        assert_eq!(hint("/* pgweir: standby */ SELECT 1"), Some(Hint::Standby));
        assert_eq!(hint("/*pgweir:node = 2*/ SELECT 1"), Some(Hint::Node(NodeId(2))));
        assert_eq!(hint("/*pgweir: node=70000*/ SELECT 1"), None);
        assert_eq!(hint("SELECT 1 /*NO LOAD BALANCE*/"), None);
        assert_eq!(hint("/* /* NO LOAD BALANCE */ */ SELECT 1"), None);
        assert_eq!(hint("-- NO LOAD BALANCE\nSELECT 1"), None);
        assert_eq!(hint("/*NO LOAD BALANCE"), None);
    }
}
