//! One value in the text or binary format of its column's type.

use bytes::{BufMut, BytesMut};

use crate::table::{Cell, Column, Format, TableError, numeric, oid, timestamp};
use crate::write::sized;

/// Appends the length and the value, or -1 for null.
pub(super) fn put(
    body: &mut BytesMut,
    column: &Column,
    value: &Cell,
    format: Format,
) -> Result<(), TableError> {
    if *value == Cell::Null {
        body.put_i32(-1);
        return Ok(());
    }
    let bytes = match format {
        Format::Text => text(column.oid, value).map(String::into_bytes),
        Format::Binary => binary(column.oid, value),
    };
    let bytes = bytes.ok_or_else(|| TableError::Cell {
        column: column.name.to_string(),
        oid: column.oid,
        value: format!("{value:?}"),
    })?;
    Ok(sized(body, &bytes)?)
}

/// The value as PostgreSQL's output function of that type writes it; `None` when it does not fit.
fn text(oid: u32, value: &Cell) -> Option<String> {
    Some(match (oid, value) {
        (_, Cell::Null) => return None,
        (_, Cell::Text(text)) => text.clone(),
        (oid::TIMESTAMPTZ, Cell::Int(micros)) => timestamp::format(*micros),
        (oid::BOOL | oid::TIMESTAMPTZ, Cell::Int(_) | Cell::Float(_)) => return None,
        (oid::INT4, Cell::Int(number)) => i32::try_from(*number).ok()?.to_string(),
        (_, Cell::Int(number)) => number.to_string(),
        (oid::INT4 | oid::INT8, Cell::Float(_)) => return None,
        (oid::NUMERIC, Cell::Float(number)) if !number.is_finite() => return None,
        (_, Cell::Float(number)) => float(*number),
        (oid::TEXT | oid::BOOL, Cell::Bool(truth)) => if *truth { "t" } else { "f" }.to_owned(),
        (_, Cell::Bool(_)) => return None,
    })
}

/// PostgreSQL's words for what is not a number; the shortest exact digits for the rest.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    match number.is_infinite() {
        true if number > 0.0 => "Infinity".to_owned(),
        true => "-Infinity".to_owned(),
        false => number.to_string(),
    }
}

/// The value as the type's send function writes it; `None` when it does not fit.
fn binary(oid: u32, value: &Cell) -> Option<Vec<u8>> {
    match oid {
        oid::BOOL => boolean(value).map(|truth| vec![u8::from(truth)]),
        oid::INT4 => int(value).and_then(|n| i32::try_from(n).ok()).map(|n| n.to_be_bytes().to_vec()),
        oid::INT8 => int(value).map(|number| number.to_be_bytes().to_vec()),
        oid::FLOAT8 => real(value).map(|number| number.to_be_bytes().to_vec()),
        oid::NUMERIC => numeric::encode(&text(oid, value)?),
        oid::TIMESTAMPTZ => instant(value).and_then(timestamp::encode).map(|n| n.to_be_bytes().to_vec()),
        _ => text(oid, value).map(String::into_bytes),
    }
}

fn boolean(value: &Cell) -> Option<bool> {
    match value {
        Cell::Bool(truth) => Some(*truth),
        Cell::Text(text) if text == "t" => Some(true),
        Cell::Text(text) if text == "f" => Some(false),
        _ => None,
    }
}

fn int(value: &Cell) -> Option<i64> {
    match value {
        Cell::Int(number) => Some(*number),
        Cell::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn real(value: &Cell) -> Option<f64> {
    match value {
        Cell::Float(number) => Some(*number),
        // Via text: the nearest double, without a cast that hides the loss.
        Cell::Int(number) => number.to_string().parse().ok(),
        Cell::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn instant(value: &Cell) -> Option<i64> {
    match value {
        Cell::Int(micros) => Some(*micros),
        Cell::Text(text) => timestamp::parse(text),
        _ => None,
    }
}
