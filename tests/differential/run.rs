//! Runs scripts on a direct connection and through pgweir, from the same known state, and compares the replies.
//!
//! Compared byte for byte but for process ids, and for the oids of tables and types that a script made.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::{Cluster, Login, RawClient, Reply};

use crate::known;
use crate::script::{Script, Step, encode};

/// The first oid that is not the system's own.
const FIRST_USER_OID: u32 = 16384;
/// After so long a silence a direct server is taken to have nothing more to say.
const SILENCE: Duration = Duration::from_millis(40);
/// The same where ReadyForQuery are missing that COPY or an error may have swallowed.
const LONG_SILENCE: Duration = Duration::from_millis(250);

/// What takes longer hangs; in a crowd a backend may be long in coming.
const HANG: Duration = Duration::from_secs(15);

/// A message of a server: type byte and body.
pub(crate) type Message = (u8, Vec<u8>);

/// Where scripts run undisturbed by other slots: a schema of a database.
#[derive(Debug)]
pub(crate) struct Slot {
    login: Login,
    schema: String,
    number: usize,
    primary: RawClient,
    standby: RawClient,
    dirty: bool,
}

/// How a script is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    /// Bytes of a packet.
    pub(crate) chunk: usize,
    /// Everything in one write, without waiting for replies.
    pub(crate) whole: bool,
}

/// A script is never cut into more packets than this.
const MOST_CHUNKS: usize = 3000;

/// What a direct connection answers: the replies to each step, and those to the end of the session.
pub(crate) type Transcript = Vec<Vec<Message>>;

