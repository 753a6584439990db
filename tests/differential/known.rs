//! The differences from a direct connection that are accepted, each with its reason.

use crate::run::Message;

/// Scripts of the table that are not run, alone or combined: name, reason.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    ("prepared statements seen", "pg_prepared_statements shows what the backend holds, under our names"),
    (
        "plan of a changed table",
        "what was prepared on one backend before DDL and runs on another behind it is prepared there, instead of \
         failing with 0A000; prepared.rs has the test of what is promised (PS-10)",
    ),
];

/// Errors that may be told in other words, and the field of each from which on: those behind it are not compared.
const SMOOTH: [(&[u8], &[u8]); 2] = [
    // In a failed transaction a Parse of ours may be refused in place of the client's Describe, or of a Bind that was sent
    // before the server said that it had failed: with the same words, but from another place in the server's source.
    (b"C25P02\0", b"\0F"),
    // A READ ONLY transaction is on a standby: what it must not do is refused there because of the recovery.
    (b"C25006\0", b"\0M"),
];

/// Makes equal what is allowed to differ.
pub(crate) fn smooth(direct: &mut [Message], weir: &mut [Message]) {
    let place = |body: &[u8], part: &[u8]| body.windows(part.len()).position(|window| window == part);
    for (tag, body) in direct.iter_mut().chain(weir.iter_mut()) {
        for (code, field) in SMOOTH {
            if *tag == b'E' && place(body, code).is_some() {
                body.truncate(place(body, field).unwrap_or(body.len()));
            }
        }
    }
    for (wanted, seen) in direct.iter().zip(weir) {
        let refused = seen.0 == b'E' && place(&seen.1, b"C25P02\0").is_some();
        if refused && wanted.0 == b'E' && place(&wanted.1, VALUES).is_some() {
            seen.1.clone_from(&wanted.1);
        }
    }
}

/// The server looks at the number of values of a Bind before it refuses it because the transaction has failed. A Parse of
/// ours in front of it is refused at once where the client has sent the Bind before the server said that it had failed.
const VALUES: &[u8] = b"C08P01\0Mbind message supplies ";

/// What a standby would do silently wrong is refused in a READ ONLY transaction that is on one, in these words of ours;
/// what follows in the failed transaction is not compared.
const REFUSED: &[u8] = b"Mcannot execute this statement in a READ ONLY transaction on a standby\0";

/// A READ ONLY transaction that was begun by a statement with a name is on a standby for good: what asks for another level
/// inside of it, before its first query, is refused there in the server's words.
const NOT_SERIALIZABLE: &[u8] = b"Mcannot use serializable mode in a hot standby\0";

/// Whether nothing can be compared from that message on.
pub(crate) fn ends_comparison(message: &Message) -> bool {
    let says = |words: &[u8]| message.1.windows(words.len()).any(|part| part == words);
    message.0 == b'E' && (says(REFUSED) || says(NOT_SERIALIZABLE))
}
