//! Protocol scripts in the notation of the behaviour cases, and back.
//!
//! `P("s","SELECT $1::int") B("","s",["41"]) E S | Q("SELECT 2")`: messages between two `|` are sent in one write, and
//! all replies to them are read before the next. What may be left out: `B` is `B("","",[])`, `E` is `E("",0)`, and
//! `PBE("sql")` stands for the three. Texts know `\n \t \\ \" \xNN`, `"y"*70000` and `"a"+"b"`.

use std::fmt::{self, Write as _};

use anyhow::{Context, Result, bail, ensure};
use harness::{Msgs, msgs};

type Bytes = Vec<u8>;

/// One frontend message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Msg {
    Parse {
        name: String,
        sql: Bytes,
        types: Vec<u32>,
    },
    Bind {
        portal: String,
        statement: String,
        values: Vec<Option<Bytes>>,
        formats: Vec<u16>,
        results: Vec<u16>,
    },
    Describe(char, String),
    Execute(String, usize),
    Close(char, String),
    Flush,
    Sync,
    Query(Bytes),
    /// A function without arguments.
    Call(u32),
    CopyData(Bytes),
    CopyDone,
    CopyFail(String),
    /// Any type byte with any body.
    Raw(u8, Bytes),
}

/// What is sent in one write.
pub(crate) type Step = Vec<Msg>;

/// Steps with a name.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

impl Msg {
    fn put(&self, to: Msgs) -> Msgs {
        match self {
            Self::Parse { name, sql, types } => {
                let mut body = [name.as_bytes(), &[0], sql, &[0]].concat();
                body.extend(u16::try_from(types.len()).unwrap_or(u16::MAX).to_be_bytes());
                types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
                to.message(b'P', &body)
            }
            Self::Bind { portal, statement, values, formats, results } => {
                let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
                to.B_formats(portal, statement, formats, &values, results)
            }
            Self::Describe(kind, name) => to.D(*kind, name),
            Self::Execute(portal, max) => to.E_max(portal, *max),
            Self::Close(kind, name) => to.C(*kind, name),
            Self::Flush => to.H(),
            Self::Sync => to.S(),
            Self::Query(sql) => to.Q_bytes(sql),
            Self::Call(oid) => to.F(*oid),
            Self::CopyData(data) => to.d(data),
            Self::CopyDone => to.c(),
            Self::CopyFail(reason) => to.f(reason),
            Self::Raw(tag, body) => to.message(*tag, body),
        }
    }
}

/// The bytes of a step, and how many ReadyForQuery it asks for.
pub(crate) fn encode(step: &[Msg]) -> Msgs {
    step.iter().fold(msgs(), |to, msg| msg.put(to))
}

impl Script {
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        let mut reader = Reader { rest: text };
        let steps =
            reader.steps().with_context(|| format!("script {name}, before {:?}", head(reader.rest)))?;
        Ok(Self { name: name.to_owned(), steps })
    }

    /// All in one step.
    pub(crate) fn whole(&self) -> Step {
        self.steps.concat()
    }

    /// For one slot: `%k` is its number.
    pub(crate) fn in_slot(&self, slot: usize) -> Result<Self> {
        Self::parse(&self.name, &self.to_string().replace("%k", &slot.to_string()))
    }

    /// Whether it may change what later scripts find.
    pub(crate) fn writes(&self) -> bool {
        const WORDS: [&str; 14] = [
            "create", "insert", "update", "delete", "nextval", "setval", "copy", "truncate", "drop", "alter",
            "into", "merge", "touch", "do ",
        ];
        let text = self.to_string().to_lowercase();
        WORDS.iter().any(|word| text.contains(word))
    }
}

fn head(text: &str) -> String {
    text.chars().take(60).collect()
}

/// An argument of a message.
enum Arg {
    Text(Bytes),
    Number(u64),
    Null,
    List(Vec<Arg>),
}

impl Arg {
    fn bytes(self) -> Result<Bytes> {
        match self {
            Self::Text(bytes) => Ok(bytes),
            _ => bail!("a text is needed"),
        }
    }
    fn text(self) -> Result<String> {
        Ok(String::from_utf8(self.bytes()?)?)
    }
    fn number<T: TryFrom<u64>>(self) -> Result<T> {
        match self {
            Self::Number(n) => T::try_from(n).ok().context("number too large"),
            _ => bail!("a number is needed"),
        }
    }
    fn list<T>(self, one: impl FnMut(Self) -> Result<T>) -> Result<Vec<T>> {
        match self {
            Self::List(args) => args.into_iter().map(one).collect(),
            _ => bail!("a list is needed"),
        }
    }
    fn value(self) -> Result<Option<Bytes>> {
        match self {
            Self::Null => Ok(None),
            other => other.bytes().map(Some),
        }
    }
}

