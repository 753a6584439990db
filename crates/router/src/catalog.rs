//! What one database's catalog says about the things that statements name: functions, operators, relations
//! and types, and which of them belong to the primary.
//!
//! A thing belongs to the primary if it does so itself (a volatile function, an unlogged table, a view that
//! locks rows) or if something that it uses does (a view over such a function, an operator or a cast made of
//! one, a domain whose check calls one, at any depth). Whoever reads the catalog tells a [`Builder`] the
//! things by OID and which uses which; names are what is left of it.
//!
//! A name without a schema may be any of that name: the worst counts. Bounded by whoever feeds the builder,
//! who asks it how many bytes it holds.

use std::collections::{HashMap, HashSet};

use crate::functions::{self, FunctionCatalog, Safety};
use crate::leaves::Leaves;
use crate::suspects::{Gathering, Suspects, Things};
use crate::verdict::Access;

/// `NAMEDATALEN - 1`: the server cuts longer names.
const NAME_LEN: usize = 63;
/// What an entry costs beside its name.
const ENTRY_COST: usize = 96;
/// Operators that statements use without a sign of it (`JOIN USING`, `IN`, `BETWEEN`, `DISTINCT`, `LIKE`, `SIMILAR TO`).
const IMPLIED: &[&str] = &["=", "<>", "<", ">", "<=", ">=", "~~", "!~~", "~~*", "!~~*", "~", "!~"];

/// A thing of the catalog, by its OID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    /// `pg_proc`.
    Function(u32),
    /// `pg_class`.
    Relation(u32),
    /// `pg_type`.
    Type(u32),
}

/// Says what the configuration's lists say of a function; schema and name as in the catalog.
pub type Listed<'a> = &'a dyn Fn(&str, &str) -> Option<Safety>;

/// Names of one kind of thing, each with the schemas it is found in.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Names(HashMap<Box<str>, Vec<(u32, Safety)>>);

impl Names {
    fn add(&mut self, schema: u32, name: &str, safety: Safety) {
        let places = match self.0.get_mut(name) {
            Some(places) => places,
            None => self.0.entry(name.into()).or_insert_with(|| Vec::with_capacity(1)),
        };
        match places.iter_mut().find(|(known, _)| *known == schema) {
            Some((_, known)) => *known = known.worse(safety),
            None => places.push((schema, safety)),
        }
    }

    fn find(&self, schema: Option<u32>, name: &str) -> Option<Safety> {
        let places = self.0.get(cut(name))?.iter();
        let fits = places.filter(|(place, _)| schema.is_none_or(|schema| schema == *place));
        fits.map(|(_, safety)| *safety).reduce(Safety::worse)
    }
}

/// What the router knows of one database.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Catalog {
    schemas: HashMap<Box<str>, u32>,
    functions: Names,
    operators: Names,
    relations: Names,
    /// Types whose name anywhere in a text is a reason for the primary.
    types: HashSet<Box<str>>,
    /// Functions that `row.name` calls.
    fields: HashSet<Box<str>>,
    /// Functions that `value.name` calls, of any value.
    scalar_fields: HashSet<Box<str>>,
    hidden: bool,
    suspects: Suspects,
}

impl Catalog {
    /// A function of that name that is not built in; all its overloads count.
    #[must_use]
    pub fn function(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.find(&self.functions, schema, name)
    }

    /// An operator of that name that is not built in.
    #[must_use]
    pub fn operator(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.find(&self.operators, schema, name)
    }

    /// What reading a relation of that name takes.
    #[must_use]
    pub fn relation(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.find(&self.relations, schema, name)
    }

    /// Whether converting to a type of that name calls what belongs to the primary.
    #[must_use]
    pub fn type_name(&self, name: &str) -> Safety {
        Safety::primary_if(self.types.contains(cut(name)))
    }

    /// Whether `row.name` calls what belongs to the primary.
    #[must_use]
    pub fn field(&self, name: &str) -> Safety {
        Safety::primary_if(self.fields.contains(cut(name)))
    }

