//! How the value of a foreign setting becomes one of ours.

use super::draft::{Draft, Place, list, text};

/// What becomes of a foreign setting: a row of a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// It is this key of ours.
    Key(&'static str, Form),
    /// There is no equivalent, and why, or what to do instead.
    Gone(&'static str),
    /// Read elsewhere, with its like.
    Elsewhere,
}

/// How a value is written there and here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// As it is; an empty one is as good as unset.
    Text,
    /// A path; a relative one is relative to the file's directory.
    Path,
    /// A number.
    Number,
    /// A number where 0 is "as the system has it".
    NumberUnlessZero,
    /// On or off, in any of the spellings.
    Flag,
    /// A time; a bare number is in this unit.
    Time(&'static str),
    /// The same, where 0 is "never", which is not to be had: why that does not matter.
    TimeUnlessZero(&'static str, &'static str),
    /// A size; a bare number is in bytes.
    Size,
    /// Permission bits.
    Octal,
    /// Texts with commas between.
    List,
    /// Texts with semicolons between; `\;` is one of them.
    Patterns,
    /// A password, or where it is to be found.
    Password,
    /// A word of theirs for a word of ours; a word that is not in the list stays.
    Words(&'static [(&'static str, &'static str)]),
}

/// A row: the foreign name, a `*` at its end for all that begin so, and what becomes of it.
pub(super) type Fates = &'static [(&'static str, Fate)];

/// What the table says of a setting.
pub(super) fn fate(table: Fates, name: &str) -> Option<Fate> {
    let fits = |row: &str| match row.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => row == name,
    };
    table.iter().find(|(row, _)| fits(row)).map(|(_, fate)| *fate)
}

/// Takes a setting over, or notes why not.
pub(super) fn take(draft: &mut Draft, table: Fates, name: &str, value: &str, place: &Place) {
    match fate(table, name) {
        Some(Fate::Key(key, form)) => match convert(form, &draft.anchored(form, value)) {
            Ok(Some(value)) => draft.set(key, value, name, place),
            Ok(None) => {}
            Err(why) => draft.note(place, name, why),
        },
        Some(Fate::Gone(why)) => draft.note(place, name, why),
        Some(Fate::Elsewhere) => {}
        None => draft.note(place, name, "not known to this import: see docs/configuration.md"),
    }
}

/// The value as YAML; none where it is as good as unset.
///
/// # Errors
/// Why it cannot be taken over.
pub(super) fn convert(form: Form, value: &str) -> Result<Option<String>, &'static str> {
    let value = value.trim();
    if value.is_empty() {
        return Ok(None);
    }
    Ok(Some(match form {
        Form::Text | Form::Path => text(value),
        Form::Number => plain(value),
        Form::NumberUnlessZero if is_zero(value) => return Ok(None),
        Form::NumberUnlessZero => plain(value),
        Form::Flag => flag(value).map_or_else(|| text(value), str::to_owned),
        Form::TimeUnlessZero(_, why) if is_zero(value) => return Err(why),
        Form::Time(unit) | Form::TimeUnlessZero(unit, _) => time(value, unit),
        Form::Size => plain(value),
        Form::Octal => octal(value),
        Form::List => list(value.split(',').map(str::trim).filter(|item| !item.is_empty())),
        Form::Patterns => patterns(value),
        Form::Password => return password(value),
        Form::Words(words) => {
            let word = value.to_ascii_lowercase();
            let ours = words.iter().find(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours);
            text(ours.unwrap_or(value))
        }
    }))
}

fn is_zero(value: &str) -> bool {
    value.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim().parse() == Ok(0.0)
}

/// As it is where YAML takes it for the same; the validation says what it thinks of anything else.
fn plain(value: &str) -> String {
    let harmless = value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    if harmless && !value.starts_with('-') { value.to_owned() } else { text(value) }
}

fn flag(value: &str) -> Option<&'static str> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "yes" | "true" | "1" | "t" | "y" => Some("on"),
        "off" | "no" | "false" | "0" | "f" | "n" => Some("off"),
        _ => None,
    }
}

fn time(value: &str, unit: &str) -> String {
    if is_zero(value) {
        return "0".to_owned();
    }
    // Both write `5 min` as well, and PostgreSQL's units are ours.
    let value: String = value.split_whitespace().collect();
    let bare = value.chars().all(|c| c.is_ascii_digit() || c == '.');
    plain(&if bare { format!("{value}{unit}") } else { value })
}

fn octal(value: &str) -> String {
    let digits = value.trim_start_matches('0');
    plain(&format!("0{digits}"))
}

fn patterns(value: &str) -> String {
    let (mut items, mut item, mut escaped) = (Vec::new(), String::new(), false);
    for c in value.chars() {
        match c {
            ';' if escaped => {
                item.pop();
                item.push(c);
            }
            ';' => items.push(std::mem::take(&mut item)),
            _ => item.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    items.push(item);
    list(items.iter().map(|item| item.trim()).filter(|item| !item.is_empty()))
}

fn password(value: &str) -> Result<Option<String>, &'static str> {
    if let Some(plain) = value.strip_prefix("TEXT") {
        return Ok(Some(text(plain)));
    }
    if value.starts_with("AES") {
        return Err("an encrypted password stands in pool_passwd only: put it there, and unset this");
    }
    Ok(Some(text(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_yaml() {
        let never = Form::TimeUnlessZero("s", "why");
        for (form, theirs, ours) in [
            (Form::Time("s"), "5min", "5min"),
            (Form::Time("s"), "5 min", "5min"),
            (Form::Time("ms"), "10000", "10000ms"),
            (Form::Time("s"), "0.5", "0.5s"),
            (Form::Time("s"), "0", "0"),
            (Form::Time("s"), "0s", "0"),
            (never, "7", "7s"),
            (Form::Flag, "TRUE", "on"),
            (Form::Flag, "0", "off"),
            (Form::Flag, "maybe", "\"maybe\""),
            (Form::Octal, "770", "0770"),
            (Form::Octal, "0770", "0770"),
            (Form::List, " a , b,", "[\"a\",\"b\"]"),
            (Form::Patterns, r"SELECT 1;a\;b;.*\d", r#"["SELECT 1","a;b",".*\\d"]"#),
            (Form::Text, "it's \"x\": #", r#""it's \"x\": #""#),
            (Form::Number, "-1", "\"-1\""),
            (Form::Number, "7 # x", "\"7 # x\""),
            (Form::Password, "TEXTsecret", "\"secret\""),
            (Form::Words(&[("a", "b")]), "A", "\"b\""),
        ] {
            assert_eq!(convert(form, theirs), Ok(Some(ours.to_owned())), "{theirs}");
        }
        assert_eq!(convert(never, "0"), Err("why"));
        assert_eq!(convert(Form::Text, ""), Ok(None));
        assert!(convert(Form::Password, "AESx").is_err());
    }
}
