//! What texts do with the values of sequences that a server remembers for its session (`currval`, `lastval`).

/// What a text does with the values of sequences that a server remembers for its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sequences {
    /// Nothing.
    #[default]
    Nothing,
    /// It may advance some: by a default, a trigger, or a function.
    Perhaps,
    /// It calls `nextval` or `setval`.
    Advances,
    /// It calls `currval` or `lastval`.
    Asks,
    /// It may do both, in whatever order.
    Both,
}

impl Sequences {
    /// It asks for what was remembered.
    #[must_use]
    pub fn asks(self) -> bool {
        matches!(self, Self::Asks | Self::Both)
    }

    /// It may change what is remembered.
    #[must_use]
    pub fn may_advance(self) -> bool {
        matches!(self, Self::Perhaps | Self::Advances | Self::Both)
    }

    /// What two texts do together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, other) => other,
            (one, Self::Nothing) => one,
            (one, other) if one.asks() || other.asks() => {
                if one.may_advance() || other.may_advance() {
                    Self::Both
                } else {
                    Self::Asks
                }
            }
            (Self::Perhaps, Self::Perhaps) => Self::Perhaps,
            _ => Self::Advances,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(sql: &str) -> Sequences {
        crate::classify(sql.as_bytes(), &crate::ParseOptions::default()).sequences()
    }

    #[test]
    fn what_asks_and_what_advances_is_told_apart() {
        for (sql, wanted) in [
            ("SELECT 1", Sequences::Nothing),
            ("SET work_mem = 1", Sequences::Nothing),
            ("SELECT pg_advisory_lock(1)", Sequences::Nothing),
            ("SELECT * FROM t FOR UPDATE", Sequences::Nothing),
            ("LISTEN x", Sequences::Nothing),
            ("INSERT INTO t VALUES (1)", Sequences::Perhaps),
            ("WITH x AS (INSERT INTO t VALUES (1)) SELECT 1", Sequences::Perhaps),
            ("COPY t FROM STDIN", Sequences::Perhaps),
            ("CALL p()", Sequences::Perhaps),
            ("DO $$ $$", Sequences::Perhaps),
            ("SELECT mine()", Sequences::Perhaps),
            ("EXECUTE p", Sequences::Perhaps),
            ("SELECT nextval('s')", Sequences::Advances),
            ("SELECT pg_catalog.setval('s', 1)", Sequences::Advances),
            ("INSERT INTO t VALUES (nextval('s'))", Sequences::Advances),
            ("SELECT lastval()", Sequences::Asks),
            ("SELECT \"currval\"('s')", Sequences::Asks),
            ("SELECT 1; SELECT lastval()", Sequences::Asks),
            ("SELECT nextval('s') + lastval()", Sequences::Both),
            ("INSERT INTO t VALUES (1); SELECT lastval()", Sequences::Both),
            ("SELECT lastval(); INSERT INTO t VALUES (1)", Sequences::Both),
        ] {
            assert_eq!(sequences(sql), wanted, "{sql}");
        }
    }
}
