//! Rows in both formats, against what PostgreSQL's output and send functions write.

use super::*;

fn row(column: Column, cell: Cell, format: Format) -> Result<Vec<u8>, TableError> {
    let mut out = BytesMut::new();
    data_row(&mut out, &[column], &[cell], &Formats::All(format))?;
    assert_eq!((out[0], &out[5..7]), (b'D', &[0, 1][..]));
    assert_eq!(u32::from_be_bytes(out[1..5].try_into().unwrap()) as usize, out.len() - 1);
    Ok(out[7..].to_vec())
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

#[test]
fn every_type_in_both_formats() {
    let cases: &[(u32, Cell, &[u8], &[u8])] = &[
        (oid::TEXT, "é".into(), "é".as_bytes(), "é".as_bytes()),
        (oid::TEXT, Cell::Int(5), b"5", b"5"),
        (oid::TEXT, Cell::Bool(true), b"t", b"t"),
        (oid::INT4, Cell::Int(-2), b"-2", &[0xff, 0xff, 0xff, 0xfe]),
        (oid::INT4, "7".into(), b"7", &[0, 0, 0, 7]),
        (oid::INT8, Cell::Int(1 << 40), b"1099511627776", &[0, 0, 1, 0, 0, 0, 0, 0]),
        (oid::FLOAT8, Cell::Float(0.5), b"0.5", &0.5f64.to_be_bytes()),
        (oid::FLOAT8, Cell::Float(f64::NAN), b"NaN", &f64::NAN.to_be_bytes()),
        (oid::FLOAT8, Cell::Int(2), b"2", &2f64.to_be_bytes()),
        (oid::BOOL, Cell::Bool(false), b"f", &[0]),
        (oid::NUMERIC, Cell::Float(0.5), b"0.5", &[0, 1, 0xff, 0xff, 0, 0, 0, 1, 0x13, 0x88]),
        (
            oid::TIMESTAMPTZ,
            Cell::Int(946_684_800_000_001),
            b"2000-01-01 00:00:00.000001+00",
            &1i64.to_be_bytes(),
        ),
    ];
    for (oid, cell, text, binary) in cases {
        let column = || Column::new("c", *oid);
        assert_eq!(row(column(), cell.clone(), Format::Text).unwrap(), sized(text), "{oid} {cell:?}");
        assert_eq!(row(column(), cell.clone(), Format::Binary).unwrap(), sized(binary), "{oid} {cell:?}");
        assert_eq!(row(column(), Cell::Null, Format::Binary).unwrap(), [0xff; 4]);
    }
}

#[test]
fn a_value_that_does_not_fit_is_an_error_and_writes_nothing() {
    let cases = [
        (oid::INT4, Cell::Int(1 << 40)),
        (oid::INT8, Cell::Float(1.5)),
        (oid::INT8, "x".into()),
        (oid::BOOL, Cell::Int(1)),
        (oid::NUMERIC, Cell::Float(f64::INFINITY)),
        (oid::TIMESTAMPTZ, "yesterday".into()),
        (oid::FLOAT8, Cell::Bool(true)),
    ];
    for (oid, cell) in cases {
        let error = row(Column::new("c", oid), cell.clone(), Format::Binary).unwrap_err();
        assert!(matches!(error, TableError::Cell { .. }), "{oid} {cell:?}");
        assert_eq!(error.to_client().code, SqlState::INTERNAL_ERROR);
    }
    let mut out = BytesMut::from(&b"x"[..]);
    let short = data_row(&mut out, &[Column::text("a"), Column::text("b")], &[Cell::Null], &Formats::Text);
    assert_eq!(short, Err(TableError::Width { cells: 1, columns: 2 }));
    assert_eq!(&out[..], b"x");
}

#[test]
fn the_description_says_type_size_and_format() {
    let mut out = BytesMut::new();
    let formats = Formats::Each(vec![Format::Text, Format::Binary]);
    row_description(&mut out, &[Column::text("a"), Column::int4("b")], &formats).unwrap();
    let expected = b"T\0\0\0\x2e\0\x02a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0\
        b\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x01";
    assert_eq!(&out[..], expected);
}