    /// Whether `value.name` calls what belongs to the primary, whatever the value is.
    #[must_use]
    pub fn scalar_field(&self, name: &str) -> Safety {
        Safety::primary_if(self.scalar_fields.contains(cut(name)))
    }

    /// Whether any read may call what belongs to the primary with nothing in its text to show for it.
    #[must_use]
    pub fn hidden(&self) -> Safety {
        Safety::primary_if(self.hidden)
    }

    /// Parameters of users' own that functions set for the session.
    #[must_use]
    pub fn settings(&self) -> &[Box<str>] {
        &self.suspects.settings
    }

    /// How many functions, operators and relations it knows by name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.0.len() + self.operators.0.len() + self.relations.0.len()
    }

    /// Whether it knows nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, names: &Names, schema: Option<&str>, name: &str) -> Option<Safety> {
        match schema {
            None => names.find(None, name),
            Some(schema) => names.find(Some(*self.schemas.get(cut(schema))?), name),
        }
    }
}

/// As the server would cut it.
fn cut(name: &str) -> &str {
    if name.len() <= NAME_LEN {
        return name;
    }
    let end = (0..=NAME_LEN).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
    name.get(..end).unwrap_or_default()
}

/// A thing with a name, before it is known which belong to the primary.
#[derive(Debug)]
struct Named {
    schema: u32,
    name: Box<str>,
    object: Object,
}

impl Named {
    fn pair(&self) -> (Object, &str) {
        (self.object, &self.name)
    }
}

/// Makes a [`Catalog`].
#[derive(Debug, Default)]
pub struct Builder {
    schemas: HashMap<Box<str>, u32>,
    functions: Vec<Named>,
    operators: Vec<Named>,
    relations: Vec<Named>,
    types: Vec<Named>,
    fields: HashSet<u32>,
    scalar_fields: HashSet<u32>,
    /// Who is used, and by whom.
    users: HashMap<Object, Vec<Object>>,
    primary: Vec<Object>,
    /// What the lists say, whatever it uses.
    listed: HashSet<Object>,
    hidden: Vec<Object>,
    gathering: Gathering,
    bytes: usize,
}

impl Builder {
    /// A function, procedure or aggregate. `volatile` as its catalog row says; what is built in is judged by the
    /// table, and not kept when that has it. A newer server has others, which are taken as it says, but for names
    /// like those of functions whose volatility hides what they do.
    pub fn function(&mut self, oid: u32, (schema, name): (&str, &str), origin: Origin, listed: Listed<'_>) {
        let object = Object::Function(oid);
        let safety = match (listed(schema, name), origin) {
            (Some(safety), _) => {
                self.listed.insert(object);
                safety
            }
            (None, Origin::BuiltIn { volatile }) => functions::builtin(name.as_bytes())
                .unwrap_or_else(|| Safety::primary_if(volatile || functions::is_suspect(name))),
            (None, Origin::User { volatile }) => Safety::primary_if(volatile),
        };
        if safety == Safety::PrimaryOnly {
            self.primary.push(object);
        }
        if matches!(origin, Origin::BuiltIn { .. }) && functions::builtin(name.as_bytes()).is_some() {
            return;
        }
        if matches!(origin, Origin::User { .. }) {
            self.gathering.named(object, name);
        }
        let named = self.named(schema, name, object);
        self.functions.push(named);
    }

    /// The text of a function that a user has made, in SQL or PL/pgSQL; `None` when it is not to be looked into.
    pub fn text(&mut self, oid: u32, text: Option<&str>) {
        self.bytes += self.gathering.text(Object::Function(oid), text);
    }

    /// Writing `user` uses `used`: by a trigger, a rule, a default, a check, a foreign key.
    pub fn writes(&mut self, user: Object, used: Object) {
        self.bytes += size_of::<Object>() * 2;
        self.gathering.writes(user, used);
    }

    /// A function that definitions call (an event trigger's).
    pub fn definition(&mut self, function: u32) {
        self.gathering.definition(Object::Function(function));
    }