/// Reads a script from the front.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.blanks();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn word(&mut self) -> String {
        self.blanks();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn steps(&mut self) -> Result<Vec<Step>> {
        let mut steps = vec![Step::new()];
        loop {
            self.blanks();
            if self.rest.is_empty() {
                return Ok(steps);
            }
            if self.takes('|') {
                steps.push(Step::new());
                continue;
            }
            let word = self.word();
            let args = if self.takes('(') { self.args(')')? } else { Vec::new() };
            let made = message(&word, args).with_context(|| format!("message {word:?}"))?;
            steps.last_mut().context("no step")?.extend(made);
        }
    }

    fn args(&mut self, end: char) -> Result<Vec<Arg>> {
        let mut args = Vec::new();
        while !self.takes(end) {
            args.push(self.arg()?);
            if !self.takes(',') {
                ensure!(self.takes(end), "neither a comma nor {end:?}");
                break;
            }
        }
        Ok(args)
    }

    fn arg(&mut self) -> Result<Arg> {
        self.blanks();
        if self.takes('[') {
            return Ok(Arg::List(self.args(']')?));
        }
        if self.rest.starts_with('"') {
            let mut text = self.run()?;
            while self.takes('+') {
                text.extend(self.run()?);
            }
            return Ok(Arg::Text(text));
        }
        let word = self.word();
        ensure!(!word.is_empty(), "no argument");
        Ok(match (word.as_str(), word.parse()) {
            ("NULL", _) => Arg::Null,
            (_, Ok(number)) => Arg::Number(number),
            _ => Arg::Text(word.into_bytes()),
        })
    }

    /// `"text"` or `"text"*times`.
    fn run(&mut self) -> Result<Bytes> {
        let text = self.quoted()?;
        if !self.takes('*') {
            return Ok(text);
        }
        Ok(text.repeat(self.word().parse()?))
    }

    fn quoted(&mut self) -> Result<Bytes> {
        ensure!(self.takes('"'), "no text");
        let mut bytes = Bytes::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(bytes);
                }
                '\\' => match chars.next().context("text ends in \\")?.1 {
                    'n' => bytes.push(b'\n'),
                    't' => bytes.push(b'\t'),
                    'x' => {
                        let hex = self.rest.get(at + 2..at + 4).context("\\x without two digits")?;
                        bytes.push(u8::from_str_radix(hex, 16)?);
                        chars.nth(1);
                    }
                    other => bytes.extend(other.to_string().bytes()),
                },
                c => bytes.extend(c.to_string().bytes()),
            }
        }
        bail!("text without end")
    }
}

fn message(word: &str, args: Vec<Arg>) -> Result<Vec<Msg>> {
    let mut args = args.into_iter();
    let mut text = || args.next().map_or(Ok(String::new()), Arg::text);
    let kind = |text: String| text.chars().next().context("S or P is needed");
    let one = match word {
        "P" => {
            let (name, sql) = (text()?, args.next().context("no SQL")?.bytes()?);
            let types = args.next().map_or(Ok(Vec::new()), |arg| arg.list(Arg::number))?;
            Msg::Parse { name, sql, types }
        }
        "B" => {
            let (portal, statement) = (text()?, text()?);
            let values = args.next().map_or(Ok(Vec::new()), |arg| arg.list(Arg::value))?;
            let mut numbers = || args.next().map_or(Ok(Vec::new()), |arg| arg.list(Arg::number));
            Msg::Bind { portal, statement, values, formats: numbers()?, results: numbers()? }
        }
        "D" => Msg::Describe(kind(text()?)?, text()?),
        "C" => Msg::Close(kind(text()?)?, text()?),
        "E" => Msg::Execute(text()?, args.next().map_or(Ok(0), Arg::number)?),
        "H" => Msg::Flush,
        "S" => Msg::Sync,
        "Q" => Msg::Query(args.next().context("no SQL")?.bytes()?),
        "F" => Msg::Call(args.next().context("no function")?.number()?),
        "d" => Msg::CopyData(args.next().context("no data")?.bytes()?),
        "c" => Msg::CopyDone,
        "f" => Msg::CopyFail(text()?),
        "raw" => Msg::Raw(u8::try_from(kind(text()?)?)?, args.next().map_or(Ok(Bytes::new()), Arg::bytes)?),
        "PBE" => {
            let sql = args.next().context("no SQL")?.bytes()?;
            let parse = Msg::Parse { name: String::new(), sql, types: Vec::new() };
            return Ok(vec![parse, message("B", Vec::new())?.remove(0), Msg::Execute(String::new(), 0)]);
        }
        _ => bail!("unknown message"),
    };
    ensure!(args.next().is_none(), "too many arguments");
    Ok(vec![one])
}

