//! What a server says. Source: protocol, "Message Formats", the messages marked (B).

use bytes::{BufMut, BytesMut};

use crate::write::{WriteError, check_secret, count16, cstring, message, short};

/// `AuthenticationOk`.
pub fn authentication_ok(out: &mut BytesMut) {
    short(out, Some(b'R'), &0u32.to_be_bytes());
}

/// `AuthenticationCleartextPassword`.
pub fn authentication_cleartext_password(out: &mut BytesMut) {
    short(out, Some(b'R'), &3u32.to_be_bytes());
}

/// `AuthenticationMD5Password` with its salt.
pub fn authentication_md5_password(out: &mut BytesMut, salt: [u8; 4]) {
    let [a, b, c, d] = salt;
    short(out, Some(b'R'), &[0, 0, 0, 5, a, b, c, d]);
}

/// `AuthenticationSASL` with the names of the mechanisms offered.
pub fn authentication_sasl(out: &mut BytesMut, mechanisms: &[&str]) -> Result<(), WriteError> {
    message(out, Some(b'R'), |body| {
        body.put_u32(10);
        for name in mechanisms {
            cstring(body, name.as_bytes())?;
        }
        body.put_u8(0);
        Ok(())
    })
}

/// `AuthenticationSASLContinue` with the mechanism's data.
pub fn authentication_sasl_continue(out: &mut BytesMut, data: &[u8]) -> Result<(), WriteError> {
    authentication_data(out, 11, data)
}

/// `AuthenticationSASLFinal` with the mechanism's data.
pub fn authentication_sasl_final(out: &mut BytesMut, data: &[u8]) -> Result<(), WriteError> {
    authentication_data(out, 12, data)
}

fn authentication_data(out: &mut BytesMut, code: u32, data: &[u8]) -> Result<(), WriteError> {
    message(out, Some(b'R'), |body| {
        body.put_u32(code);
        body.put_slice(data);
        Ok(())
    })
}

/// `ParameterStatus`.
pub fn parameter_status(
    out: &mut BytesMut,
    name: impl AsRef<[u8]>,
    value: impl AsRef<[u8]>,
) -> Result<(), WriteError> {
    message(out, Some(b'S'), |body| {
        cstring(body, name.as_ref())?;
        cstring(body, value.as_ref())
    })
}

/// `BackendKeyData`: the secret has 4 bytes in protocol 3.0, 4 to 256 in 3.2.
pub fn backend_key_data(out: &mut BytesMut, pid: u32, secret: &[u8]) -> Result<(), WriteError> {
    check_secret(secret)?;
    message(out, Some(b'K'), |body| {
        body.put_u32(pid);
        body.put_slice(secret);
        Ok(())
    })
}

/// `ReadyForQuery`; `status` is `I`, `T` or `E`.
pub fn ready_for_query(out: &mut BytesMut, status: u8) {
    short(out, Some(b'Z'), &[status]);
}

/// `CommandComplete`.
pub fn command_complete(out: &mut BytesMut, tag: impl AsRef<[u8]>) -> Result<(), WriteError> {
    message(out, Some(b'C'), |body| cstring(body, tag.as_ref()))
}

/// `EmptyQueryResponse`.
pub fn empty_query_response(out: &mut BytesMut) {
    short(out, Some(b'I'), &[]);
}

/// `ParseComplete`.
pub fn parse_complete(out: &mut BytesMut) {
    short(out, Some(b'1'), &[]);
}

/// `BindComplete`.
pub fn bind_complete(out: &mut BytesMut) {
    short(out, Some(b'2'), &[]);
}

/// `CloseComplete`.
pub fn close_complete(out: &mut BytesMut) {
    short(out, Some(b'3'), &[]);
}

/// `NoData`.
pub fn no_data(out: &mut BytesMut) {
    short(out, Some(b'n'), &[]);
}

/// `PortalSuspended`.
pub fn portal_suspended(out: &mut BytesMut) {
    short(out, Some(b's'), &[]);
}

/// `ParameterDescription` with the type oids of a statement's parameters.
pub fn parameter_description(out: &mut BytesMut, oids: &[u32]) -> Result<(), WriteError> {
    message(out, Some(b't'), |body| {
        // The count is unsigned since PostgreSQL 14; 32767 is as many as every client can read.
        count16(body, oids.len())?;
        oids.iter().for_each(|oid| body.put_u32(*oid));
        Ok(())
    })
}

/// `NegotiateProtocolVersion`: the newest 3.x we speak, and the `_pq_.` options we do not know.
///
/// The version is sent as the whole code (3 << 16 | minor), which is what PostgreSQL does and
/// libpq reads, though the manual calls it the minor version.
pub fn negotiate_protocol_version<N: AsRef<[u8]>>(
    out: &mut BytesMut,
    minor: u16,
    unknown_options: &[N],
) -> Result<(), WriteError> {
    message(out, Some(b'v'), |body| {
        body.put_u16(3);
        body.put_u16(minor);
        let count = u32::try_from(unknown_options.len());
        body.put_u32(count.map_err(|_| WriteError::TooManyItems(unknown_options.len()))?);
        unknown_options.iter().try_for_each(|name| cstring(body, name.as_ref()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_manual_says() {
        let mut out = BytesMut::new();
        authentication_ok(&mut out);
        authentication_md5_password(&mut out, *b"salt");
        authentication_sasl(&mut out, &["SCRAM-SHA-256"]).unwrap();
        parameter_status(&mut out, "TimeZone", "UTC").unwrap();
        backend_key_data(&mut out, 7, b"abcd").unwrap();
        ready_for_query(&mut out, b'I');
        parameter_description(&mut out, &[23]).unwrap();
        negotiate_protocol_version(&mut out, 0, &["_pq_.x"]).unwrap();
        let expected: &[&[u8]] = &[
            b"R\0\0\0\x08\0\0\0\0",
            b"R\0\0\0\x0c\0\0\0\x05salt",
            b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0",
            b"S\0\0\0\x11TimeZone\0UTC\0",
            b"K\0\0\0\x0c\0\0\0\x07abcd",
            b"Z\0\0\0\x05I",
            b"t\0\0\0\x0a\0\x01\0\0\0\x17",
            b"v\0\0\0\x13\0\x03\0\0\0\0\0\x01_pq_.x\0",
        ];
        assert_eq!(&out[..], expected.concat());
    }
}
