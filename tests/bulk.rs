//! Big things: what passes is never held whole, and a reader that does not read costs a buffer.
//!
//! Sizes follow the memory of the machine: a server holds a large row several times.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Msgs, Pgweir, RawClient, eventually, msgs, rig, tools};

const SECOND: Duration = Duration::from_secs(1);
const MB: usize = 1 << 20;
/// What pgweir may grow by in kB while something large passes.
const GROWTH_KB: u64 = 16 * 1024;

/// `wanted` bytes, or as much as the servers of this machine can hold four times over.
fn affordable(wanted: usize) -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    let size = kb.map_or(wanted, |kb| wanted.min(kb * 1024 / 8));
    println!("{} MB of {} MB", size / MB, wanted / MB);
    size
}

fn slow(weir: &Pgweir) -> Result<RawClient> {
    let mut client = weir.client()?;
    client.set_deadline(60 * SECOND);
    Ok(client)
}

/// The types of the messages up to ReadyForQuery, and the bytes in all; nothing is kept.
fn skimmed(client: &mut RawClient) -> Result<(String, u64)> {
    let (mut tags, mut bytes) = (String::new(), 0);
    loop {
        let (tag, len) = client.skip_message()?.context("connection closed")?;
        bytes += len;
        if !tags.ends_with(char::from(tag)) {
            tags.push(char::from(tag));
        }
        if tag == b'Z' {
            return Ok((tags, bytes));
        }
    }
}

/// Statements of 64 MB, and values of 64 MB, by every protocol.
#[test]
fn cp_05_statements_and_values_of_64_mb_pass() -> Result<()> {
    let size = affordable(64 * MB);
    let (_cluster, weir) = rig(0, "default_pool_size: 2")?;
    let mut client = slow(&weir)?;
    client.simple("SELECT 1")?;
    let before = weir.rss_kb()?;
    let value = "x".repeat(size);
    let length = size.to_string();
    assert_eq!(client.scalar(&format!("SELECT length('{value}')"))?, length);
    let bind = msgs().P("", "SELECT length($1)").B("", "", &[&value]).E().S();
    assert_eq!(client.talk(&bind)?.to_string(), format!("1 2 D({length}) C(SELECT 1) Z(I)"));
    let peak = weir.peak_rss_kb()?;
    ensure!(peak < before + GROWTH_KB, "from {before} kB to {peak} kB");
    // A text that is prepared is kept: it may have to be parsed again elsewhere.
    let parse = msgs().P("big", &format!("SELECT length('{value}')")).B("", "big", &[]).E().C('S', "big").S();
    assert_eq!(client.talk(&parse)?.to_string(), format!("1 2 D({length}) C(SELECT 1) 3 Z(I)"));
    assert_eq!(client.scalar("SELECT 'goes on'")?, "goes on");
    Ok(())
}

/// One row of 900 MB.
#[test]
fn cp_05_a_row_of_900_mb_passes() -> Result<()> {
    let size = affordable(900 * MB);
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    let mut client = slow(&weir)?;
    client.simple("SELECT 1")?;
    let before = weir.rss_kb()?;
    client.send(&msgs().Q(&format!("SELECT repeat('x', {size})")))?;
    let (tags, bytes) = skimmed(&mut client)?;
    assert_eq!(tags, "TDCZ");
    ensure!(bytes > size as u64, "{bytes} bytes");
    let peak = weir.peak_rss_kb()?;
    ensure!(peak < before + GROWTH_KB, "from {before} kB to {peak} kB");
    assert_eq!(client.scalar("SELECT 'goes on'")?, "goes on");
    Ok(())
}

/// A million short rows; rows of 1,600 columns.
#[test]
fn cp_05_many_rows_and_many_columns_pass() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    let mut client = slow(&weir)?;
    client.send(&msgs().Q("SELECT 'abcdefghij' FROM generate_series(1, 1000000)"))?;
    let mut rows = 0;
    let tag = loop {
        match client.skip_message()?.context("connection closed")? {
            (b'D', _) => rows += 1,
            (b'Z', _) => break b'Z',
            _ => {}
        }
    };
    assert_eq!((rows, tag), (1_000_000, b'Z'));
    let columns: Vec<String> = (0..1600).map(|n| format!("{n} AS c{n}")).collect();
    let sql = format!("SELECT {} FROM generate_series(1, 100)", columns.join(", "));
    let replies = client.talk(&msgs().Q(&sql))?;
    assert_eq!(replies.0.len(), 103);
    let last = replies.0.get(100).context("no row")?;
    ensure!(
        matches!(last, harness::Reply::DataRow(row) if row.len() == 1600 && row[1599].as_deref() == Some(b"1599"))
    );
    Ok(())
}