    /// The function takes one row: `row.name` calls it.
    pub fn field(&mut self, oid: u32) {
        self.fields.insert(oid);
    }

    /// The function takes one value, row or not: `value.name` calls it.
    pub fn scalar_field(&mut self, oid: u32) {
        self.scalar_fields.insert(oid);
    }

    /// An operator, which calls a function.
    pub fn operator(&mut self, schema: &str, name: &str, function: u32) {
        let named = self.named(schema, name, Object::Function(function));
        // User operators over built-in functions are as good as those.
        self.operators.push(named);
    }

    /// A table, view, sequence or the like; `own` is what it is whatever it uses.
    pub fn relation(&mut self, oid: u32, schema: &str, name: &str, own: Safety) {
        let object = Object::Relation(oid);
        if own == Safety::PrimaryOnly || (is_system(Some(schema), name) && OF_THE_PRIMARY.contains(&name)) {
            self.primary.push(object);
        }
        let named = self.named(schema, name, object);
        self.relations.push(named);
    }

    /// A type that is cast to by a function, or a domain.
    pub fn type_(&mut self, oid: u32, schema: &str, name: &str) {
        let named = self.named(schema, name, Object::Type(oid));
        self.types.push(named);
    }

    /// `user` uses `used`.
    pub fn uses(&mut self, user: Object, used: Object) {
        self.bytes += size_of::<Object>() * 2;
        self.users.entry(used).or_default().push(user);
    }

    /// It belongs to the primary.
    pub fn primary(&mut self, object: Object) {
        self.primary.push(object);
    }

    /// Any statement may use it with nothing in its text to show for it.
    pub fn hidden(&mut self, object: Object) {
        self.hidden.push(object);
    }

    /// Bytes held, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The catalog.
    #[must_use]
    pub fn build(mut self) -> Catalog {
        let suspects = self.suspects();
        let tainted = self.tainted();
        let safety = |object: &Object| Safety::primary_if(tainted.contains(object));
        let names = |all: &[Named]| {
            let mut names = Names::default();
            all.iter().for_each(|named| names.add(named.schema, &named.name, safety(&named.object)));
            names
        };
        let (functions, operators) = (names(&self.functions), names(&self.operators));
        let bad = |all: &[Named], also: &dyn Fn(&Named) -> bool| {
            let bad = all.iter().filter(|named| tainted.contains(&named.object) && also(named));
            bad.map(|named| named.name.clone()).collect()
        };
        let among = |fields: &HashSet<u32>, named: &Named| matches!(named.object, Object::Function(oid) if fields.contains(&oid));
        let implied = |name: &&str| operators.find(None, name) == Some(Safety::PrimaryOnly);
        Catalog {
            hidden: self.hidden.iter().any(|object| tainted.contains(object)) || IMPLIED.iter().any(implied),
            types: bad(&self.types, &|_| true),
            fields: bad(&self.functions, &|named| among(&self.fields, named)),
            scalar_fields: bad(&self.functions, &|named| among(&self.scalar_fields, named)),
            relations: names(&self.relations),
            functions,
            operators,
            schemas: self.schemas,
            suspects,
        }
    }

    fn suspects(&mut self) -> Suspects {
        let gathering = std::mem::take(&mut self.gathering);
        let all = self.functions.iter().chain(&self.relations).chain(&self.types);
        let things = Things {
            named: all.map(Named::pair).collect(),
            operators: self.operators.iter().map(Named::pair).collect(),
            users: &self.users,
            hidden: &self.hidden,
        };
        gathering.build(&things)
    }

    /// Everything that belongs to the primary, and everything that uses it.
    fn tainted(&self) -> HashSet<Object> {
        let mut tainted: HashSet<Object> = HashSet::new();
        let mut next: Vec<Object> = self.primary.clone();
        while let Some(object) = next.pop() {
            if tainted.insert(object) {
                let users = self.users.get(&object).into_iter().flatten();
                next.extend(users.filter(|user| !self.listed.contains(user)).copied());
            }
        }
        tainted
    }

