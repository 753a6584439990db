//! The differences from a direct connection that are accepted, each with its reason. All there are stand here.

use crate::run::Message;

// Known and not shown by a script: DEALLOCATE of what was made by Parse, in a string with other statements, gives
// 26000; a Parse behind DEALLOCATE ALL or DISCARD ALL in one extended batch is forgotten with the rest; RESET inside a
// transaction gives the server's default in place of the value that the client gave at its start, until the end of
// the transaction; a Query that the server ignores behind an error drops the unnamed statement; PGWEIR_SEED=581
// shows that the error of a Describe is lost when its batch moves from a standby to the primary; replies that no Flush or Sync asks for come with the next one that does.

/// Scripts of the table that are not run, alone or combined: name, reason.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "execute of no unnamed portal",
        "after a BEGIN that was not sent yet there is no portal of it: 34000, not 55000",
    ),
    ("sync with a body", "a Sync is taken as one whatever its body: no 08P01"),
    ("prepared statements seen", "pg_prepared_statements shows what the backend holds, under our names"),
    (
        "plan of a changed table",
        "what was prepared before DDL is prepared anew instead of failing with 0A000",
    ),
    (
        "prepare by extended",
        "Parse of a name that SQL's PREPARE has taken succeeds: names of the two are kept apart",
    ),
    (
        "sequence",
        "currval and lastval outside of a transaction may be asked of another backend than nextval: 55000",
    ),
    (
        "set by a function",
        "set_config inside of a function is not seen unless the parameter is one that is reported",
    ),
    ("protocol statement by execute", "SQL's EXECUTE does not find what was made by Parse: 26000"),
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
