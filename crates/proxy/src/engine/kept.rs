//! Statements that were answered here, and are sent to the server later.

use bytes::BytesMut;
use protocol::tracker::Ask;

use super::prepare::NO_TOKEN;
use super::put_query;
use crate::statements::put_header;

/// The text of one, sent by the protocol in which the client sent it: the extended one leaves a portal behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// A Query.
    Simple(Box<[u8]>),
    /// Parse, Bind, Execute and Sync, without names.
    Extended(Box<[u8]>),
}

impl Kept {
    /// Writes its messages.
    pub(super) fn put(&self, out: &mut BytesMut) {
        let sql = match self {
            Self::Simple(sql) => return put_query(out, sql),
            Self::Extended(sql) => sql,
        };
        put_header(out, b'P', sql.len() + 4);
        out.extend_from_slice(b"\0");
        out.extend_from_slice(sql);
        out.extend_from_slice(b"\0\0\0");
        // No names, formats, values or result formats; all rows.
        put_header(out, b'B', 8);
        out.extend_from_slice(&[0; 8]);
        put_header(out, b'E', 5);
        out.extend_from_slice(&[0; 5]);
        protocol::write::sync(out);
    }

    /// What the server owes for them.
    pub(super) fn asks(&self) -> &'static [Ask] {
        match self {
            Self::Simple(_) => &[Ask::Query],
            Self::Extended(_) => &[Ask::Parse(NO_TOKEN), Ask::Bind, Ask::Execute, Ask::Sync],
        }
    }
}
