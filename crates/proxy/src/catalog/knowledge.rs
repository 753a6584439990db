//! What sessions are told about their database, and what was read of it.

use std::sync::Arc;

use router::{Builder, Catalog, Loaded, Object, Origin, Safety, TxMode};

use super::rules::{Rules, SharedRules};
use crate::connect::Rows;

/// The most that is kept of one database (bytes); one with more is read on the primary.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// What is known of a database, and for how long.
#[derive(Debug)]
pub(crate) struct Knowledge {
    /// What was read; `None` while nothing is known, or what is known may be out of date.
    facts: Option<Arc<Facts>>,
    pub(crate) rules: SharedRules,
    /// Verdicts of another generation do not count.
    pub(crate) generation: u64,
    pub(crate) state: State,
}

/// How it stands with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is being asked for the first time.
    Loading,
    /// Known.
    Known,
    /// It may have changed: it is asked again.
    Changed,
    /// It cannot be asked.
    Unknown,
}

impl Knowledge {
    pub(super) fn careful(rules: SharedRules, state: State) -> Self {
        Self { facts: None, generation: rules.careful, rules, state }
    }

    pub(super) fn known(facts: Arc<Facts>, rules: SharedRules) -> Self {
        Self { generation: facts.generation, facts: Some(facts), rules, state: State::Known }
    }

    /// As the router asks.
    pub(crate) fn view(&self) -> Loaded<'_> {
        Loaded {
            catalog: self.facts.as_ref().map(|facts| &facts.catalog),
            listed: &*self.rules,
            generation: self.generation,
        }
    }

    /// Parameters of users' own that functions set for the session, as far as they are known.
    pub(crate) fn settings(&self) -> &[Box<str>] {
        self.facts.as_ref().map_or(&[], |facts| facts.catalog.settings())
    }

    /// The modes that transactions of `user` have by default, as far as they are known.
    pub(crate) fn default_mode(&self, user: &str) -> TxMode {
        let Some(facts) = &self.facts else { return TxMode::default() };
        let fits = |default: &&TxDefault| default.role.is_empty() || default.role == user;
        let modes = facts.defaults.iter().filter(fits).map(|default| default.mode);
        modes.fold(TxMode::default(), TxMode::overlaid)
    }
}

/// A setting of a database, a role, or of a role in a database.
#[derive(Debug, PartialEq, Eq)]
struct TxDefault {
    role: String,
    mode: TxMode,
}

/// What was read of a database.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) catalog: Catalog,
    defaults: Vec<TxDefault>,
    generation: u64,
}

/// Why an answer is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nonsense {
    #[error("the node's answer about its catalog is not understood")]
    Row,
    #[error("the catalog is larger than {MAX_BYTES} bytes")]
    TooLarge,
}

impl Facts {
    /// From the rows of `facts.sql`; `generation` is a number that nothing else has.
    pub(super) fn read(rows: &Rows, rules: &Rules, generation: u64) -> Result<Self, Nonsense> {
        let (mut builder, mut defaults) = (Builder::default(), Vec::new());
        for row in rows {
            let [kind, a, b, c, d] = row.as_slice() else { return Err(Nonsense::Row) };
            let [kind, a, b, c, d] = [kind, a, b, c, d].map(|field| field.as_deref().unwrap_or_default());
            if kind == "d" {
                let mode = TxMode::from_setting(c, d).unwrap_or_default();
                defaults.push(TxDefault { role: b.to_owned(), mode });
            } else {
                thing(&mut builder, rules, (kind, a, b, c, d)).ok_or(Nonsense::Row)?;
            }
            if builder.bytes() > MAX_BYTES {
                return Err(Nonsense::TooLarge);
            }
        }
        Ok(Self { catalog: builder.build(), defaults, generation })
    }
}

/// One row about a thing.
fn thing(
    builder: &mut Builder,
    rules: &Rules,
    (kind, a, b, c, d): (&str, &str, &str, &str, &str),
) -> Option<()> {
    match kind {
        "f" => {
            let oid = a.parse().ok()?;
            let volatile = b.contains('v');
            let built_in = b.contains('b');
            let origin = if built_in { Origin::BuiltIn { volatile } } else { Origin::User { volatile } };
            builder.function(oid, (c, d), origin, &|schema, name| rules.of(schema, name));
            if b.contains('s') {
                builder.field(oid);
            }
            if b.contains('1') {
                builder.scalar_field(oid);
            }
        }
        "r" => {
            let own = if b == "p" { Safety::PrimaryOnly } else { Safety::AnyNode };
            builder.relation(a.parse().ok()?, c, d, own);
        }
        "o" => builder.operator(c, d, a.parse().ok()?),
        "t" => builder.type_(a.parse().ok()?, c, d),
        "u" => builder.uses(object(a, b)?, object(c, d)?),
        "p" => builder.primary(object(a, b)?),
        "h" => builder.hidden(object(a, b)?),
        "s" => builder.text(a.parse().ok()?, (b == "t").then_some(c)),
        "w" => builder.writes(object(a, b)?, object(c, d)?),
        "e" => builder.definition(a.parse().ok()?),
        _ => return None,
    }
    Some(())
}

