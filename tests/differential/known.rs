//! The differences from a direct connection that are accepted, each with its reason. All there are stand here.

use crate::run::Message;

/// Scripts of the table that are not run, alone or combined: name, reason.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    ("prepared statements seen", "pg_prepared_statements shows what the backend holds, under our names"),
    (
        "plan of a changed table",
        "what was prepared before DDL is prepared anew instead of failing with 0A000",
    ),
    (
        "sequence",
        "currval and lastval outside of a transaction may be asked of another backend than nextval: 55000",
    ),
    (
        "set by a function",
        "set_config inside of a function is not seen unless the parameter is one that is reported",
    ),
];

/// SQLSTATE of a failed transaction.
const FAILED_TRANSACTION: &[u8] = b"C25P02\0";

/// Makes equal what is allowed to differ.
///
/// In a failed transaction a Parse of ours may be refused in place of the client's Bind or Describe behind it: with the
/// same words, but from another place in the server's source.
pub(crate) fn smooth(direct: &mut [Message], weir: &mut [Message]) {
    for (tag, body) in direct.iter_mut().chain(weir) {
        let failed =
            *tag == b'E' && body.windows(FAILED_TRANSACTION.len()).any(|part| part == FAILED_TRANSACTION);
        if let Some(place) = body.windows(2).position(|part| part == b"\0F").filter(|_| failed) {
            body.truncate(place);
        }
    }
}
