//! What is written from the tables: the sample file and the reference. Tests hold the files in the repository
//! to this; `cargo run -p pgweir-config --example regenerate` writes them.

use std::fmt::Write as _;

use crate::key::{Key, Status};
use crate::sections::{BACKEND_KEYS, DATABASE_KEYS, USER_KEYS};
use crate::table::KEYS;
use crate::units::{SIZE_UNITS, TIME_UNITS};

/// The sample's text is wrapped at this column.
const WIDTH: usize = 100;

const SAMPLE_HEAD: &str = "\
# pgweir.yaml: every key with its default.
#
# A line that begins with # and a key is that key's default: take the # away and change it. Every other key
# is refused, with file, line and what was expected. `pgweir check FILE` validates, `pgweir reload -f FILE`
# or SIGHUP applies what is marked (reload); what is marked (restart) waits for the next start.
#
# Units: us, ms, s, min, h, d for durations, B, kB, MB, GB, TB for sizes, as in `10s` or `64kB`; a bare number
# is in the unit that is given with the key. Further files: `include: other.yaml`, or a list of them, relative
# to this file; a key may be set only once in all of them.
";

const SAMPLE_BACKENDS: &str = "\
backends:
  - { hostname: localhost, port: 5432, weight: 1 }
#  - { hostname: db1, port: 5432, weight: 1, flag: ALLOW_TO_FAILOVER, application_name: db1 }
";

const REFERENCE_HEAD: &str = "\
# Configuration

<!-- Made from the table of keys: cargo run -p pgweir-config --example regenerate -->

`pgweir.yaml` is one YAML mapping; etc/pgweir.yaml shows every key with its default. A configuration is taken
whole or refused whole: an unknown key, a key that is set twice, a wrong type, a value out of range or settings
that do not go together are errors, told as `file:line: key: found ..., expected ...`. `pgweir check FILE` tells
them without starting anything.

- **Change**: `reload` takes effect with SIGHUP, `pgweir reload` or `RELOAD`; `restart` with the next start. A
  reload that changes a `restart` key names it, keeps its old value and applies the rest.
- **Status**: `active` is obeyed. `reserved` is validated, but has no effect in this version; a value other than
  the default gets a warning. `not supported` takes nothing but the default, as ignoring it would be unsafe.
- **Durations** have a unit, `us`, `ms`, `s`, `min`, `h` or `d`, and sizes `B`, `kB`, `MB`, `GB` or `TB` (1024
  each), in PostgreSQL's spelling: `500ms`, `1.5h`, `16MB`. A bare number is in the unit that the row names.
- **On or off** is `on`, `yes`, `true`, `off`, `no` or `false`. A list of one text may be that text. What YAML
  takes for a number goes in quotes where text is expected: `sr_check_password: \"1234\"`.
- **`include: other.yaml`**, or a list of files, reads further files, relative to the file that names them. Each
  key may be set once in all of them.
- **Paths** are relative to the directory of the configuration file. Socket directories begin at the root, or
  with `@` for an abstract socket.
- Secrets are shown nowhere: not in `SHOW CONFIG`, errors or logs.
";

const REFERENCE_FOOT: &str = "\
## Which entry of `databases` and `users` holds

The more specific one, and of two equally specific ones the user's: the user's own entry, the database's own
entry, `users: {\"*\": ...}`, `databases: {\"*\": ...}`, the general key. `pgweir` and `pgbouncer` are the names of the
admin database and cannot be entries.

## pool_hba.conf