/// A text in quotes; long runs of one byte are written as `"y"*n`.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RUN: usize = 64;
        let mut parts: Vec<String> = Vec::new();
        let mut plain = String::new();
        for run in self.0.chunk_by(|a, b| a == b) {
            let one = escaped(run[0]);
            if run.len() < RUN {
                plain.push_str(&one.repeat(run.len()));
                continue;
            }
            if !plain.is_empty() {
                parts.push(format!("\"{}\"", std::mem::take(&mut plain)));
            }
            parts.push(format!("\"{one}\"*{}", run.len()));
        }
        if !plain.is_empty() || parts.is_empty() {
            parts.push(format!("\"{plain}\""));
        }
        f.write_str(&parts.join("+"))
    }
}

fn escaped(byte: u8) -> String {
    match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

fn listed<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    format!("[{}]", items.map(|item| item.to_string()).collect::<Vec<_>>().join(","))
}

impl fmt::Display for Msg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parse { name, sql, types } if types.is_empty() => {
                write!(f, "P(\"{name}\",{})", Quoted(sql))
            }
            Self::Parse { name, sql, types } => {
                write!(f, "P(\"{name}\",{},{})", Quoted(sql), listed(types.iter()))
            }
            Self::Bind { portal, statement, values, formats, results } => {
                let value =
                    |v: &Option<Bytes>| v.as_ref().map_or("NULL".to_owned(), |v| Quoted(v).to_string());
                let values = listed(values.iter().map(value));
                write!(f, "B(\"{portal}\",\"{statement}\",{values}")?;
                if !formats.is_empty() || !results.is_empty() {
                    write!(f, ",{},{}", listed(formats.iter()), listed(results.iter()))?;
                }
                f.write_char(')')
            }
            Self::Describe(kind, name) => write!(f, "D({kind},\"{name}\")"),
            Self::Execute(portal, max) => write!(f, "E(\"{portal}\",{max})"),
            Self::Close(kind, name) => write!(f, "C({kind},\"{name}\")"),
            Self::Flush => f.write_char('H'),
            Self::Sync => f.write_char('S'),
            Self::Query(sql) => write!(f, "Q({})", Quoted(sql)),
            Self::Call(oid) => write!(f, "F({oid})"),
            Self::CopyData(data) => write!(f, "d({})", Quoted(data)),
            Self::CopyDone => f.write_char('c'),
            Self::CopyFail(reason) => write!(f, "f({})", Quoted(reason.as_bytes())),
            Self::Raw(tag, body) => write!(f, "raw(\"{}\",{})", char::from(*tag), Quoted(body)),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = |step: &Step| step.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        f.write_str(&self.steps.iter().map(step).collect::<Vec<_>>().join(" | "))
    }
}

#[test]
fn a_script_is_read_as_it_is_written() -> Result<()> {
    let text = "P(\"s\",\"SELECT \\\"x\\\" \\\\\\n\",[23]) B(\"p\",\"s\",[\"4\\x00\\xff\",NULL],[1],[0,1]) D(P,\"p\") \
                E(\"p\",2) C(S,\"s\") H S | Q(\"a\"+\"y\"*70+\"b\") F(2026) | d(\"1\\t2\\n\") c f(\"no\") raw(\"~\",\"\")";
    let script = Script::parse("it", text)?;
    assert_eq!(script.steps.len(), 3);
    assert_eq!(script.to_string(), text);
    assert_eq!(Script::parse("it", &script.to_string())?.steps, script.steps);
    assert_eq!(Script::parse("it", "PBE(\"x\") B E")?.to_string().matches("B(\"\",\"\",[])").count(), 2);
    Ok(())
}