/// 65,535 parameters, as on a direct connection.
#[test]
fn cp_07_65535_parameters() -> Result<()> {
    const MANY: usize = 65_535;
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    let list: Vec<String> = (1..=MANY).map(|n| format!("${n}")).collect();
    let sql = format!("SELECT 'found' WHERE '{MANY}' IN ({})", list.join(","));
    let values: Vec<String> = (1..=MANY).map(|n| n.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    for name in ["", "named"] {
        let sent = msgs().P(name, &sql).D('S', name).B("", name, &values).E().S();
        let outcome = |mut client: RawClient| -> Result<String> {
            client.set_deadline(30 * SECOND);
            Ok(client.talk(&sent)?.to_string())
        };
        let through = outcome(weir.client()?)?;
        ensure!(
            through.ends_with("T 2 D(found) C(SELECT 1) Z(I)"),
            "{}",
            &through[through.len().saturating_sub(100)..]
        );
        ensure!(through == outcome(cluster.direct(0)?)?, "not as on a direct connection");
    }
    Ok(())
}

/// 20 readers that do not read: the server waits for them, and pgweir holds a buffer for each.
#[test]
fn cp_05_readers_that_do_not_read_cost_a_buffer_each() -> Result<()> {
    const READERS: usize = 20;
    let (cluster, weir) = rig(0, &format!("default_pool_size: {}", READERS + 1))?;
    let mut readers = (0..READERS).map(|_| slow(&weir)).collect::<Result<Vec<_>>>()?;
    for reader in &mut readers {
        reader.simple("SELECT 1")?;
    }
    let before = weir.rss_kb()?;
    let endless = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 2000000)) TO STDOUT";
    for reader in &mut readers {
        reader.send(&msgs().Q(endless))?;
    }
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND wait_event = 'ClientWrite'";
    cluster.wait_scalar(0, waits, &READERS.to_string(), 20 * SECOND)?;
    let peak = weir.peak_rss_kb()?;
    ensure!(peak < before + READERS as u64 * 256, "from {before} kB to {peak} kB");
    // Nobody else is slowed down by them, and who reads on gets everything.
    assert_eq!(slow(&weir)?.scalar("SELECT 'served'")?, "served");
    let mut one = readers.pop().context("no reader")?;
    let (tags, bytes) = skimmed(&mut one)?;
    assert_eq!(tags, "HdcCZ");
    ensure!(bytes > 2_000_000_000, "{bytes} bytes");
    drop(readers);
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
    cluster.wait_scalar(0, busy, "0", 5 * SECOND)
}

/// Binary values in mixed formats, as on a direct connection byte for byte.
fn binary() -> Vec<(&'static str, Msgs)> {
    let int = 42i32.to_be_bytes();
    let select = "SELECT $1::int4, $2::text, 'NaN'::numeric, 'infinity'::timestamptz, '-infinity'::date, \
                  ARRAY[[1,2],[3,NULL]]::int[], ''::text, NULL::text, '\\x00ff'::bytea, ''::bytea, $3::float8, 1.50::numeric";
    let values: [Option<&[u8]>; 3] = [Some(&int), Some(b"text"), None];
    let of = |formats: &[u16], results: &[u16]| {
        msgs().P("", select).D('S', "").B_formats("", "", formats, &values, results).D('P', "").E().S()
    };
    let per_column: Vec<u16> = (0..12).map(|n| n % 2).collect();
    vec![
        ("all binary", of(&[1, 0, 1], &[1])),
        ("all text", of(&[1, 0, 0], &[0])),
        ("by column", of(&[1, 1, 1], &per_column)),
        ("no formats", of(&[1, 0, 0], &[])),
        ("too few formats", of(&[1, 0], &[1])),
        ("too many results", of(&[1, 0, 0], &[0; 13])),
        ("no columns", msgs().PBE("SELECT FROM generate_series(1, 3)").S()),
        ("no parameters", msgs().P("", "SELECT 1").B_formats("", "", &[], &[], &[1]).E().S()),
        (
            "empty and NULL",
            msgs().P("", "SELECT $1::text, $2::text").B_formats("", "", &[], &[Some(b""), None], &[]).E().S(),
        ),
        ("copy out", msgs().Q("COPY (SELECT 1, NULL, '', 'NaN'::numeric) TO STDOUT (FORMAT binary)")),
        ("copy out, extended", msgs().PBE("COPY (SELECT 1::int8) TO STDOUT (FORMAT binary)").S()),
    ]
}

