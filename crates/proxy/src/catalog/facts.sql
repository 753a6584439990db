-- What pgweir must know of a database to route its statements: one answer of rows (kind, a, b, c, d).
-- f: a function (oid, flags, schema, name); flags: b built in, v volatile, s takes one row, 1 takes one value.
-- r: a relation (oid, p when only the primary reads it, schema, name); a standby sees sequences ahead of their values.
-- o: an operator (oid of its function, -, schema, name).    t: a type (oid, -, schema, name).
-- u: a uses b (kind, oid, kind, oid).    p: belongs to the primary (kind, oid).    h: used unseen (kind, oid).
-- s: what a function of a user's runs (oid, t when its text is there, text): nothing is known of it without a text.
-- w: writing a uses b (kind, oid, kind, oid): triggers, rules, defaults, checks, what a foreign key cascades to.
-- e: a function that definitions call (oid).
-- d: a default of transactions (database, role, name, value), the least specific first.
-- What was there at initdb has an oid below 16384. Trees of expressions name what they call (nodes/primnodes.h).
-- The transaction says its level itself: what the connection were given at its start would hide the server's default.
BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
WITH RECURSIVE trees AS MATERIALIZED (
  SELECT 'r' AS kind, r.ev_class AS oid, r.ev_action::text AS tree
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
    WHERE c.relkind = 'v' AND r.ev_type = '1' AND c.oid >= 16384
  UNION ALL
  SELECT 'r', p.polrelid, p.polqual::text
    FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
    WHERE p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL AND c.relrowsecurity
  UNION ALL
  SELECT 't', contypid, conbin::text FROM pg_constraint WHERE contypid >= 16384 AND conbin IS NOT NULL
  UNION ALL
  SELECT 'f', oid, proargdefaults::text FROM pg_proc WHERE proargdefaults IS NOT NULL AND oid >= 16384
), written AS MATERIALIZED (
  SELECT 'r' AS kind, ev_class AS oid, ev_action::text AS tree FROM pg_rewrite WHERE ev_type <> '1' AND oid >= 16384
  UNION ALL
  SELECT 'r', adrelid, adbin::text FROM pg_attrdef WHERE adrelid >= 16384
  UNION ALL
  SELECT 'r', conrelid, conbin::text FROM pg_constraint WHERE contype = 'c' AND conrelid >= 16384
  UNION ALL
  SELECT 'r', polrelid, concat(polqual::text, polwithcheck::text) FROM pg_policy
), sources AS MATERIALIZED (
  SELECT p.oid, l.lanname, p.prosrc, p.prokind, octet_length(p.prosrc) AS size,
         sum(octet_length(p.prosrc)) OVER () AS sizes
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.oid >= 16384 AND NOT (l.lanname = 'c' AND EXISTS (
      SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'))
), made_of (type, part) AS MATERIALIZED (
  SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd'
  UNION ALL
  SELECT oid, typelem FROM pg_type WHERE typelem >= 16384
  UNION ALL
  SELECT c.reltype, a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.atttypid >= 16384 AND a.attnum > 0 AND c.relkind IN ('c', 'r', 'p')
  UNION ALL
  SELECT rngtypid, rngsubtype FROM pg_range WHERE rngtypid >= 16384
  UNION ALL
  SELECT (to_jsonb(r) ->> 'rngmultitypid')::oid, rngtypid FROM pg_range r WHERE rngtypid >= 16384 -- 14 and later
), converted (type) AS (
  SELECT oid FROM pg_type WHERE typtype = 'd' AND oid >= 16384
  UNION
  SELECT casttarget FROM pg_cast WHERE oid >= 16384
  UNION
  SELECT m.type FROM made_of m JOIN converted c ON c.type = m.part
)
SELECT 'f', p.oid::text,
       concat(CASE WHEN p.oid < 16384 THEN 'b' END, CASE WHEN p.provolatile = 'v' THEN 'v' END,
              CASE WHEN p.oid >= 16384 AND p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1
                   THEN CASE WHEN t.typtype IN ('c', 'p') THEN 's1' ELSE '1' END END),
       n.nspname::text, p.proname::text
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace LEFT JOIN pg_type t ON t.oid = p.proargtypes[0]
UNION ALL
SELECT 'r', c.oid::text, CASE WHEN c.relpersistence = 'u' OR c.relkind IN ('f', 'S') OR c.oid = to_regclass('pg_catalog.pg_sequences') THEN 'p' END, n.nspname::text, c.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't' AND n.nspname <> 'pg_toast'
UNION ALL
SELECT 'o', o.oprcode::oid::text, NULL, n.nspname::text, o.oprname::text
  FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid >= 16384
UNION ALL
SELECT 't', t.oid::text, NULL, n.nspname::text, t.typname::text
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
  WHERE t.oid >= 16384 AND t.oid IN (SELECT type FROM converted)
UNION ALL
SELECT DISTINCT 'u', t.kind, t.oid::text, CASE m[1] WHEN 'relid' THEN 'r' WHEN 'resulttype' THEN 't' ELSE 'f' END, m[2]
  FROM trees t, regexp_matches(t.tree, ':(funcid|opfuncid|aggfnoid|winfnoid|relid|resulttype) ([1-9][0-9]*)', 'g') m
UNION ALL
SELECT 'p', kind, oid::text, NULL, NULL FROM trees WHERE tree LIKE '%{ROWMARKCLAUSE%'
UNION ALL
SELECT 'u', 'r', i.inhparent::text, 'r', i.inhrelid::text
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind IN ('r', 'p', 'f')
UNION ALL
SELECT 'u', 'f', a.aggfnoid::oid::text, 'f', part::text
  FROM pg_aggregate a, unnest(ARRAY[a.aggtransfn::oid, a.aggfinalfn::oid, a.aggcombinefn::oid, a.aggserialfn::oid,
       a.aggdeserialfn::oid, a.aggmtransfn::oid, a.aggminvtransfn::oid, a.aggmfinalfn::oid]) AS part
  WHERE a.aggfnoid::oid >= 16384 AND part <> 0
UNION ALL
SELECT 'u', 't', casttarget::text, 'f', castfunc::text FROM pg_cast WHERE oid >= 16384 AND castfunc <> 0
UNION ALL
SELECT 'h', 'f', castfunc::text, NULL, NULL
  FROM pg_cast WHERE oid >= 16384 AND castfunc <> 0 AND (castcontext = 'i' OR casttarget < 16384)
UNION ALL
SELECT 'u', 't', type::text, 't', part::text
  FROM made_of WHERE type IN (SELECT type FROM converted) AND part IN (SELECT type FROM converted)
UNION ALL
SELECT DISTINCT 'u', 'f', p.oid::text, 't', part::text
  FROM pg_proc p, unnest(p.proargtypes::oid[] || p.prorettype) AS part
  WHERE p.oid >= 16384 AND part IN (SELECT type FROM converted)
UNION ALL
-- Opaque languages have no text that is understood, and of too much text none is read.
SELECT 's', oid::text, CASE WHEN known THEN 't' END,
       CASE WHEN NOT known THEN NULL WHEN prosrc = '' AND prokind <> 'a' THEN pg_get_functiondef(oid) ELSE prosrc END, NULL
  FROM (SELECT *, lanname IN ('sql', 'plpgsql', 'internal') AND size <= 262144 AND sizes <= 16777216 AS known FROM sources) AS s
UNION ALL
SELECT DISTINCT 'w', t.kind, t.oid::text, CASE m[1] WHEN 'relid' THEN 'r' WHEN 'resulttype' THEN 't' ELSE 'f' END, m[2]
  FROM written t, regexp_matches(t.tree, ':(funcid|opfuncid|aggfnoid|winfnoid|relid|resulttype) ([1-9][0-9]{4,})', 'g') m
UNION ALL
SELECT DISTINCT 'w', 'r', tgrelid::text, 'f', tgfoid::text FROM pg_trigger WHERE tgfoid >= 16384 AND tgenabled <> 'D'
UNION ALL
SELECT DISTINCT 'w', 'r', confrelid::text, 'r', conrelid::text
  FROM pg_constraint WHERE contype = 'f' AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
UNION ALL
SELECT 'e', evtfoid::text, NULL, NULL, NULL FROM pg_event_trigger WHERE evtenabled <> 'D'
UNION ALL
SELECT * FROM (
  SELECT 'd', '', '', name, reset_val FROM pg_settings
    WHERE name LIKE 'default\_transaction\_%' AND source IN ('default', 'configuration file', 'command line')
  UNION ALL
  (SELECT 'd', coalesce(d.datname::text, ''), coalesce(r.rolname::text, ''),
          split_part(setting, '=', 1), substr(setting, strpos(setting, '=') + 1)
     FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase
          LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS setting
     WHERE setting LIKE 'default\_transaction\_%' AND (s.setdatabase = 0 OR d.datname = current_database())
     ORDER BY s.setrole <> 0, s.setdatabase <> 0)
) AS defaults;
COMMIT
