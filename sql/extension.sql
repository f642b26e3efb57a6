-- The extension as a whole: install, comments, rights, removal.
CREATE EXTENSION etl;

-- every object of the extension has a comment
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
  FROM pg_depend d
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'etl'
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
   AND obj_description(d.objid, d.classid::regclass::name) IS NULL
   AND NOT (d.classid = 'pg_class'::regclass
            AND EXISTS (SELECT FROM pg_class c WHERE c.oid = d.objid AND c.relkind IN ('i', 'S')))
   AND d.classid <> 'pg_type'::regclass
 ORDER BY 1;
SELECT obj_description('etl'::regnamespace, 'pg_namespace');
SELECT obj_description(oid, 'pg_extension') FROM pg_extension WHERE extname = 'etl';

-- objects
SELECT pg_describe_object(d.classid, d.objid, 0) COLLATE "C" AS object
  FROM pg_depend d
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'etl'
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
   AND d.classid <> 'pg_type'::regclass
 ORDER BY 1;

-- what everybody may use
SELECT c.relname
  FROM pg_class c
 WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind IN ('r', 'v', 'S')
   AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 0)
 ORDER BY 1;
SELECT p.proname
  FROM pg_proc p
 WHERE p.pronamespace = 'etl'::regnamespace
   AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)
 ORDER BY 1;

-- no function swallows NULL, but the sources of views
SELECT p.proname
  FROM pg_proc p
 WHERE p.pronamespace = 'etl'::regnamespace AND p.proisstrict
 ORDER BY 1;

-- tables survive a FOR ALL TABLES publication: all have a primary key
SELECT c.relname
  FROM pg_class c
 WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind = 'r'
   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary);

-- no foreign keys between intent and runtime
SELECT conname FROM pg_constraint WHERE connamespace = 'etl'::regnamespace AND contype = 'f';

-- what pg_dump carries
SELECT c.relname
  FROM pg_extension e, unnest(e.extconfig) AS o JOIN pg_class c ON c.oid = o
 WHERE e.extname = 'etl'
 ORDER BY 1;

-- views protect their rows
SELECT c.relname, c.reloptions
  FROM pg_class c
 WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind = 'v'
 ORDER BY 1;

-- columns and arguments that users rely on
\pset format unaligned
SELECT c.relname AS view, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind = 'v'
 ORDER BY 1, a.attnum;
SELECT p.proname AS function, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
  FROM pg_proc p
 WHERE p.pronamespace = 'etl'::regnamespace AND p.prorettype <> 'internal'::regtype
   AND NOT has_function_privilege('pg_monitor', p.oid, 'EXECUTE')
 ORDER BY 1;
\pset format aligned

-- away and back in one session, also rolled back
BEGIN;
DROP EXTENSION etl;
ROLLBACK;
SELECT count(*) FROM etl.status;
DROP EXTENSION etl;
SELECT to_regnamespace('etl') IS NULL AS gone;
CREATE EXTENSION etl;
SELECT count(*) FROM etl.status;
DROP EXTENSION etl;
BEGIN;
CREATE EXTENSION etl;
ROLLBACK;
SELECT to_regnamespace('etl') IS NULL AS gone;

-- somebody else's schema of that name
CREATE SCHEMA etl;
DO $$
BEGIN
    CREATE EXTENSION etl;
EXCEPTION WHEN duplicate_schema THEN
    DECLARE
        hint text;
    BEGIN
        GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
        RAISE NOTICE '%: % / %', sqlstate, sqlerrm, hint;
    END;
END
$$;
DROP SCHEMA etl;
