//! What a catalog adds to the built-in functions, and that cached verdicts do not outlive it.

use router::{Access, Classifier, FunctionCatalog, ParseOptions, Reason, Safety, classify_with};

/// Knows `stable_one`, `s.writer` and the operator `<#>`, until `generation` moves on.
struct Known {
    generation: u64,
}

impl FunctionCatalog for Known {
    fn function(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        match (schema, name) {
            (None | Some("public"), "stable_one") if self.generation == 1 => Some(Safety::AnyNode),
            (Some("s"), "writer") => Some(Safety::PrimaryOnly),
            _ => None,
        }
    }

    fn operator(&self, _: Option<&str>, name: &str) -> Option<Safety> {
        (name == "<#>").then_some(Safety::AnyNode)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

#[test]
fn the_catalog_is_asked() {
    let verdict = |sql: &str| {
        let verdict = classify_with(sql.as_bytes(), &ParseOptions::default(), &Known { generation: 1 });
        (verdict.access, verdict.reason)
    };
    let read = (Access::Read, Reason::ReadOnlySelect);
    assert_eq!(verdict("SELECT STABLE_one(1), a <#> b FROM t"), read);
    assert_eq!(verdict("SELECT * FROM public.stable_one(1) AS x(a)"), read);
    assert_eq!(verdict("SELECT s.writer()"), (Access::Write, Reason::VolatileFunction));
    for unknown in
        ["SELECT \"STABLE_one\"(1)", "SELECT other(1)", "SELECT s.stable_one(1)", "SELECT a <##> b"]
    {
        assert_eq!(verdict(unknown), (Access::Write, Reason::UnknownFunction), "{unknown}");
    }
}

#[test]
fn cached_verdicts_end_with_their_catalog() {
    let mut classifier = Classifier::new(1 << 20);
    let mut access = |generation| {
        let sql = b"SELECT stable_one(1)";
        classifier.classify_with(sql, &ParseOptions::default(), &Known { generation }).access
    };
    assert_eq!((access(1), access(1)), (Access::Read, Access::Read));
    assert_eq!((access(2), access(2)), (Access::Write, Access::Write));
    assert_eq!((classifier.hits(), classifier.misses()), (2, 2));
}
