//! Sequences in the notation of the wire.

use super::*;

/// Pushes `asks` in the notation of the wire, then feeds `replies`; gives the fates, `.` swallowed.
fn run(tracker: &mut Tracker, asks: &str, replies: &str) -> Result<String, Desync> {
    for (position, letter) in asks.chars().enumerate() {
        let token = Token(u32::try_from(position).unwrap());
        let (ask, owner) = match letter {
            'P' => (Ask::Parse(token), Owner::Client),
            'p' => (Ask::Parse(token), Owner::Ours),
            'B' => (Ask::Bind, Owner::Client),
            'D' => (Ask::DescribeStatement, Owner::Client),
            'd' => (Ask::DescribePortal, Owner::Client),
            'E' => (Ask::Execute, Owner::Client),
            'C' => (Ask::Close(token), Owner::Client),
            'S' => (Ask::Sync, Owner::Client),
            'Q' => (Ask::Query, Owner::Client),
            'q' => (Ask::Query, Owner::Ours),
            'F' => (Ask::FunctionCall, Owner::Client),
            'c' => {
                tracker.push_copy_end();
                continue;
            }
            other => panic!("no ask {other}"),
        };
        tracker.push(ask, owner);
    }
    let mut out = String::new();
    let mut chars = replies.chars().peekable();
    while let Some(tag) = chars.next() {
        let status =
            (tag == 'Z').then(|| TxStatus::from_byte(u8::try_from(chars.next().unwrap()).unwrap()).unwrap());
        match tracker.on_server(u8::try_from(tag).unwrap(), status)? {
            Fate::Pass => out.push(tag),
            Fate::Swallow => out.push('.'),
        }
    }
    Ok(out)
}

/// The replies without the status bytes.
fn passed(replies: &str) -> String {
    let mut status = false;
    let keep = |letter: &char| {
        let is_status = status;
        status = *letter == 'Z' && !is_status;
        !is_status
    };
    replies.chars().filter(keep).collect()
}

/// Everything passes and the backend is clean at the end.
fn clean(asks: &str, replies: &str) {
    let mut tracker = Tracker::new();
    let out = run(&mut tracker, asks, replies).unwrap();
    assert_eq!(out, passed(replies), "{asks}");
    assert!(tracker.is_clean(), "{asks} {replies}: {tracker:?}");
}

#[test]
fn plain_sequences_end_clean() {
    clean("Q", "TDDCZI");
    clean("Q", "IZI");
    clean("QQ", "CZICZI");
    clean("PBdES", "12TDCZI");
    clean("PDS", "1tTZI");
    clean("PDS", "1tnZI");
    clean("SS", "ZIZI");
    clean("CS", "3ZI");
    clean("F", "VZI");
    clean("Q", "TDCTDCZI");
    clean("PBES", "12IZI");
    clean("Q", "NSATDCNZI");
}

#[test]
fn an_error_skips_to_the_next_sync() {
    let mut tracker = Tracker::new();
    assert_eq!(run(&mut tracker, "PBEPBEPBESPBES", "12DC1EZI12DCZI").unwrap(), "12DC1EZ12DCZ");
    assert!(tracker.is_clean());
    let skipped: Vec<_> =
        tracker.take_events().into_iter().filter(|e| matches!(e, Event::Skipped(_))).collect();
    assert_eq!(skipped, [Event::Skipped(Token(6))]);
}

#[test]
fn after_an_error_without_sync_everything_is_ignored_even_a_query() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "PB", "1E").unwrap();
    assert!(!tracker.is_settled());
    assert_eq!(run(&mut tracker, "EQ", "").unwrap(), "");
    assert!(!tracker.is_settled());
    assert_eq!(run(&mut tracker, "S", "ZI").unwrap(), "Z");
    assert!(tracker.is_clean());
}

#[test]
fn a_flush_leaves_the_batch_open() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "PD", "1tT").unwrap();
    assert!(!tracker.owes() && !tracker.is_settled());
    run(&mut tracker, "S", "ZI").unwrap();
    assert!(tracker.is_clean());
}

#[test]
fn a_query_inside_an_unfinished_batch_has_its_own_end() {
    clean("PBEQS", "12DCTDCZIZI");
}

#[test]
fn a_suspended_portal_in_a_transaction() {
    clean("QPBESESES", "CZT12DsZTDsZTDCZI");
}

#[test]
fn an_error_at_sync_is_the_commit_failing() {
    clean("PBES", "12CEZI");
}

#[test]
fn replies_of_ours_are_swallowed() {
    let mut tracker = Tracker::new();
    assert_eq!(run(&mut tracker, "qpBES", "SDCZI12DCZI").unwrap(), ".....2DCZ");
    assert!(tracker.is_clean());
}

