//! Backend messages, decoded strictly, and their compact form: `1 2 D(1) C(SELECT 1) Z(I)`.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// The fields of an ErrorResponse or NoticeResponse, in the order of the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(char, String)>);

impl Fields {
    /// A field by its type letter; empty when it is absent.
    #[must_use]
    pub fn get(&self, letter: char) -> &str {
        self.0.iter().find(|(l, _)| *l == letter).map_or("", |(_, text)| text)
    }
}

/// A column of a RowDescription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// Oid of its type.
    pub type_oid: u32,
    /// 0 text, 1 binary.
    pub format: u16,
}

/// One backend message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the protocol's manual chapter")]
pub enum Reply {
    Authentication { code: u32, data: Vec<u8> },
    ParameterStatus(String, String),
    BackendKey { pid: u32, secret: Vec<u8> },
    Negotiate { version: u32, options: Vec<String> },
    ReadyForQuery(char),
    ParseComplete,
    BindComplete,
    CloseComplete,
    ParameterDescription(Vec<u32>),
    RowDescription(Vec<Column>),
    NoData,
    DataRow(Vec<Option<Vec<u8>>>),
    CommandComplete(String),
    EmptyQuery,
    PortalSuspended,
    Error(Fields),
    Notice(Fields),
    Notification { pid: u32, channel: String, payload: String },
    FunctionResult(Option<Vec<u8>>),
    CopyIn,
    CopyOut,
    CopyBoth,
    CopyData(Vec<u8>),
    CopyDone,
}

/// Reads a message body from the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).context("message too short")?;
        self.0 = tail;
        Ok(head)
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }
    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }
    fn text(&mut self) -> Result<String> {
        let end = self.0.iter().position(|byte| *byte == 0).context("no NUL")?;
        let text = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.take(1)?;
        Ok(text)
    }
    fn value(&mut self) -> Result<Option<Vec<u8>>> {
        match self.u32()? {
            u32::MAX => Ok(None),
            len => Ok(Some(self.take(len as usize)?.to_vec())),
        }
    }
    fn fields(&mut self) -> Result<Fields> {
        let mut fields = Vec::new();
        loop {
            match self.take(1)? {
                [0] => return Ok(Fields(fields)),
                letter => fields.push((char::from(letter[0]), self.text()?)),
            }
        }
    }
    fn column(&mut self) -> Result<Column> {
        let name = self.text()?;
        self.take(6)?; // table oid, column number
        let type_oid = self.u32()?;
        self.take(6)?; // type size, type modifier
        Ok(Column { name, type_oid, format: self.u16()? })
    }
    fn many<T>(&mut self, n: usize, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..n).map(|_| one(self)).collect()
    }
    fn counted<T>(&mut self, one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.u16()?;
        self.many(n.into(), one)
    }
}

impl Reply {
    /// Decodes a message; every byte of the body must be accounted for.
    ///
    /// # Errors
    /// When the type is unknown or the body does not have its form.
    pub fn decode(tag: u8, bytes: &[u8]) -> Result<Self> {
        let mut body = Body(bytes);
        let reply = Self::decode_body(tag, &mut body)
            .with_context(|| format!("malformed message {:?}, {} bytes", char::from(tag), bytes.len()))?;
        ensure!(body.0.is_empty(), "{} bytes too many in message {:?}", body.0.len(), char::from(tag));
        Ok(reply)
    }

