//! What a client says. Source: protocol, "Message Formats", the messages marked (F).

use bytes::{BufMut, BytesMut};

use crate::write::{WriteError, check_secret, count16, cstring, message, short, sized};

/// The request code of a CancelRequest.
pub const CANCEL_REQUEST_CODE: u32 = 80_877_102;
/// The request code of an SSLRequest.
pub const SSL_REQUEST_CODE: u32 = 80_877_103;
/// The request code of a GSSENCRequest.
pub const GSSENC_REQUEST_CODE: u32 = 80_877_104;
/// Protocol 3.0.
pub const PROTOCOL_3_0: u32 = 3 << 16;

/// What a name of [`close`] and [`describe`] is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

impl Target {
    fn code(self) -> u8 {
        match self {
            Self::Statement => b'S',
            Self::Portal => b'P',
        }
    }
}

/// `StartupMessage` of protocol 3.0 with its parameters (`user`, `database`, settings).
pub fn startup_message<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    out: &mut BytesMut,
    params: &[(K, V)],
) -> Result<(), WriteError> {
    message(out, None, |body| {
        body.put_u32(PROTOCOL_3_0);
        for (name, value) in params {
            cstring(body, name.as_ref())?;
            cstring(body, value.as_ref())?;
        }
        body.put_u8(0);
        Ok(())
    })
}

/// `SSLRequest`.
pub fn ssl_request(out: &mut BytesMut) {
    short(out, None, &SSL_REQUEST_CODE.to_be_bytes());
}

/// `CancelRequest`.
pub fn cancel_request(out: &mut BytesMut, pid: u32, secret: &[u8]) -> Result<(), WriteError> {
    check_secret(secret)?;
    message(out, None, |body| {
        body.put_u32(CANCEL_REQUEST_CODE);
        body.put_u32(pid);
        body.put_slice(secret);
        Ok(())
    })
}

/// `PasswordMessage`: a password, or an md5 response.
pub fn password_message(out: &mut BytesMut, password: &[u8]) -> Result<(), WriteError> {
    message(out, Some(b'p'), |body| cstring(body, password))
}

/// `SASLInitialResponse`.
pub fn sasl_initial_response(out: &mut BytesMut, mechanism: &str, data: &[u8]) -> Result<(), WriteError> {
    message(out, Some(b'p'), |body| {
        cstring(body, mechanism.as_bytes())?;
        sized(body, data)
    })
}

/// `SASLResponse`.
pub fn sasl_response(out: &mut BytesMut, data: &[u8]) -> Result<(), WriteError> {
    message(out, Some(b'p'), |body| {
        body.put_slice(data);
        Ok(())
    })
}

/// `Query`.
pub fn query(out: &mut BytesMut, sql: impl AsRef<[u8]>) -> Result<(), WriteError> {
    message(out, Some(b'Q'), |body| cstring(body, sql.as_ref()))
}

/// `Parse` with the oids of parameter types that are given beforehand.
pub fn parse(
    out: &mut BytesMut,
    name: impl AsRef<[u8]>,
    sql: impl AsRef<[u8]>,
    oids: &[u32],
) -> Result<(), WriteError> {
    message(out, Some(b'P'), |body| {
        cstring(body, name.as_ref())?;
        cstring(body, sql.as_ref())?;
        count16(body, oids.len())?;
        oids.iter().for_each(|oid| body.put_u32(*oid));
        Ok(())
    })
}

/// `Bind` of text parameters (`None` is null), results as text.
pub fn bind(
    out: &mut BytesMut,
    portal: impl AsRef<[u8]>,
    statement: impl AsRef<[u8]>,
    params: &[Option<&[u8]>],
) -> Result<(), WriteError> {
    message(out, Some(b'B'), |body| {
        cstring(body, portal.as_ref())?;
        cstring(body, statement.as_ref())?;
        body.put_i16(0);
        count16(body, params.len())?;
        for param in params {
            match param {
                Some(text) => sized(body, text)?,
                None => body.put_i32(-1),
            }
        }
        body.put_i16(0);
        Ok(())
    })
}

/// `Describe`.
pub fn describe(out: &mut BytesMut, target: Target, name: impl AsRef<[u8]>) -> Result<(), WriteError> {
    message(out, Some(b'D'), |body| {
        body.put_u8(target.code());
        cstring(body, name.as_ref())
    })
}

/// `Execute`; `max_rows` 0 is all.
pub fn execute(out: &mut BytesMut, portal: impl AsRef<[u8]>, max_rows: u32) -> Result<(), WriteError> {
    message(out, Some(b'E'), |body| {
        cstring(body, portal.as_ref())?;
        body.put_u32(max_rows);
        Ok(())
    })
}

/// `Close`.
pub fn close(out: &mut BytesMut, target: Target, name: impl AsRef<[u8]>) -> Result<(), WriteError> {
    message(out, Some(b'C'), |body| {
        body.put_u8(target.code());
        cstring(body, name.as_ref())
    })
}

/// `Flush`.
pub fn flush(out: &mut BytesMut) {
    short(out, Some(b'H'), &[]);
}

/// `Sync`.
pub fn sync(out: &mut BytesMut) {
    short(out, Some(b'S'), &[]);
}

/// `Terminate`.
pub fn terminate(out: &mut BytesMut) {
    short(out, Some(b'X'), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_manual_says() {
        let mut out = BytesMut::new();
        startup_message(&mut out, &[("user", "joe")]).unwrap();
        cancel_request(&mut out, 7, b"abcd").unwrap();
        query(&mut out, "select 1").unwrap();
        parse(&mut out, "s", "select $1", &[25]).unwrap();
        bind(&mut out, "", "s", &[Some(b"x"), None]).unwrap();
        describe(&mut out, Target::Portal, "").unwrap();
        execute(&mut out, "", 0).unwrap();
        close(&mut out, Target::Statement, "s").unwrap();
        sasl_initial_response(&mut out, "SCRAM-SHA-256", b"n,,").unwrap();
        sync(&mut out);
        terminate(&mut out);
        let expected: &[&[u8]] = &[
            b"\0\0\0\x12\0\x03\0\0user\0joe\0\0",
            b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd",
            b"Q\0\0\0\x0dselect 1\0",
            b"P\0\0\0\x16s\0select $1\0\0\x01\0\0\0\x19",
            b"B\0\0\0\x16\0s\0\0\0\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\0",
            b"D\0\0\0\x06P\0",
            b"E\0\0\0\x09\0\0\0\0\0",
            b"C\0\0\0\x07Ss\0",
            b"p\0\0\0\x19SCRAM-SHA-256\0\0\0\0\x03n,,",
            b"S\0\0\0\x04",
            b"X\0\0\0\x04",
        ];
        assert_eq!(&out[..], expected.concat());
    }
}
