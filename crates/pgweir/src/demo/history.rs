//! Which of the nodes that a demo finds is the primary, after somebody may have promoted another one.
//!
//! Pure: judges what `pg_controldata` printed. Invariant: whatever is on the newest timeline is never given up; when the
//! newest primary cannot be told for certain, the answer is an error, and nothing is touched.

use anyhow::{Context as _, bail};

/// What a data directory says about itself while its server is down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Past {
    /// The number of the node.
    pub(super) number: usize,
    /// It has a `standby.signal`.
    pub(super) standby: bool,
    /// The timeline it was on last.
    pub(super) timeline: u32,
    /// The identifier that copies of one database system share.
    system: String,
    /// The state of the cluster, in `pg_controldata`'s words.
    state: String,
}

impl Past {
    /// Reads what `pg_controldata` prints in the C locale.
    ///
    /// # Errors
    /// A line that is needed is missing.
    pub(super) fn parse(number: usize, standby: bool, text: &str) -> anyhow::Result<Self> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
                .with_context(|| format!("pg_controldata says no {name:?} of db{number}"))
        };
        let timeline = |name: &str| -> anyhow::Result<u32> {
            field(name)?.parse().with_context(|| format!("{name:?} of db{number} is no number"))
        };
        // A promotion shows in the second before its first checkpoint is done; it is 0 where it means nothing.
        let timeline =
            timeline("Latest checkpoint's TimeLineID")?.max(timeline("Min recovery ending loc's timeline")?);
        let system = field("Database system identifier")?.to_owned();
        Ok(Self { number, standby, timeline, system, state: field("Database cluster state")?.to_owned() })
    }

    fn describe(&self) -> String {
        let role = if self.standby { "standby" } else { "primary" };
        format!("db{}: {role}, timeline {}, {}", self.number, self.timeline, self.state)
    }
}

/// The nodes, one on a line, for messages.
pub(super) fn describe(nodes: &[Past]) -> String {
    nodes.iter().map(Past::describe).collect::<Vec<_>>().join("\n  ")
}

/// The newest primary, or nothing when there are no nodes yet.
///
/// # Errors
/// It cannot be told which it is; says why.
pub(super) fn newest_primary(nodes: &[Past]) -> anyhow::Result<Option<&Past>> {
    let Some(newest) = nodes.iter().map(|node| node.timeline).max() else { return Ok(None) };
    if nodes.iter().any(|node| nodes.first().is_some_and(|first| first.system != node.system)) {
        bail!("they are not copies of one database system")
    }
    let mut primaries = nodes.iter().filter(|node| !node.standby && node.timeline == newest);
    match (primaries.next(), primaries.next()) {
        (Some(primary), None) => Ok(Some(primary)),
        (Some(_), Some(_)) => bail!("more than one was a primary on the newest timeline, {newest}"),
        (None, _) => bail!("none of those on the newest timeline, {newest}, was a primary"),
    }
}

/// What becomes of a node that is not the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is not there: it is copied from the primary.
    Make,
    /// It follows the primary if it can.
    Follow,
    /// It was a primary itself, with a history of its own: its data is kept aside and a copy takes its place.
    SetAside,
}

/// What becomes of node `number`, which is not the primary.
pub(super) fn fate(number: usize, nodes: &[Past]) -> Fate {
    match nodes.iter().find(|node| node.number == number) {
        None => Fate::Make,
        Some(node) if node.standby => Fate::Follow,
        Some(_) => Fate::SetAside,
    }
}

/// A node that was a standby, on the timeline that every node is on: all it has, the primary has too.
pub(super) fn has_nothing_of_its_own(number: usize, nodes: &[Past]) -> bool {
    let own = nodes.iter().find(|node| node.number == number);
    own.is_some_and(|own| own.standby && nodes.iter().all(|node| node.timeline == own.timeline))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(checkpoint: u32, recovery: u32) -> String {
        format!(
            "pg_control version number:            1300\n\
             Database system identifier:           7301\n\
             Database cluster state:               shut down\n\
             Latest checkpoint's TimeLineID:       {checkpoint}\n\
             Latest checkpoint's PrevTimeLineID:   1\n\
             Min recovery ending loc's timeline:   {recovery}\n"
        )
    }

    fn primary(number: usize, timeline: u32) -> Past {
        Past::parse(number, false, &printed(timeline, 0)).unwrap()
    }

    fn standby(number: usize, timeline: u32) -> Past {
        Past::parse(number, true, &printed(timeline, timeline)).unwrap()
    }

    fn chosen(nodes: &[Past]) -> Option<usize> {
        newest_primary(nodes).unwrap().map(|node| node.number)
    }

    #[test]
    fn the_control_data_is_read_as_postgresql_prints_it() {
        let node = Past::parse(1, false, &printed(1, 0)).unwrap();
        assert_eq!((node.timeline, node.state.as_str(), node.system.as_str()), (1, "shut down", "7301"));
        assert!(Past::parse(1, false, &printed(1, 0).replace("Latest checkpoint's T", "T")).is_err());
        assert!(Past::parse(1, false, "").is_err());
    }

    #[test]
    fn a_promotion_counts_before_its_first_checkpoint() {
        assert_eq!(Past::parse(1, false, &printed(1, 2)).unwrap().timeline, 2);
    }

    #[test]
    fn the_only_primary_is_taken_wherever_it_is() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[primary(0, 1), standby(1, 1), standby(2, 1)]), Some(0));
        assert_eq!(chosen(&[standby(1, 1), primary(2, 2)]), Some(2));
    }

    #[test]
    fn a_promoted_standby_wins_over_the_old_primary_which_is_set_aside() {
        let nodes = [primary(0, 1), primary(1, 2), standby(2, 1)];
        assert_eq!(chosen(&nodes), Some(1));
        assert_eq!(
            [fate(0, &nodes), fate(2, &nodes), fate(3, &nodes)],
            [Fate::SetAside, Fate::Follow, Fate::Make]
        );
    }

    #[test]
    fn only_a_standby_without_a_failover_has_nothing_of_its_own() {
        assert!(has_nothing_of_its_own(1, &[primary(0, 1), standby(1, 1)]));
        assert!(!has_nothing_of_its_own(0, &[primary(0, 1), standby(1, 1)]));
        assert!(!has_nothing_of_its_own(2, &[primary(0, 1), primary(1, 2), standby(2, 1)]));
        assert!(!has_nothing_of_its_own(2, &[primary(1, 2), standby(2, 1)]));
        assert!(!has_nothing_of_its_own(5, &[primary(0, 1)]));
    }

    #[test]
    fn doubt_is_an_error_that_says_why() {
        let refused = |nodes: &[Past]| newest_primary(nodes).unwrap_err().to_string();
        assert!(refused(&[primary(0, 1), primary(1, 2), primary(2, 2)]).contains("more than one"));
        assert!(refused(&[standby(1, 1), standby(2, 1)]).contains("none of those"));
        // The promoted node was removed, its standby has its rows.
        assert!(refused(&[primary(0, 1), standby(2, 2)]).contains("none of those"));
        let stranger = Past { system: "9".into(), ..standby(1, 1) };
        assert!(refused(&[primary(0, 1), stranger]).contains("not copies"));
    }
}
