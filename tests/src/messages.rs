//! Frontend messages in the notation of the behaviour cases: `P B D E C H S Q d c f X`.

#![allow(non_snake_case, reason = "the letters are the protocol's message types")]

/// Messages to be sent in one write. Every builder method appends one message.
#[derive(Clone, Debug, Default)]
pub struct Msgs {
    bytes: Vec<u8>,
    ready_due: usize,
}

/// No messages yet.
#[must_use]
pub fn msgs() -> Msgs {
    Msgs::default()
}

/// Bytes with a terminating NUL.
fn cstr(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// A length or count of the protocol: big-endian 32 bits.
fn be32(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes()
}

fn be16(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes()
}

impl Msgs {
    /// Any message: type byte, length, body.
    #[must_use]
    pub fn message(mut self, tag: u8, body: &[u8]) -> Self {
        self.bytes.push(tag);
        self.bytes.extend(be32(body.len() + 4));
        self.bytes.extend(body);
        self
    }

    /// Any bytes at all.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Parse without parameter types.
    #[must_use]
    pub fn P(self, name: &str, sql: &str) -> Self {
        self.P_typed(name, sql, &[])
    }

    /// Parse with parameter type oids.
    #[must_use]
    pub fn P_typed(self, name: &str, sql: &str, types: &[u32]) -> Self {
        let mut body = [cstr(name), cstr(sql)].concat();
        body.extend(be16(types.len()));
        types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
        self.message(b'P', &body)
    }

    /// Bind with text parameters and text results.
    #[must_use]
    pub fn B(self, portal: &str, statement: &str, values: &[&str]) -> Self {
        let values: Vec<Option<&[u8]>> = values.iter().map(|value| Some(value.as_bytes())).collect();
        self.B_formats(portal, statement, &[], &values, &[])
    }

    /// Bind with everything: formats (0 text, 1 binary), values (`None` is NULL), result formats.
    #[must_use]
    pub fn B_formats(
        self,
        portal: &str,
        statement: &str,
        formats: &[u16],
        values: &[Option<&[u8]>],
        results: &[u16],
    ) -> Self {
        let mut body = [cstr(portal), cstr(statement)].concat();
        body.extend(be16(formats.len()));
        formats.iter().for_each(|format| body.extend(format.to_be_bytes()));
        body.extend(be16(values.len()));
        for value in values {
            match value {
                None => body.extend(u32::MAX.to_be_bytes()),
                Some(bytes) => {
                    body.extend(be32(bytes.len()));
                    body.extend(*bytes);
                }
            }
        }
        body.extend(be16(results.len()));
        results.iter().for_each(|format| body.extend(format.to_be_bytes()));
        self.message(b'B', &body)
    }

    /// Describe; `kind` is `'S'` (statement) or `'P'` (portal).
    #[must_use]
    pub fn D(self, kind: char, name: &str) -> Self {
        self.message(b'D', &[&[kind as u8][..], &cstr(name)].concat())
    }

    /// Execute the unnamed portal, all rows.
    #[must_use]
    pub fn E(self) -> Self {
        self.E_max("", 0)
    }

    /// Execute a portal for at most `max` rows (0 = all).
    #[must_use]
    pub fn E_max(self, portal: &str, max: usize) -> Self {
        self.message(b'E', &[&cstr(portal)[..], &be32(max)].concat())
    }

    /// Close; `kind` is `'S'` or `'P'`.
    #[must_use]
    pub fn C(self, kind: char, name: &str) -> Self {
        self.message(b'C', &[&[kind as u8][..], &cstr(name)].concat())
    }

    /// Flush.
    #[must_use]
    pub fn H(self) -> Self {
        self.message(b'H', &[])
    }

    /// Sync: one more ReadyForQuery is due.
    #[must_use]
    pub fn S(mut self) -> Self {
        self.ready_due += 1;
        self.message(b'S', &[])
    }

    /// Simple query: one more ReadyForQuery is due.
    #[must_use]
    pub fn Q(self, sql: &str) -> Self {
        self.Q_bytes(sql.as_bytes())
    }

    /// Simple query in any encoding.
    #[must_use]
    pub fn Q_bytes(mut self, sql: &[u8]) -> Self {
        self.ready_due += 1;
        self.message(b'Q', &[sql, &[0]].concat())
    }

    /// FunctionCall of a function without arguments: one more ReadyForQuery is due.
    #[must_use]
    pub fn F(mut self, oid: u32) -> Self {
        self.ready_due += 1;
        self.message(b'F', &[&oid.to_be_bytes()[..], &[0, 0, 0, 0, 0, 0]].concat())
    }

    /// FunctionCall with values in binary, its result as well.
    #[must_use]
    pub fn F_binary(mut self, oid: u32, values: &[&[u8]]) -> Self {
        self.ready_due += 1;
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
        let mut body = [&oid.to_be_bytes()[..], &count(1), &count(1), &count(values.len())].concat();
        for value in values {
            body.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
            body.extend_from_slice(value);
        }
        body.extend(count(1));
        self.message(b'F', &body)
    }

    /// CopyData.
    #[must_use]
    pub fn d(self, data: &[u8]) -> Self {
        self.message(b'd', data)
    }

    /// CopyDone.
    #[must_use]
    pub fn c(self) -> Self {
        self.message(b'c', &[])
    }

    /// CopyFail.
    #[must_use]
    pub fn f(self, reason: &str) -> Self {
        self.message(b'f', &cstr(reason))
    }

    /// Terminate.
    #[must_use]
    pub fn X(self) -> Self {
        self.message(b'X', &[])
    }

    /// `P B E` of the unnamed statement without parameters.
    #[must_use]
    pub fn PBE(self, sql: &str) -> Self {
        self.P("", sql).B("", "", &[]).E()
    }

    /// The other's messages after these.
    #[must_use]
    pub fn then(mut self, other: &Self) -> Self {
        self.bytes.extend(&other.bytes);
        self.ready_due += other.ready_due;
        self
    }

    /// What goes over the wire.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many ReadyForQuery a server owes for them (Sync in COPY IN aside, which it ignores).
    #[must_use]
    pub fn ready_due(&self) -> usize {
        self.ready_due
    }
}

/// A startup packet: protocol version, parameters.
#[must_use]
pub fn startup(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    for (name, value) in parameters {
        body.extend(cstr(name));
        body.extend(cstr(value));
    }
    body.push(0);
    [&be32(body.len() + 4)[..], &body].concat()
}

/// A CancelRequest for the key that BackendKeyData gave.
#[must_use]
pub fn cancel_request(pid: u32, secret: &[u8]) -> Vec<u8> {
    const CANCEL: u32 = 80_877_102;
    let body = [&CANCEL.to_be_bytes()[..], &pid.to_be_bytes(), secret].concat();
    [&be32(body.len() + 4)[..], &body].concat()
}