    fn named(&mut self, schema: &str, name: &str, object: Object) -> Named {
        self.bytes += name.len() + ENTRY_COST;
        let known = self.schemas.get(schema).copied();
        let schema = known.unwrap_or_else(|| {
            let next = u32::try_from(self.schemas.len()).unwrap_or(u32::MAX);
            self.schemas.insert(schema.into(), next);
            next
        });
        Named { schema, name: name.into(), object }
    }
}

/// Where a function comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It came with the server.
    BuiltIn {
        /// `provolatile = 'v'`.
        volatile: bool,
    },
    /// Somebody made it.
    User {
        /// `provolatile = 'v'`.
        volatile: bool,
    },
}

/// A catalog that is asked by statements, with what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct Loaded<'a> {
    /// What is known; `None` while nothing is.
    pub catalog: Option<&'a Catalog>,
    /// What the configuration's lists say of a function.
    pub listed: &'a dyn ListedFunctions,
    /// See [`FunctionCatalog::generation`].
    pub generation: u64,
}

/// The configuration's `read_only_function_list` and `write_function_list`.
pub trait ListedFunctions: std::fmt::Debug {
    /// What they say of a function; the schema is `None` when the text does not name one.
    fn listed(&self, schema: Option<&str>, name: &str) -> Option<Safety>;
}

impl FunctionCatalog for Loaded<'_> {
    fn listed(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.listed.listed(schema, name)
    }

    fn function(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.catalog?.function(schema, name)
    }

    fn operator(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        self.catalog?.operator(schema, name)
    }

    fn relation(&self, schema: Option<&str>, name: &str) -> Option<Safety> {
        let system = is_system(schema, name);
        if system && OF_THE_PRIMARY.contains(&name) {
            return Some(Safety::PrimaryOnly);
        }
        let known = self.catalog.and_then(|catalog| catalog.relation(schema, name));
        known.or_else(|| system.then_some(Safety::AnyNode))
    }

    fn is_loaded(&self) -> bool {
        self.catalog.is_some()
    }

    fn type_name(&self, name: &str) -> Safety {
        self.catalog.map_or(Safety::AnyNode, |catalog| catalog.type_name(name))
    }

    fn field(&self, name: &str) -> Safety {
        self.catalog.map_or(Safety::AnyNode, |catalog| catalog.field(name))
    }

    fn scalar_field(&self, name: &str) -> Safety {
        self.catalog.map_or(Safety::AnyNode, |catalog| catalog.scalar_field(name))
    }

    fn hidden(&self) -> Safety {
        self.catalog.map_or(Safety::AnyNode, Catalog::hidden)
    }

    fn named(&self, name: &str, access: Access) -> Leaves {
        self.catalog.map_or(Leaves::Nothing, |catalog| catalog.suspects.named(name, access))
    }

    fn unseen(&self) -> Leaves {
        self.catalog.map_or(Leaves::Nothing, |catalog| catalog.suspects.unseen())
    }

    fn definitions(&self) -> Leaves {
        // Many come one after the other, and each makes the catalog unknown.
        self.catalog.map_or(Leaves::Perhaps, |catalog| catalog.suspects.definitions())
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// Views of the system that show the primary's state, and nothing of it on a standby: who looks for a lock, or for a
/// transaction that is to be finished (`XAResource.recover`), would be told that there is none. Sequences are up to 32
/// values ahead there (`SEQ_LOG_VALS`).
const OF_THE_PRIMARY: &[&str] = &[
    "pg_locks",
    "pg_prepared_xacts",
    "pg_replication_origin_status",
    "pg_replication_slots",
    "pg_sequences",
    "pg_stat_replication",
    "pg_stat_replication_slots",
    "pg_stat_subscription",
    "pg_stat_subscription_stats",
];

/// The system catalogs, which every node has.
fn is_system(schema: Option<&str>, name: &str) -> bool {
    match schema {
        Some(schema) => matches!(schema, "pg_catalog" | "information_schema" | "pg_toast"),
        None => name.starts_with("pg_"),
    }
}