const OBJECTS: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
CREATE TABLE u(id int PRIMARY KEY, t_id int REFERENCES t(id) DEFERRABLE INITIALLY DEFERRED);
CREATE SEQUENCE sq;
CREATE FUNCTION noisy(n int) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN RAISE NOTICE 'noisy %', n USING DETAIL = 'a detail', HINT = 'a hint'; RETURN n; END $$;
CREATE FUNCTION touch(n int) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN UPDATE t SET v = v || '!' WHERE id = n; RETURN n; END $$;
CREATE FUNCTION quiet(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT n + 1';";

const RESET: &str = "
DROP TABLE IF EXISTS x1, x2, x3 CASCADE; DROP VIEW IF EXISTS xv CASCADE; DROP FUNCTION IF EXISTS xf;
DROP TYPE IF EXISTS xt CASCADE;
TRUNCATE t, u; ALTER SEQUENCE sq RESTART;
INSERT INTO t SELECT n, (ARRAY['one','two','three','four','five'])[n] FROM generate_series(1, 5) n;";

impl Slot {
    /// The slot `number` in `database`, in a schema of its own when it shares the database with others.
    pub(crate) fn new(cluster: &Cluster, database: &str, number: usize, shared: bool) -> Result<Self> {
        let schema = if shared { format!("s{number}") } else { "public".to_owned() };
        let login = Login::new("bench", database);
        let login = if shared { login.with("options", &format!("-c search_path={schema}")) } else { login };
        let login = started(login, number);
        let admin = |node: usize| Login::new("postgres", database).connect(cluster.port(node));
        let (mut primary, mut standby) = (admin(0)?, admin(1)?);
        let made = if shared { format!("CREATE SCHEMA {schema}") } else { "SELECT 1".to_owned() };
        primary.simple(&format!("{made}; GRANT ALL ON SCHEMA {schema} TO bench"))?;
        primary.simple(&format!("SET search_path = {schema}; SET lock_timeout = '3s'; SET ROLE bench"))?;
        primary.set_deadline(HANG);
        standby.set_deadline(HANG);
        primary.simple("SET client_min_messages = warning")?;
        primary.simple(OBJECTS)?;
        Ok(Self { login, schema, number, primary, standby, dirty: true })
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The known state, on the standby too.
    fn reset(&mut self, writes: bool) -> Result<()> {
        if std::mem::replace(&mut self.dirty, writes) {
            let schema = &self.schema;
            self.primary.simple(RESET).with_context(|| format!("a lock was left in {schema}?"))?;
            self.wait_replay()?;
        }
        Ok(())
    }

    fn wait_replay(&mut self) -> Result<()> {
        let written = self.primary.scalar("SELECT pg_current_wal_flush_lsn()")?;
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        for _ in 0..10_000 {
            if self.standby.scalar(&sql)? == "t" {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("{written} is not replayed")
    }

    /// Runs a script on the server itself.
    pub(crate) fn direct(&mut self, way: Way, script: &Script) -> Result<Transcript> {
        self.reset(script.writes())?;
        let mut client = self.login.connect(way.port)?;
        client.set_deadline(HANG);
        let mut all = Transcript::new();
        for step in steps(way, script) {
            let sent = encode(&step);
            let _closed_by_the_server = client.send(&sent);
            all.push(listen(&mut client, sent.ready_due())?);
        }
        all.push(farewell(&mut client)?);
        normalise(all.iter_mut().flatten());
        Ok(all)
    }

    /// Runs a script through pgweir; how the replies differ from what is wanted, or `None`.
    pub(crate) fn compare(
        &mut self,
        way: Way,
        script: &Script,
        wanted: &Transcript,
    ) -> Result<Option<String>> {
        self.reset(script.writes())?;
        let mut client = self.login.connect(way.port)?;
        client.set_deadline(HANG);
        let (mut seen, mut trouble) = (Vec::new(), None);
        for (step, wanted) in steps(way, script).iter().zip(wanted) {
            let sent = encode(step);
            client.set_chunk(way.chunk.max(sent.bytes().len() / MOST_CHUNKS));
            let _closed = client.send(&sent);
            for _ in wanted {
                match client.next_raw() {
                    Ok(Some(message)) if known::ends_comparison(&message) => return Ok(None),
                    Ok(Some(message)) => seen.push(message),
                    Ok(None) => break,
                    Err(error) => {
                        trouble = Some(format!("{error:#}"));
                        break;
                    }
                }
            }
            if trouble.is_some() {
                break;
            }
        }
        client.set_chunk(usize::MAX);
        if trouble.is_none() {
            match farewell(&mut client) {
                Ok(last) => seen.extend(last),
                Err(error) => trouble = Some(format!("not closed: {error:#}")),
            }
        }
        normalise(seen.iter_mut());
        let mut wanted = wanted.concat();
        known::smooth(&mut wanted, &mut seen);
        if trouble.is_none() && wanted == seen {
            return Ok(None);
        }
        Ok(Some(describe(way, script, &wanted, &seen, trouble)))
    }
}

/// What clients say at the start differs: what a reset gives back to them is their own.
fn started(login: Login, number: usize) -> Login {
    match number % 3 {
        0 => login,
        1 => login.with("TimeZone", "Asia/Kolkata").with("work_mem", "6MB").with("app.slot", "it's"),
        _ => login.with("DateStyle", "German, DMY").with("IntervalStyle", "iso_8601"),
    }
}

fn steps(way: Way, script: &Script) -> Vec<Step> {
    if way.whole { vec![script.whole()] } else { script.steps.clone() }
}

/// Reads until nothing more is due, as far as can be known.
fn listen(client: &mut RawClient, ready_due: usize) -> Result<Vec<Message>> {
    let mut got = Vec::new();
    let mut left = ready_due;
    let sure = ready_due > 0;
    while left > 0 || !sure {
        let patience = if sure { LONG_SILENCE } else { SILENCE };
        if client.silent_for(patience).unwrap_or(true)
            && (!sure || client.silent_for(LONG_SILENCE).unwrap_or(true))
        {
            break;
        }
        let Some(message) = client.next_raw()? else { break };
        left = left.saturating_sub(usize::from(message.0 == b'Z'));
        got.push(message);
    }
    Ok(got)
}

/// Says goodbye, as a program does and then as a process that ends; what comes until the other side closes.
fn farewell(client: &mut RawClient) -> Result<Vec<Message>> {
    let _closed = client.send(&harness::msgs().X());
    let _closed = client.half_close();
    let mut got = Vec::new();
    while let Some(message) = client.next_raw()? {
        got.push(message);
    }
    Ok(got)
}

/// Takes out what differs between any two sessions.
fn normalise<'a>(messages: impl Iterator<Item = &'a mut Message>) {
    let mut oids: Vec<u32> = Vec::new();
    for (tag, body) in messages {
        match tag {
            b'A' | b'K' => body.iter_mut().take(4).for_each(|byte| *byte = 0),
            b'T' => number_oids(body, &mut oids),
            _ => {}
        }
    }
}

/// Replaces oids of tables and types that scripts made by the order of their appearance.
fn number_oids(body: &mut [u8], oids: &mut Vec<u32>) {
    let mut at = 2;
    while let Some(end) = body.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0)) {
        let fields = at + end + 1;
        for field in [fields, fields + 6] {
            let Some(bytes) = body.get_mut(field..field + 4) else { return };
            let oid = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            if oid >= FIRST_USER_OID {
                let known = oids.iter().position(|known| *known == oid);
                let number = known.unwrap_or_else(|| {
                    oids.push(oid);
                    oids.len() - 1
                });
                let number = FIRST_USER_OID + u32::try_from(number).unwrap_or(0);
                bytes.copy_from_slice(&number.to_be_bytes());
            }
        }
        at = fields + 18;
    }
}

/// What pgweir and PostgreSQL say at the login, but for the order of ParameterStatus and for keys.
pub(crate) fn greeting(login: &Login, port: u16) -> Result<Vec<String>> {
    let client = login.connect(port)?;
    let mut said: Vec<String> = client.greeting.0.iter().map(ToString::to_string).collect();
    ensure!(said.len() > 10, "{said:?}");
    said.sort();
    Ok(said)
}

fn describe(
    way: Way,
    script: &Script,
    wanted: &[Message],
    seen: &[Message],
    trouble: Option<String>,
) -> String {
    let first = wanted.iter().zip(seen).take_while(|(a, b)| a == b).count();
    let whole = if way.whole { ", all at once" } else { "" };
    let mut text = format!("{} ({}{whole}, packets of {}): {script}\n", script.name, way.name, way.chunk);
    let _fits = writeln!(text, "  direct: {}\n  pgweir: {}", compact(wanted), compact(seen));
    let _fits = writeln!(
        text,
        "  reply {first}: {}\n  instead of {}",
        full(seen.get(first)),
        full(wanted.get(first))
    );
    if let Some(trouble) = trouble {
        let _fits = writeln!(text, "  {trouble}");
    }
    text
}

fn short(text: String) -> String {
    const MOST: usize = 300;
    if text.chars().count() <= MOST { text } else { text.chars().take(MOST).collect::<String>() + "..." }
}

fn compact(messages: &[Message]) -> String {
    const MOST: usize = 120;
    let one = |(tag, body): &Message| {
        short(
            Reply::decode(*tag, body)
                .map_or_else(|_| format!("{}?", char::from(*tag)), |reply| reply.to_string()),
        )
    };
    messages.iter().take(MOST).map(one).collect::<Vec<_>>().join(" ")
}

fn full(message: Option<&Message>) -> String {
    let text = |(tag, body): &Message| {
        let body: String =
            body.iter().take(400).map(|byte| char::from(*byte).escape_default().to_string()).collect();
        format!("{} {body}", char::from(*tag))
    };
    message.map_or_else(|| "nothing".to_owned(), text)
}
