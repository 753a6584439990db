//! A Rust source as the checks see it: with comments and literals blanked, and with test code blanked on top.
//!
//! Blanking keeps every line where it was, so that a position in one text is a position in the others.

/// One file.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the top of the repository.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
    /// Without comments and the insides of literals.
    pub(crate) code: String,
    /// The same without what is compiled for tests only; empty when the whole file is.
    pub(crate) product: String,
}

impl Source {
    /// A file on its own.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = blank_literals(text);
        let product = blank_tests(&code).0;
        Self { path: path.to_owned(), text: text.to_owned(), code, product }
    }

    /// All files together: one that another declares with `#[cfg(test)] mod name;` is test code as a whole, and so
    /// are a crate's examples and integration tests.
    pub(crate) fn all(files: Vec<(String, String)>) -> Vec<Self> {
        let mut sources: Vec<Self> = files.iter().map(|(path, text)| Self::new(path, text)).collect();
        let test_files: Vec<String> = sources.iter().flat_map(test_modules).collect();
        for source in &mut sources {
            let beside = ["examples", "tests", "benches"]
                .iter()
                .any(|name| source.path.split('/').nth(2) == Some(name));
            if beside || test_files.iter().any(|prefix| within(&source.path, prefix)) {
                source.product.clear();
            }
        }
        sources
    }

    /// The crate it belongs to: the name of its directory below `crates/`.
    pub(crate) fn krate(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            first => first.unwrap_or(""),
        }
    }

    /// 1-based line of a byte position.
    pub(crate) fn line(&self, position: usize) -> usize {
        self.code.as_bytes().iter().take(position).filter(|&&byte| byte == b'\n').count() + 1
    }
}

/// `crates/x/src/name` for a module that a file declares for tests: the file `.rs`, and the directory.
fn test_modules(source: &Source) -> Vec<String> {
    let base = source.path.trim_end_matches(".rs");
    let directory = match base.rsplit_once('/') {
        Some((parent, "lib" | "main" | "mod")) => parent,
        _ => base,
    };
    blank_tests(&source.code).1.into_iter().map(|name| format!("{directory}/{name}")).collect()
}

fn within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// What the scanner is inside of.
enum Inside {
    Code,
    LineComment,
    BlockComment(usize),
    Text { hashes: Option<usize> },
}

/// Replaces comments and the insides of string and character literals by blanks.
fn blank_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut inside = Inside::Code;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (length, kept, next) = match &inside {
            Inside::Code => in_code(rest, out.last().copied()),
            Inside::LineComment if rest[0] == b'\n' => (1, true, Some(Inside::Code)),
            Inside::LineComment => (1, false, None),
            Inside::BlockComment(depth) => in_comment(rest, *depth),
            Inside::Text { hashes } => in_text(rest, *hashes),
        };
        for &byte in &rest[..length.min(rest.len())] {
            out.push(if kept || byte == b'\n' { byte } else { b' ' });
        }
        at += length;
        inside = next.unwrap_or(inside);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// One step: how many bytes, whether they stay, what comes next.
type Step = (usize, bool, Option<Inside>);

fn in_code(rest: &[u8], before: Option<u8>) -> Step {
    let inside_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if rest.starts_with(b"//") {
        return (2, false, Some(Inside::LineComment));
    }
    if rest.starts_with(b"/*") {
        return (2, false, Some(Inside::BlockComment(1)));
    }
    if let Some((length, hashes)) = raw_string(rest).filter(|_| !inside_word) {
        return (length, true, Some(Inside::Text { hashes: Some(hashes) }));
    }
    match rest[0] {
        b'"' => (1, true, Some(Inside::Text { hashes: None })),
        b'\'' => (character(rest).unwrap_or(1), character(rest).is_none(), None),
        _ => (1, true, None),
    }
}

/// `r"`, `r#"`, `br##"`: the length of the opening and the number of hashes.
fn raw_string(rest: &[u8]) -> Option<(usize, usize)> {
    let prefix = [&b"br"[..], b"cr", b"r"].into_iter().find(|prefix| rest.starts_with(prefix))?.len();
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(prefix + hashes) == Some(&b'"')).then_some((prefix + hashes + 1, hashes))
}

/// The length of a character literal; none when the quote begins a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(&rest[..rest.len().min(16)]).unwrap_or_else(|error| {
        std::str::from_utf8(&rest[..error.valid_up_to()]).expect("valid up to there")
    });
    let mut chars = text.char_indices().skip(1);
    match chars.next()? {
        (_, '\\') => {
            let (escaped, _) = chars.next()?;
            text.get(escaped + 1..)?.find('\'').map(|end| escaped + 1 + end + 1)
        }
        _ => chars.next().filter(|&(_, c)| c == '\'').map(|(end, _)| end + 1),
    }
}

fn in_comment(rest: &[u8], depth: usize) -> Step {
    match rest {
        [b'*', b'/', ..] if depth == 1 => (2, false, Some(Inside::Code)),
        [b'*', b'/', ..] => (2, false, Some(Inside::BlockComment(depth - 1))),
        [b'/', b'*', ..] => (2, false, Some(Inside::BlockComment(depth + 1))),
        _ => (1, false, None),
    }
}

