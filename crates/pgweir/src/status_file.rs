//! The status file: what the next start should know. A hint: what cannot be read is ignored, and what the nodes say
//! themselves decides (`cluster::hint`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use cluster::Hint;
use serde_json::{Value, json};
use telemetry::{Published, Tasks, off_thread};

/// What is longer is no status file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the file; one that is not there, or cannot be understood, says nothing.
pub(crate) fn read(path: &Path) -> Hint {
    let text = match bounded(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Hint::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the status file cannot be read; it is ignored");
            return Hint::default();
        }
    };
    match parse(&text) {
        Some(hint) => {
            let (timeline, detached) = (hint.newest_timeline, hint.detached.len());
            tracing::info!(path = %path.display(), timeline, detached, "status file read, as a hint");
            hint
        }
        None => {
            tracing::warn!(path = %path.display(), "the status file makes no sense; it is ignored");
            Hint::default()
        }
    }
}

fn bounded(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    fs::read_to_string(path)
}

/// Writes the file whenever there is something new; the last state wins.
pub(crate) fn keep(tasks: &Tasks, path: PathBuf, hints: Published<Hint>) {
    tasks.spawn("status_file", async move {
        let mut changes = hints.changes();
        let mut trouble = None;
        while changes.changed().await.is_ok() {
            let (text, target) = (render(&hints.load()), path.clone());
            let written = off_thread("status_file", move || replace(&target, &text)).await;
            // A panic is logged already.
            let error = written.and_then(Result::err).map(|error| error.to_string());
            // Said once for each way it fails.
            if let Some(error) = error.as_ref().filter(|_| trouble != error) {
                tracing::warn!(path = %path.display(), error, "the status file cannot be written");
            }
            trouble = error;
        }
    });
}

/// A reader sees the old one or the new one, never half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

fn render(hint: &Hint) -> String {
    let detached: Vec<Value> =
        hint.detached.iter().map(|(host, port)| json!({ "hostname": **host, "port": port })).collect();
    let file = json!({
        // As text: JSON's numbers do not hold 64 bits everywhere.
        "system_identifier": hint.system_identifier.map(|id| id.to_string()),
        "newest_timeline": hint.newest_timeline,
        "detached": detached,
    });
    format!("{file:#}\n")
}

fn parse(text: &str) -> Option<Hint> {
    let file: Value = serde_json::from_str(text).ok()?;
    let fields = file.as_object()?;
    let system_identifier = match fields.get("system_identifier")? {
        Value::Null => None,
        other => Some(other.as_str()?.parse().ok()?),
    };
    let newest_timeline = match fields.get("newest_timeline")? {
        Value::Null => None,
        other => Some(u32::try_from(other.as_u64()?).ok()?),
    };
    let detached = fields.get("detached")?.as_array()?.iter().map(node).collect::<Option<_>>()?;
    Some(Hint { system_identifier, newest_timeline, detached })
}

fn node(value: &Value) -> Option<(Arc<str>, u16)> {
    let port = u16::try_from(value.get("port")?.as_u64()?).ok()?;
    Some((value.get("hostname")?.as_str()?.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let hint = Hint {
            system_identifier: Some(u64::MAX),
            newest_timeline: Some(7),
            detached: vec![("db1".into(), 5432), ("/run \"x\"".into(), 6000)],
        };
        assert_eq!(parse(&render(&hint)), Some(hint));
        assert_eq!(parse(&render(&Hint::default())), Some(Hint::default()));
    }

    #[test]
    fn nonsense_is_no_hint() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            "{}",
            r#"{"system_identifier": 7, "newest_timeline": null, "detached": []}"#,
            r#"{"system_identifier": "x", "newest_timeline": null, "detached": []}"#,
            r#"{"system_identifier": null, "newest_timeline": -1, "detached": []}"#,
            r#"{"system_identifier": null, "newest_timeline": null, "detached": [{"hostname": "a"}]}"#,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