    fn decode_body(tag: u8, body: &mut Body<'_>) -> Result<Self> {
        Ok(match tag {
            b'1' => Self::ParseComplete,
            b'2' => Self::BindComplete,
            b'3' => Self::CloseComplete,
            b'n' => Self::NoData,
            b'I' => Self::EmptyQuery,
            b's' => Self::PortalSuspended,
            b'c' => Self::CopyDone,
            b'd' => Self::CopyData(body.take(body.0.len())?.to_vec()),
            b'C' => Self::CommandComplete(body.text()?),
            b'Z' => Self::ReadyForQuery(char::from(body.take(1)?[0])),
            b'E' => Self::Error(body.fields()?),
            b'N' => Self::Notice(body.fields()?),
            b'S' => Self::ParameterStatus(body.text()?, body.text()?),
            b't' => Self::ParameterDescription(body.counted(Body::u32)?),
            b'T' => Self::RowDescription(body.counted(Body::column)?),
            b'D' => Self::DataRow(body.counted(Body::value)?),
            b'V' => Self::FunctionResult(body.value()?),
            b'K' => Self::BackendKey { pid: body.u32()?, secret: body.take(body.0.len())?.to_vec() },
            b'A' => Self::Notification { pid: body.u32()?, channel: body.text()?, payload: body.text()? },
            b'R' => Self::Authentication { code: body.u32()?, data: body.take(body.0.len())?.to_vec() },
            b'v' => Self::negotiate(body)?,
            b'G' | b'H' | b'W' => {
                body.take(1)?;
                body.counted(Body::u16)?;
                match tag {
                    b'G' => Self::CopyIn,
                    b'H' => Self::CopyOut,
                    _ => Self::CopyBoth,
                }
            }
            _ => bail!("unknown message type {tag:#04x}"),
        })
    }

    fn negotiate(body: &mut Body<'_>) -> Result<Self> {
        let version = body.u32()?;
        let n = body.u32()? as usize;
        Ok(Self::Negotiate { version, options: body.many(n, Body::text)? })
    }
}

fn value(bytes: &Option<Vec<u8>>) -> String {
    bytes.as_ref().map_or_else(|| "NULL".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ParseComplete => f.write_str("1"),
            Self::BindComplete => f.write_str("2"),
            Self::CloseComplete => f.write_str("3"),
            Self::ParameterDescription(_) => f.write_str("t"),
            Self::RowDescription(_) => f.write_str("T"),
            Self::NoData => f.write_str("n"),
            Self::EmptyQuery => f.write_str("I"),
            Self::PortalSuspended => f.write_str("s"),
            Self::CopyIn => f.write_str("G"),
            Self::CopyOut => f.write_str("H"),
            Self::CopyBoth => f.write_str("W"),
            Self::CopyDone => f.write_str("c"),
            Self::CopyData(data) => write!(f, "d({})", String::from_utf8_lossy(data).trim_end()),
            Self::DataRow(values) => {
                write!(f, "D({})", values.iter().map(value).collect::<Vec<_>>().join(","))
            }
            Self::CommandComplete(tag) => write!(f, "C({tag})"),
            Self::ReadyForQuery(status) => write!(f, "Z({status})"),
            Self::Error(fields) => write!(f, "E({})", fields.get('C')),
            Self::Notice(fields) => write!(f, "N({})", fields.get('C')),
            Self::ParameterStatus(name, value) => write!(f, "S({name}={value})"),
            Self::FunctionResult(_) => f.write_str("V"),
            Self::Notification { channel, payload, .. } => write!(f, "A({channel},{payload})"),
            Self::BackendKey { .. } => f.write_str("K"),
            Self::Authentication { code, .. } => write!(f, "R({code})"),
            Self::Negotiate { version, options } => {
                write!(f, "v({}.{};{})", version >> 16, version & 0xffff, options.join(","))
            }
        }
    }
}

/// A run of replies; `Display` is the compact form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies(pub Vec<Reply>);

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&parts.join(" "))
    }
}

impl Replies {
    /// The first ErrorResponse.
    #[must_use]
    pub fn error(&self) -> Option<&Fields> {
        self.0.iter().find_map(|reply| if let Reply::Error(fields) = reply { Some(fields) } else { None })
    }

    /// All values of all DataRows, as text.
    #[must_use]
    pub fn values(&self) -> Vec<String> {
        let rows = self.0.iter().filter_map(|r| if let Reply::DataRow(v) = r { Some(v) } else { None });
        rows.flatten().map(value).collect()
    }
}