The grammar of pg_hba.conf: `local`, `host`, `hostssl`, `hostnossl`, `hostgssenc` (which matches nobody) and
`hostnogssenc`; databases and users as comma lists of names, `all`, `sameuser`, `samerole`, `replication`, `+group`,
`@file` (beside the rules) and `/regular expressions` (the syntax of Rust's regex crate); quotes make a keyword a
name; addresses as `all`, `samehost`, `samenet`, `10.0.0.0/8` or address and mask. Methods: `trust`, `reject`,
`password`, `md5`, `scram-sha-256` (with channel binding over TLS), `cert`, `peer` and `ldap` with PostgreSQL's
options; `clientcert=verify-ca|verify-full` and `clientname=CN|DN` on `hostssl` lines. The first line that matches
decides, no line is a refusal. Memberships (`+group`, `samerole`) are asked of a node as `sr_check_user` and remembered
for `auth_query_cache_period`. What this version cannot evaluate is refused at its line: other methods and options, host
names, `include`. etc/pool_hba.conf.sample is a start.

`map=NAME` of `cert` and `peer` is a map of `pool_ident_file`, whose lines are those of pg_ident.conf: map, outside name
(or `/regex` with a group for `\\1`), user (or `all`, `+group`, `/regex`). Without a map the two names must be equal.

## pool_passwd

Lines `user:secret`; a user with a colon in its name goes in double quotes, `\"a:b\":secret`, a quote in it is
doubled. The secret is `TEXT` and the password, `md5` and 32 hexadecimal digits, the verifier `SCRAM-SHA-256$...` that
PostgreSQL keeps in `pg_authid`, or `AES` and the password encrypted with the key in `pool_key_file` (Pgpool-II's
format). `pgweir passwd USER`
makes a line. Nobody else should be able to read the file.
";

/// The content of etc/pgweir.yaml: every key with its default, unit and meaning, as comments, and one node.
#[must_use]
pub fn sample() -> String {
    let mut text = SAMPLE_HEAD.to_owned();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            let rule = "-".repeat(WIDTH.saturating_sub(section.len() + 8));
            text.push_str(&format!("\n# ---- {section} {rule}\n"));
        }
        text.push('\n');
        let about = format!("{} ({}; {}{})", key.description(), kind(key), key.effect.as_str(), status(key));
        wrap(&mut text, "# ", &about);
        if key.name == "backends" {
            nested(&mut text, BACKEND_KEYS);
            text.push_str(SAMPLE_BACKENDS);
            continue;
        }
        match key.name {
            "databases" => nested(&mut text, DATABASE_KEYS),
            "users" => nested(&mut text, USER_KEYS),
            _ => {}
        }
        text.push_str(&format!("#{}: {}\n", key.name, key.default));
    }
    text
}

fn status<C>(key: &Key<C>) -> &'static str {
    match key.status {
        Status::Active => "",
        Status::Reserved => "; no effect in this version",
        Status::Unsupported => "; not supported by this version",
    }
}

/// The keys of a mapping, as comments.
fn nested<C>(text: &mut String, keys: &[Key<C>]) {
    for key in keys {
        let default =
            if key.is_required() { "required".to_owned() } else { format!("default {}", key.default) };
        let about = format!("{}: {} ({}; {default}{})", key.name, key.description(), kind(key), status(key));
        wrap(text, "#   ", &about);
    }
}

/// What values a key takes; the units are told once for all, at the top.
fn kind<C>(key: &Key<C>) -> String {
    key.kind().replace(TIME_UNITS, "").replace(SIZE_UNITS, "")
}

/// As comment lines of at most [`WIDTH`] characters; those that follow the first of an
/// indented text are indented further.
fn wrap(text: &mut String, prefix: &str, about: &str) {
    let mut line = prefix.trim_end().to_owned();
    let mut lead = prefix.len() - line.len();
    for word in about.split_whitespace() {
        if line.chars().count() + lead + word.chars().count() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = "#".to_owned();
            lead = prefix.len() - 1 + if prefix.len() > 2 { 2 } else { 0 };
        }
        line.push_str(&" ".repeat(lead));
        line.push_str(word);
        lead = 1;
    }
    text.push_str(&line);
    text.push('\n');
}

/// The content of docs/configuration.md: every key of every table, and the two line-oriented files.
#[must_use]
pub fn reference() -> String {
    let mut text = REFERENCE_HEAD.to_owned();
    rows(&mut text, KEYS);
    rows(&mut text, BACKEND_KEYS);
    rows(&mut text, DATABASE_KEYS);
    rows(&mut text, USER_KEYS);
    text.push('\n');
    text.push_str(REFERENCE_FOOT);
    text
}

/// A table for each section. Writing to a `String` cannot fail.
fn rows<C>(text: &mut String, keys: &[Key<C>]) {
    let mut section = "";
    for key in keys {
        if key.section != section {
            section = key.section;
            let _ = write!(
                text,
                "\n## {section}\n\n| Key | Default | Values | Change | Status | |\n|---|---|---|---|---|---|\n"
            );
        }
        let default = match key.default {
            "" => "required".to_owned(),
            "null" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        let _ = writeln!(
            text,
            "| `{}` | {default} | {} | {} | {} | {} |",
            key.name,
            kind(key).replace('|', "\\|"),
            key.effect.as_str(),
            key.status.as_str(),
            key.description().replace('|', "\\|"),
        );
    }
}