fn in_text(rest: &[u8], hashes: Option<usize>) -> Step {
    let count = hashes.unwrap_or(0);
    if hashes.is_none() && rest[0] == b'\\' {
        return (2, false, None);
    }
    let closes = rest[0] == b'"' && rest.len() > count && rest[1..=count].iter().all(|&byte| byte == b'#');
    if closes { (count + 1, true, Some(Inside::Code)) } else { (1, false, None) }
}

/// Blanks the items under `#[cfg(test)]`; also returns the names of modules declared that way without a body.
fn blank_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let (mut out, mut modules, mut from) = (code.to_owned(), Vec::new(), 0);
    while let Some(start) = out.get(from..).and_then(|rest| rest.find(MARK)).map(|found| from + found) {
        let end = item_end(&out, start + MARK.len());
        let item = &out[start..end];
        if let Some(name) = item.trim_end_matches(';').rsplit_once("mod ").filter(|_| item.ends_with(';')) {
            modules.push(name.1.trim().to_owned());
        }
        let blank: String = item.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        from = start + blank.len();
        out = format!("{}{blank}{}", &out[..start], &out[end..]);
    }
    (out, modules)
}

/// Where the item that begins at `from` ends: after its `;`, or after its braces.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return closing(code, offset).map_or(code.len(), |end| end + 1),
            b';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    code.len()
}

/// The position of the brace that closes the one at `open`.
pub(crate) fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return Some(offset);
        }
    }
    None
}

/// Where a path or word stands as a whole: not as a part of a longer identifier.
pub(crate) fn occurrences<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|before| code.as_bytes().get(before)).copied();
        let after = code.as_bytes().get(at + word.len()).copied();
        let last = word.bytes().last();
        let joined = is_word(word.bytes().next()) && is_word(before) || is_word(last) && is_word(after);
        !joined
    })
}

/// Every path that the `use` items name, groups written out: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
pub(crate) fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in occurrences(code, "use") {
        let Some(end) = code[at..].find(';').map(|end| at + end) else { continue };
        let mut paths = Vec::new();
        expand("", code[at + 3..end].trim(), &mut paths);
        found.extend(paths.into_iter().map(|path| (at, path)));
    }
    found
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some(open) = tree.find('{') else {
        let plain = tree.split(" as ").next().unwrap_or(tree).trim();
        paths.push(format!("{prefix}{plain}"));
        return;
    };
    let prefix = format!("{prefix}{}", tree[..open].trim());
    let end = closing(tree, open).unwrap_or(tree.len());
    let (mut depth, mut from) = (0_usize, open + 1);
    for (at, byte) in tree.bytes().enumerate().take(end).skip(open + 1) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                expand(&prefix, tree[from..at].trim(), paths);
                from = at + 1;
            }
            _ => {}
        }
    }
    let last = tree[from..end].trim();
    if !last.is_empty() {
        expand(&prefix, last, paths);
    }
}

#[test]
fn comments_and_literals_are_blanked_and_lines_stay() {
    let text = "let a = \"x // y\"; // z\nlet b = r#\"q\" w\"#; /* m /* n */ o */ let c = '\\''; let d: &'static str;\nlet e = '\"';";
    let code = Source::new("x.rs", text).code;
    assert_eq!(code.lines().count(), text.lines().count());
    for gone in ["y", "z", "q", "w\"", "m", "n ", "o */"] {
        assert!(!code.contains(gone), "{gone} is still in {code}");
    }
    for kept in ["let a", "let b", "let c", "'static str", "let e"] {
        assert!(code.contains(kept), "{kept} is not in {code}");
    }
}

#[test]
fn test_code_is_blanked_and_test_files_are_known() {
    let lib = "fn real() {}\n#[cfg(test)]\nmod scripts;\n#[cfg(test)]\nmod tests {\n    fn gone() { if true {} }\n}\nfn after() {}\n";
    let files = vec![
        ("crates/x/src/lib.rs".to_owned(), lib.to_owned()),
        ("crates/x/src/scripts.rs".to_owned(), "fn script() {}".to_owned()),
        ("crates/x/src/scripted.rs".to_owned(), "fn real_too() {}".to_owned()),
        ("crates/x/examples/shown.rs".to_owned(), "fn main() {}".to_owned()),
    ];
    let sources = Source::all(files);
    assert!(sources[0].product.contains("real") && sources[0].product.contains("after"));
    assert!(!sources[0].product.contains("gone"), "{}", sources[0].product);
    assert_eq!(sources[1].product, "");
    assert!(sources[2].product.contains("real_too"));
    assert_eq!(sources[3].product, "");
}

#[test]
fn imports_are_written_out() {
    let code = "use std::{fs, io::{self, Read as _}};\nuse a::b as c;\n";
    let paths: Vec<String> = imports(code).into_iter().map(|(_, path)| path).collect();
    assert_eq!(paths, ["std::fs", "std::io::self", "std::io::Read", "a::b"]);
}

#[test]
fn words_are_whole() {
    assert_eq!(occurrences("rand::x brand::y rand_core strand", "rand::").count(), 1);
    assert_eq!(occurrences("static STATIC statics static", "static").count(), 2);
}
