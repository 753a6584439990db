//! FunctionCall: a function by its OID, without a text.
//!
//! Libraries call the functions of large objects so (libpq's `lo_*`, pgjdbc's `LargeObject`), whose OIDs are
//! the same in every version. Whatever else is called may be anything.

use crate::leaves::Leaves;
use crate::reason::Reason;
use crate::sequences::Sequences;
use crate::verdict::{Access, Changes, Misroute, PinReason, StatementKind, Verdict};

/// `lo_open`, `lo_close`, `loread`, `lo_lseek`, `lo_tell`, `lo_lseek64`, `lo_tell64`: within its transaction a standby does
/// them as well as the primary. A descriptor does not outlive its transaction.
const READERS: [u32; 7] = [952, 953, 954, 956, 958, 3170, 3171];

/// `lo_create`, `lowrite`, `lo_creat`, `lo_unlink`, `lo_truncate`, `lo_truncate64`: a standby refuses them, they leave nothing
/// in the session.
const WRITERS: [u32; 6] = [715, 955, 957, 964, 1004, 3172];

/// The verdict on a call of the function of that OID. All of them belong to the primary.
#[must_use]
pub fn function_call(oid: u32) -> Verdict {
    let verdict = Verdict::new(Access::Write, StatementKind::Other, Reason::Utility);
    if READERS.contains(&oid) || WRITERS.contains(&oid) {
        return verdict;
    }
    verdict
        .with_pin(Some(PinReason::Unknown))
        .with_misroute(Misroute::Silent)
        .with_changes(Changes::Perhaps)
        .with_leaves(Leaves::Anything)
        .with_sequences(Sequences::Perhaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_objects_are_known() {
        for oid in READERS.iter().chain(&WRITERS) {
            let verdict = function_call(*oid);
            assert_eq!((verdict.access, verdict.pin), (Access::Write, None));
            assert!(!verdict.silently_wrong_on_standby());
        }
        // `nextval`, `lo_export`, and whatever a user has made.
        for oid in [1574, 765, 16_384, 0, u32::MAX] {
            let verdict = function_call(oid);
            assert_eq!((verdict.access, verdict.pin), (Access::Write, Some(PinReason::Unknown)));
            assert!(verdict.silently_wrong_on_standby());
            assert_eq!(verdict.sequences(), Sequences::Perhaps);
        }
    }
}