#[test]
fn a_failed_query_of_ours_is_an_event() {
    let mut tracker = Tracker::new();
    assert_eq!(run(&mut tracker, "qQ", "EZITDCZI").unwrap(), "..TDCZ");
    assert_eq!(tracker.take_events(), [Event::OursFailed]);
}

#[test]
fn a_failed_parse_of_ours_is_the_clients_error() {
    let mut tracker = Tracker::new();
    assert_eq!(run(&mut tracker, "pBES", "EZI").unwrap(), "EZ");
    assert_eq!(tracker.take_events(), [Event::Failed(Token(0))]);
}

#[test]
fn copy_in_by_query() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "Q", "G").unwrap();
    assert!(tracker.in_copy() && tracker.push_copy_data());
    run(&mut tracker, "c", "CZI").unwrap();
    assert!(tracker.is_clean());
    assert!(!tracker.push_copy_data() && !tracker.push_copy_end());
}

#[test]
fn copy_in_sent_ahead_of_its_answer() {
    clean("Qc", "GCZI");
    clean("QcQ", "GCZITDCZI");
    clean("Qcc", "GCTDCGCZI");
    // The COPY fails before it begins: the end of the data is ignored.
    clean("QcQ", "EZITDCZI");
}

#[test]
fn copy_in_by_extended_protocol_ignores_an_early_sync() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "PBES", "12G").unwrap();
    run(&mut tracker, "c", "C").unwrap();
    assert!(!tracker.is_settled(), "the early Sync was ignored by the server");
    run(&mut tracker, "S", "ZI").unwrap();
    assert!(tracker.is_clean());
    clean("PBEScS", "12GCZI");
    clean("PBEcS", "12GCZI");
}

#[test]
fn copy_in_that_fails_while_data_flows() {
    let mut tracker = Tracker::new();
    assert_eq!(run(&mut tracker, "Q", "GEZI").unwrap(), "GEZ");
    assert!(tracker.is_clean() && !tracker.push_copy_end());
    run(&mut tracker, "PBE", "12GE").unwrap();
    assert!(!tracker.is_settled() && !tracker.push_copy_data());
    run(&mut tracker, "S", "ZE").unwrap();
    assert!(tracker.is_settled() && !tracker.is_clean());
}

#[test]
fn another_message_inside_copy_is_consumed_by_the_error() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "Q", "G").unwrap();
    assert_eq!(run(&mut tracker, "Q", "EZI").unwrap(), "EZ");
    assert!(tracker.is_clean());
    clean("QQQ", "GEZITDCZI");
}

#[test]
fn replies_out_of_place_are_a_desync() {
    for (asks, replies) in
        [("", "Z"), ("P", "2"), ("Q", "1"), ("D", "T"), ("B", "D"), ("S", "C"), ("E", "T"), ("Q", "K")]
    {
        let replies = replies.replace('Z', "ZI");
        assert!(run(&mut Tracker::new(), asks, &replies).is_err(), "{asks} {replies}");
    }
}

#[test]
fn a_copy_that_fails_before_it_reads_answers_the_syncs_behind_it() {
    // COPY ... (FREEZE) of a table that is not new: refused after CopyInResponse.
    clean("PBES", "12GEZI");
    clean("QS", "GEZIZI");
    let mut tracker = Tracker::new();
    run(&mut tracker, "PBES", "12G").unwrap();
    run(&mut tracker, "S", "EZIZI").unwrap();
    assert!(tracker.is_clean() && !tracker.is_in_doubt());
}

#[test]
fn where_a_copy_failed_may_be_in_doubt() {
    let mut tracker = Tracker::new();
    run(&mut tracker, "PBES", "12G").unwrap();
    assert!(tracker.push_copy_data() && tracker.push_copy_end());
    // Of the two Syncs one or two are answered.
    run(&mut tracker, "S", "EZI").unwrap();
    assert!(tracker.is_clean() && tracker.is_in_doubt());
    let mut tracker = Tracker::new();
    run(&mut tracker, "PBES", "12G").unwrap();
    assert!(tracker.push_copy_data());
    run(&mut tracker, "", "EZI").unwrap();
    assert!(tracker.is_clean() && tracker.is_in_doubt());
}

#[test]
fn a_renewed_tracker_owes_nothing_and_trusts_its_backend() {
    let mut tracker = Tracker::new();
    for _ in 0..100 {
        tracker.push(Ask::Query, Owner::Client);
    }
    tracker.renew();
    assert!(!tracker.owes() && !tracker.is_in_doubt());
    assert_eq!((tracker.status(), tracker.next_push()), (TxStatus::Idle, None));
    assert!(tracker.queue.capacity() < 100, "a long pipeline's memory is not kept");
}