#[test]
fn cp_07_binary_formats_pass_untouched() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    let (mut direct, mut through) = (cluster.direct(0)?, weir.client()?);
    for (name, sent) in binary() {
        let (wanted, got) = (direct.talk(&sent)?, through.talk(&sent)?);
        assert_eq!(got, wanted, "{name}");
    }
    // Out of one table in binary, into another one.
    cluster.setup(
        "CREATE TABLE a AS SELECT g, g::numeric / 7 AS n, NULL::text AS t, now() AS at, ARRAY[g] AS l, ''::bytea AS b \
         FROM generate_series(1, 5000) g; CREATE TABLE b (LIKE a); GRANT ALL ON a, b TO bench",
    )?;
    let out = through.talk(&msgs().Q("COPY a TO STDOUT (FORMAT binary)"))?;
    let data: Vec<&[u8]> = out
        .0
        .iter()
        .filter_map(|reply| if let harness::Reply::CopyData(data) = reply { Some(&data[..]) } else { None })
        .collect();
    let rows =
        data.into_iter().fold(msgs().PBE("COPY b FROM STDIN (FORMAT binary)"), |sent, piece| sent.d(piece));
    assert_eq!(through.talk(&rows.c().S())?.to_string(), "1 2 G C(COPY 5000) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM (TABLE a EXCEPT TABLE b) d")?, "0");
    Ok(())
}

/// Large objects: by functions, by the function-call message (psql), and over several reads of one descriptor.
#[test]
fn cp_05_large_objects() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    let mut client = slow(&weir)?;
    let id = client.scalar("SELECT lo_from_bytea(0, convert_to(repeat('large object ', 100000), 'UTF8'))")?;
    assert_eq!(client.scalar(&format!("SELECT length(lo_get({id}))"))?, "1300000");
    client.simple("BEGIN")?;
    let fd = client.scalar(&format!("SELECT lo_open({id}, 393216)"))?;
    for n in 0..20 {
        client.simple(&format!("SELECT lo_lseek64({fd}, {}, 0)", n * 13))?;
        assert_eq!(
            client.scalar(&format!("SELECT convert_from(loread({fd}, 13), 'UTF8')"))?,
            "large object "
        );
    }
    client.simple(&format!("SELECT lowrite({fd}, 'LARGE')"))?;
    client.simple("COMMIT")?;
    assert_eq!(client.scalar(&format!("SELECT convert_from(lo_get({id}, 260, 5), 'UTF8')"))?, "LARGE");
    let (place, back) = (cluster.root().join("in"), cluster.root().join("out"));
    let content: Vec<u8> =
        (0..3_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(&place, &content)?;
    let import = format!("\\lo_import {}", place.display());
    let export = format!("\\lo_export :LASTOID {}", back.display());
    let out = tools::psql(
        &cluster,
        weir.port(),
        "bench",
        &["-c", &import, "-c", &export, "-c", "\\lo_unlink :LASTOID"],
    )?;
    ensure!(out.code == 0, "{} {}", out.stdout, out.stderr);
    ensure!(std::fs::read(&back)? == content, "another content");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM pg_largeobject_metadata")?, "1");
    Ok(())
}

/// A client that vanishes in the middle of sending 64 MB leaves nothing, neither here nor there.
#[test]
fn cp_04_a_death_in_the_middle_of_something_large() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 1")?;
    let fds = {
        slow(&weir)?.simple("SELECT 1")?;
        weir.open_fds()?
    };
    let value = "x".repeat(8 * MB);
    for sent in [
        msgs().Q(&format!("SELECT length('{value}')")),
        msgs().P("", "SELECT length($1)").B("", "", &[&value]),
        msgs().P("s", &format!("SELECT length('{value}')")),
    ] {
        let mut client = slow(&weir)?;
        let bytes = sent.bytes();
        client.send_bytes(&bytes[..bytes.len() - 1000])?;
        client.reset()?;
        assert_eq!(slow(&weir)?.scalar("SELECT 'next'")?, "next");
    }
    ensure!(eventually(3 * SECOND, || weir.open_fds().is_ok_and(|now| now <= fds + 2)), "descriptors leak");
    Ok(())
}
