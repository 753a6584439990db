//! Small functions and small files.

use crate::none;
use crate::source::{Source, closing, occurrences};
use crate::tree::{everything, product};

/// Lines from `fn` to its closing brace.
const LONGEST_FUNCTION: usize = 70;
/// Lines of a file without its test code.
const LONGEST_FILE: usize = 500;

fn long_functions(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for at in occurrences(&source.product, "fn ") {
            let Some(length) = function_lines(&source.product, at) else { continue };
            if length > LONGEST_FUNCTION {
                let name = source.product[at + 3..].split(['(', '<']).next().unwrap_or("");
                found.push(format!("{}:{}: {name} has {length} lines", source.path, source.line(at)));
            }
        }
    }
    found
}

/// None for a declaration without a body.
fn function_lines(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' if depth == 0 => return None,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => {
                let end = closing(code, offset)?;
                return Some(code[at..end].matches('\n').count() + 1);
            }
            _ => {}
        }
    }
    None
}

fn long_files(sources: &[Source]) -> Vec<String> {
    let lines = |source: &Source| source.product.trim_end().lines().count();
    let long = sources.iter().filter(|source| lines(source) > LONGEST_FILE);
    long.map(|source| format!("{}: {} lines", source.path, lines(source))).collect()
}

#[test]
fn functions_are_short() {
    none(&long_functions(&everything()));
}

#[test]
fn files_are_short() {
    none(&long_files(&product()));
}

mod samples {
    use super::*;

    fn function(lines: usize) -> String {
        format!(
            "fn long<A: Iterator<Item = u8>, B>(a: [u8; 4]) -> u8\nwhere\n    A: Copy,\n{{\n{}}}\n",
            "    a();\n".repeat(lines)
        )
    }

    #[test]
    fn a_long_function_is_seen() {
        let complaints = |text: &str| long_functions(&[Source::new("crates/x/src/x.rs", text)]).len();
        assert_eq!(complaints(&function(70)), 1);
        assert_eq!(complaints(&function(60)), 0);
        assert_eq!(complaints(&format!("#[cfg(test)]\nmod tests {{\n{}\n}}", function(70))), 0);
        assert_eq!(
            complaints(&format!(
                "trait T {{ fn f(&self); }}\nstruct S {{ f: fn(u8), g: u8 }}\n{}",
                function(60)
            )),
            0
        );
    }

    #[test]
    fn a_long_file_is_seen() {
        let complaints = |text: &str| long_files(&[Source::new("crates/x/src/x.rs", text)]).len();
        assert_eq!(complaints(&"const A: u8 = 0;\n".repeat(501)), 1);
        assert_eq!(complaints(&"const A: u8 = 0;\n".repeat(500)), 0);
        let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn g() {}\n".repeat(600));
        assert_eq!(complaints(&tests), 0);
    }
}
