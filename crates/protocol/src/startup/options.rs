//! The `options` parameter: command-line switches for a server process.
//!
//! Words are split as PostgreSQL's `pg_split_opts` does; of the switches only those that are settings
//! are taken (`-c name=value`, `--name=value`), as in `process_postgres_switches`.

use super::StartupError;

/// Name and value of a setting.
pub type Setting = (Vec<u8>, Vec<u8>);

/// The settings in an options string, in order.
pub(super) fn parse(options: &[u8]) -> Result<Vec<Setting>, StartupError> {
    let mut settings = Vec::new();
    let mut words = split(options).into_iter();
    while let Some(word) = words.next() {
        let text = match word.as_slice() {
            [b'-', b'-', rest @ ..] if !rest.is_empty() => setting(rest, "--")?,
            [b'-', b'c'] => match words.next() {
                Some(next) => setting(&next, "-c ")?,
                None => return Err(StartupError::Option(lossy(&word))),
            },
            [b'-', b'c', rest @ ..] => setting(rest, "-c ")?,
            _ => return Err(StartupError::Option(lossy(&word))),
        };
        settings.push(text);
    }
    Ok(settings)
}

/// `name=value`; dashes in the name stand for underscores.
fn setting(text: &[u8], switch: &str) -> Result<Setting, StartupError> {
    let at = text.iter().position(|&byte| byte == b'=');
    let split = at.filter(|at| *at > 0).and_then(|at| text.split_at_checked(at));
    let Some((name, value)) = split else {
        return Err(StartupError::OptionValue(format!("{switch}{}", lossy(text))));
    };
    let name = name.iter().map(|&byte| if byte == b'-' { b'_' } else { byte }).collect();
    Ok((name, value.get(1..).unwrap_or_default().to_vec()))
}

/// Words between blanks; a backslash makes the next byte literal.
fn split(options: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = options.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => words.extend(word.take()),
            b'\\' => word.get_or_insert_default().extend(bytes.next()),
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
