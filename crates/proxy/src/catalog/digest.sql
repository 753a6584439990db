-- One value that is another one after whatever changes the answer of facts.sql: a row that is made or changed
-- carries the number of the transaction that did it.
BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
SELECT concat_ws(',', current_database(), count(*), sum(hashtext(concat(kind, ':', oid, ':', xmin))::bigint))
FROM (
  SELECT 1 AS kind, oid, xmin::text FROM pg_proc WHERE oid >= 16384
  UNION ALL
  SELECT 2, oid, xmin::text FROM pg_class
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND relpersistence <> 't' AND oid >= 16384
  UNION ALL SELECT 3, oid, xmin::text FROM pg_rewrite WHERE oid >= 16384
  UNION ALL SELECT 4, oid, xmin::text FROM pg_operator WHERE oid >= 16384
  UNION ALL SELECT 5, oid, xmin::text FROM pg_cast WHERE oid >= 16384
  UNION ALL SELECT 6, oid, xmin::text FROM pg_policy
  UNION ALL SELECT 7, oid, xmin::text FROM pg_constraint WHERE contypid <> 0
  UNION ALL SELECT 13, oid, xmin::text FROM pg_type WHERE oid >= 16384 AND typtype IN ('d', 'r', 'm')
  UNION ALL
  SELECT 14, a.attrelid, concat(a.attnum, ':', a.xmin)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relkind = 'c' AND a.attnum > 0
  UNION ALL SELECT 8, inhrelid, concat(inhparent, xmin) FROM pg_inherits
  UNION ALL SELECT 9, oid, xmin::text FROM pg_namespace
  UNION ALL SELECT 10, setrole, concat(setdatabase, ':', xmin) FROM pg_db_role_setting
  UNION ALL SELECT 12, 0::oid, concat(name, reset_val) FROM pg_settings WHERE name LIKE 'default\_transaction\_%'
  UNION ALL SELECT 15, oid, concat(tgenabled, xmin) FROM pg_trigger WHERE tgfoid >= 16384
  UNION ALL SELECT 16, oid, xmin::text FROM pg_attrdef WHERE adrelid >= 16384
  UNION ALL SELECT 17, oid, xmin::text FROM pg_constraint WHERE contype IN ('c', 'f') AND conrelid >= 16384
  UNION ALL SELECT 18, oid, xmin::text FROM pg_event_trigger
  UNION ALL SELECT 11, aggfnoid::oid, xmin::text FROM pg_aggregate WHERE aggfnoid::oid >= 16384
) AS rows;
COMMIT
