//! The corpus of statements (tests/corpus/statements.txt) against the classifier: the target and the reason of each,
//! and that the verdict cache says the same.

use router::{
    Builder, Catalog, Classifier, ListedFunctions, Loaded, Object, Origin, ParseOptions, Policy, Safety,
    Target, TxView, decide, unpin_followed,
};

const CORPUS: &str = include_str!("../../../tests/corpus/statements.txt");

#[derive(Debug)]
struct NoLists;

impl ListedFunctions for NoLists {
    fn listed(&self, _: Option<&str>, _: &str) -> Option<Safety> {
        None
    }
}

/// What tests/corpus.rs makes on a server.
fn catalog() -> Catalog {
    let mut builder = Builder::default();
    let nothing: &dyn Fn(&str, &str) -> Option<Safety> = &|_, _| None;
    for (oid, schema, name, volatile) in [
        (1, "public", "wr", true),
        (2, "s", "wr", true),
        (3, "public", "Wr", true),
        (4, "public", "wr_arg", true),
        (5, "public", "rd", false),
        (6, "public", "im", false),
        (7, "s", "st", false),
    ] {
        builder.function(oid, (schema, name), Origin::User { volatile }, nothing);
    }
    for (oid, name) in [(10, "t"), (11, "log"), (13, "v_plain"), (14, "v_wr"), (15, "v_nested")] {
        builder.relation(oid, "public", name, Safety::AnyNode);
    }
    builder.relation(16, "public", "u", Safety::PrimaryOnly);
    builder.relation(12, "public", "sq", Safety::PrimaryOnly);
    builder.relation(17, "public", "v_lock", Safety::PrimaryOnly);
    builder.uses(Object::Relation(14), Object::Function(1));
    builder.uses(Object::Relation(15), Object::Relation(14));
    builder.build()
}

#[test]
fn every_statement_goes_where_it_belongs_for_its_reason() {
    let (catalog, options) = (catalog(), ParseOptions::default());
    let view = Loaded { catalog: Some(&catalog), listed: &NoLists, generation: 1 };
    let mut cached = Classifier::new(1 << 20);
    let (mut wrong, mut count, mut group) = (Vec::new(), 0, ("", ""));
    for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if let Some(head) = line.strip_prefix("== ") {
            let mut words = head.split(' ');
            group = (words.next().unwrap(), words.next().unwrap());
            continue;
        }
        count += 1;
        let verdict = router::classify_with(line.as_bytes(), &options, &view);
        for _ in 0..2 {
            assert_eq!(cached.classify_with(line.as_bytes(), &options, &view), verdict, "{line}");
        }
        let verdict = unpin_followed(verdict, line.as_bytes(), true);
        let (target, reason) = decide(&verdict, &TxView::default(), &Policy::default());
        let node = match target {
            Target::Primary => "p",
            Target::Read | Target::Standby | Target::Node(_) | Target::Prefer(_) => "s",
            Target::Anywhere => "n",
        };
        if (node, reason.as_str()) != group {
            wrong.push(format!("{line}\n    {node} {} instead of {group:?}", reason.as_str()));
        }
    }
    assert!(count >= 600, "{count} statements");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