fn object(kind: &str, oid: &str) -> Option<Object> {
    let oid = oid.parse().ok()?;
    match kind {
        "f" => Some(Object::Function(oid)),
        "r" => Some(Object::Relation(oid)),
        "t" => Some(Object::Type(oid)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use router::{Access, ParseOptions, Reason, classify_with};

    fn rows(text: &str) -> Rows {
        let field = |field: &str| (field != "-").then(|| field.to_owned());
        text.lines().map(|line| line.split(' ').map(field).collect()).collect()
    }

    fn rules(yaml: &str) -> SharedRules {
        let yaml = format!("backends: [{{hostname: a}}]\n{yaml}");
        Arc::new(Rules::new(&config::parse(&yaml, "test").unwrap(), 1))
    }

    const DATABASE: &str = "\
f 47 bv pg_catalog nextval
f 48 b pg_catalog json_newer
f 49 bv pg_catalog json_newer_state
f 50 b pg_catalog pg_newer_wal_position
f 100 v public writes
f 101 - public reads
f 102 v other reads
f 103 v public quiet
f 104 vs public of_row
r 200 - public plain
r 201 - public over_writes
r 202 - public over_view
r 203 - public over_nextval
r 204 p public unlogged
r 205 - public parent
r 206 - public locking
r 207 - other hidden
o 100 - public <#>
t 300 - public checked
u r 201 f 100
u r 202 r 201
u r 203 f 47
u r 205 r 204
u t 300 f 100
p r 206 - -
d - - default_transaction_isolation read=committed
d bench alice default_transaction_read_only on";

    fn verdict(knowledge: &Knowledge, sql: &str) -> (Access, Reason) {
        let verdict = classify_with(sql.as_bytes(), &ParseOptions::default(), &knowledge.view());
        (verdict.access, verdict.reason)
    }

    #[test]
    fn what_uses_a_writer_is_one() {
        let rules = rules("read_only_function_list: [quiet]\nwrite_function_list: ['public\\.reads2']");
        let facts = Facts::read(&rows(DATABASE), &rules, 2).unwrap();
        let known = Knowledge::known(Arc::new(facts), rules);
        let read = (Access::Read, Reason::ReadOnlySelect);
        let relation = (Access::Write, Reason::PrimaryRelation);
        let function = (Access::Write, Reason::VolatileFunction);
        for (sql, expected) in [
            ("SELECT * FROM plain", read),
            ("TABLE public.plain", read),
            ("SELECT * FROM over_writes", relation),
            ("SELECT * FROM (SELECT * FROM over_view) x", relation),
            ("SELECT (SELECT count(*) FROM over_nextval)", relation),
            ("SELECT * FROM unlogged", relation),
            ("SELECT * FROM parent", relation),
            ("SELECT * FROM locking", relation),
            ("COPY unlogged TO STDOUT", relation),
            ("COPY public.plain (a) TO STDOUT", read),
            ("COPY (SELECT * FROM over_view) TO STDOUT", relation),
            ("EXPLAIN SELECT * FROM unlogged", relation),
            ("SELECT * FROM nobody", (Access::Write, Reason::UnknownRelation)),
            ("SELECT * FROM public.hidden", (Access::Write, Reason::UnknownRelation)),
            ("SELECT * FROM hidden, pg_class, information_schema.tables", read),
            ("SELECT gid FROM pg_prepared_xacts", relation),
            ("SELECT * FROM pg_catalog.pg_locks", relation),
            ("WITH nobody AS (SELECT 1) SELECT * FROM nobody", read),
            ("WITH unlogged AS (SELECT 1) SELECT * FROM unlogged", relation),
            ("SELECT writes()", function),
            ("SELECT reads()", function),
            ("SELECT public.reads()", read),
            ("SELECT other.reads()", function),
            ("SELECT quiet()", read),
            // Of a newer server than the table of built-ins knows.
            ("SELECT json_newer(1), pg_catalog.json_newer(2)", read),
            ("SELECT json_newer_state()", function),
            ("SELECT pg_newer_wal_position()", function),
            ("SELECT public.json_newer()", (Access::Write, Reason::UnknownFunction)),
            ("SELECT 1 <#> 2", function),
            ("SELECT 1 OPERATOR(public.<#>) 2", function),
            ("SELECT x::checked FROM plain", function),
            ("SELECT CAST(1 AS public.CHECKED)", function),
            ("SELECT checked '1'", function),
            ("SELECT p.of_row FROM plain p", function),
            ("SELECT of_row FROM plain p", read),
        ] {
            assert_eq!(verdict(&known, sql), expected, "{sql}");
        }
    }

    #[test]
    fn what_is_planned_must_be_known() {
        let rules = rules("");
        let facts = Facts::read(&rows(DATABASE), &rules, 2).unwrap();
        let known = Knowledge::known(Arc::new(facts), rules);
        let (explain, unknown) = ((Access::Read, Reason::Explain), (Access::Write, Reason::UnknownRelation));
        let function = (Access::Write, Reason::VolatileFunction);
        for (sql, expected) in [
            ("EXPLAIN SELECT * FROM plain", explain),
            ("EXPLAIN SELECT * FROM plain, generate_series(1, 2) AS g", explain),
            ("EXPLAIN WITH nobody AS (SELECT 1) SELECT * FROM nobody JOIN pg_class ON true", explain),
            ("EXPLAIN INSERT INTO plain SELECT * FROM public.plain", explain),
            ("EXPLAIN UPDATE plain SET a = 1 FROM plain p WHERE plain.a = p.a", explain),
            ("EXPLAIN DELETE FROM plain USING plain p", explain),
            ("EXPLAIN MERGE INTO plain USING plain p ON true WHEN MATCHED THEN DELETE", explain),
            ("EXPLAIN CREATE TABLE nobody AS SELECT * FROM plain WITH NO DATA", explain),
            ("EXPLAIN DECLARE nobody CURSOR FOR TABLE plain", explain),
            ("EXPLAIN SELECT writes()", explain),
            ("EXPLAIN TABLE nobody", unknown),
            ("EXPLAIN SELECT * FROM plain, nobody", unknown),
            ("EXPLAIN (COSTS off) SELECT (SELECT max(a) FROM nobody)", unknown),
            ("EXPLAIN SELECT * FROM other.plain", unknown),
            ("EXPLAIN INSERT INTO nobody VALUES (1)", unknown),
            ("EXPLAIN INSERT INTO plain SELECT * FROM nobody", unknown),
            ("EXPLAIN WITH x AS (DELETE FROM nobody RETURNING *) SELECT * FROM x", unknown),
            ("EXPLAIN UPDATE plain SET a = 1 FROM nobody", unknown),
            ("EXPLAIN DELETE FROM plain USING nobody", unknown),
            ("EXPLAIN MERGE INTO plain USING nobody ON true WHEN MATCHED THEN DELETE", unknown),
            ("EXPLAIN DECLARE c CURSOR FOR SELECT * FROM nobody", unknown),
            ("EXPLAIN CREATE TABLE x AS SELECT * FROM nobody WITH NO DATA", unknown),
            (
                "EXPLAIN SELECT * FROM ROWS FROM (generate_series(1, 2)) AS r",
                (Access::Write, Reason::Unparsed),
            ),
            ("EXPLAIN SELECT 1 WHERE txid_current() = 1", function),
            ("EXPLAIN CREATE TABLE x AS EXECUTE p", (Access::Write, Reason::Execute)),
        ] {
            assert_eq!(verdict(&known, sql), expected, "{sql}");
        }
    }

    #[test]
    fn lists_go_before_the_catalog() {
        let lists =
            "read_only_function_list: [writes, nextval]\nwrite_function_list: ['public\\.reads', 'low.*']";
        let rules = rules(lists);
        let facts = Facts::read(&rows(DATABASE), &rules, 2).unwrap();
        let known = Knowledge::known(Arc::new(facts), rules);
        let read = (Access::Read, Reason::ReadOnlySelect);
        assert_eq!(verdict(&known, "SELECT writes(), nextval('s')"), read);
        assert_eq!(verdict(&known, "SELECT * FROM over_view, over_nextval"), read);
        assert_eq!(verdict(&known, "SELECT lower('x')"), (Access::Write, Reason::FunctionList));
        assert_eq!(verdict(&known, "SELECT public.reads()"), (Access::Write, Reason::FunctionList));
        assert_eq!(verdict(&known, "SELECT upper('x')"), read);
    }

    #[test]
    fn nothing_known_is_the_primary() {
        let careful = Knowledge::careful(rules(""), State::Loading);
        for sql in ["SELECT * FROM t", "COPY t TO STDOUT", "EXPLAIN SELECT * FROM t", "TABLE t"] {
            assert_eq!(verdict(&careful, sql).1, Reason::UnknownRelation, "{sql}");
        }
        assert_eq!(verdict(&careful, "SELECT f()").1, Reason::UnknownFunction);
        for sql in ["SELECT 1", "SELECT * FROM pg_class", "SELECT lower('a') FROM generate_series(1, 2)"] {
            assert_eq!(verdict(&careful, sql).0, Access::Read, "{sql}");
        }
    }

    #[test]
    fn defaults_of_roles() {
        let rules = rules("");
        let facts = Facts::read(&rows(DATABASE), &rules, 2).unwrap();
        let known = Knowledge::known(Arc::new(facts), rules);
        assert_eq!(known.default_mode("alice").read_only, Some(true));
        assert_eq!(known.default_mode("bob").read_only, None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["f 1 b c", "x 1 2 3 4", "f one - a b", "u r 1 q 2", "u r 1 r x"] {
            assert_eq!(Facts::read(&rows(bad), &rules(""), 2).unwrap_err(), Nonsense::Row, "{bad}");
        }
    }
}
