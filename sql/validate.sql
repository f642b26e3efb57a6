-- etl.validate_pipeline() and etl.test_destination().
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE ROLE regress_etl_owner REPLICATION;
CREATE ROLE regress_etl_plain;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE SERVER nobody_there FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/');
CREATE SERVER forbidden FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://169.254.169.254/');
CREATE FOREIGN DATA WRAPPER regress_etl_other;
CREATE SERVER other FOREIGN DATA WRAPPER regress_etl_other;
CREATE PUBLICATION pub;
SELECT etl.create_pipeline('p', 'pub', 'dest');

-- what depends on how this server is set up is tested elsewhere
CREATE FUNCTION findings(pipeline text, OUT severity text, OUT check_name text, OUT target text, OUT message text, OUT hint text)
    RETURNS SETOF record LANGUAGE sql AS $$
    SELECT v.severity, v.check_name, v.target, v.message, v.hint
      FROM etl.validate_pipeline(findings.pipeline) v
     WHERE v.check_name NOT IN ('free_workers', 'free_replication_slots', 'output_plugin_libraries',
                                'slot_retention_unlimited', 'slot_retention_low')
$$;

-- arguments
SELECT try($$SELECT * FROM etl.validate_pipeline(NULL)$$);
SELECT try($$SELECT * FROM etl.validate_pipeline('nothing')$$);
SELECT try($$SELECT * FROM etl.test_destination(NULL)$$);
SELECT try($$SELECT * FROM etl.test_destination('nothing')$$);
SELECT try($$SELECT * FROM etl.test_destination('other')$$);

-- an empty publication is worth a word, a missing one an error
SELECT * FROM findings('p');
CREATE TABLE good (id int PRIMARY KEY, a text);
ALTER PUBLICATION pub ADD TABLE good;
SELECT * FROM findings('p');
DROP PUBLICATION pub;
SELECT * FROM findings('p');

-- tables
CREATE TABLE keyless (a text);
CREATE TABLE nothing (id int PRIMARY KEY);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE everything (a text);
ALTER TABLE everything REPLICA IDENTITY FULL;
CREATE TABLE listed (id int PRIMARY KEY, a text, b text);
CREATE TABLE "Odd name" (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE keyless, nothing, everything, listed (a), "Odd name", good;
SELECT * FROM findings('p') ORDER BY 2, 3;
ALTER PUBLICATION pub SET (publish = 'insert');
SELECT * FROM findings('p') ORDER BY 2, 3;
SELECT etl.alter_pipeline('p', '{"generated_columns": false}');
SELECT * FROM findings('p') WHERE check_name = 'generated_columns';
DROP PUBLICATION pub;
DROP TABLE keyless, nothing, everything, listed, "Odd name";

-- the extension's own, and what cannot be replicated
CREATE PUBLICATION pub FOR ALL TABLES;
SELECT severity, check_name, target, message ~ '^the publication has \d+ of the extension''s own tables' AS message
  FROM findings('p') WHERE check_name <> 'not_replicable';
SELECT * FROM findings('p') WHERE check_name = 'not_replicable';
DROP PUBLICATION pub;
DROP TABLE unlogged;

-- rights of the owner
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO regress_etl_owner, regress_etl_plain;
CREATE PUBLICATION pub FOR TABLE good;
SET ROLE regress_etl_plain;
SELECT try($$SELECT * FROM etl.validate_pipeline('p')$$);
SELECT try($$SELECT * FROM etl.test_destination('dest')$$);
SET ROLE regress_etl_owner;
SELECT try($$SELECT * FROM etl.validate_pipeline('p')$$);
SELECT try($$SELECT * FROM etl.test_destination('dest')$$);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER dest TO regress_etl_owner;
SET ROLE regress_etl_owner;
SELECT check_name, ok, message FROM etl.test_destination('dest');
SELECT etl.create_pipeline('owned', 'pub', 'dest');
RESET ROLE;
SELECT * FROM findings('owned');
GRANT SELECT (id) ON good TO regress_etl_owner;
SELECT * FROM findings('owned');
GRANT SELECT ON good TO regress_etl_owner;
SELECT * FROM findings('owned');
ALTER TABLE good ENABLE ROW LEVEL SECURITY;
SELECT * FROM findings('owned');
ALTER ROLE regress_etl_owner BYPASSRLS;
SELECT * FROM findings('owned');
REVOKE USAGE ON FOREIGN SERVER dest FROM regress_etl_owner;
SELECT * FROM findings('owned');
GRANT USAGE ON FOREIGN SERVER dest TO regress_etl_owner;
ALTER ROLE regress_etl_owner NOREPLICATION;
SELECT * FROM findings('owned');
ALTER TABLE good DISABLE ROW LEVEL SECURITY;

-- the destination
SELECT check_name, ok, message FROM etl.test_destination('dest');
SELECT check_name, ok, message FROM etl.test_destination('nobody_there');
SELECT check_name, ok, message FROM etl.test_destination('forbidden');
SELECT bool_and(elapsed >= interval '0' AND elapsed < interval '10 seconds') AS elapsed
  FROM etl.test_destination('nobody_there');
SELECT etl.create_pipeline('down', 'pub', 'nobody_there');
SELECT * FROM findings('down');

-- what is not committed cannot be tested, before and after
BEGIN;
CREATE SERVER fresh FOREIGN DATA WRAPPER etl_null;
SELECT check_name, ok, message FROM etl.test_destination('fresh');
SELECT etl.create_pipeline('fresh', 'pub', 'dest');
SELECT * FROM findings('fresh');
ALTER SERVER nobody_there OPTIONS (SET url 'http://127.0.0.1:2/');
SELECT check_name, ok, message FROM etl.test_destination('nobody_there');
ROLLBACK;
BEGIN;
CREATE USER MAPPING FOR CURRENT_USER SERVER nobody_there OPTIONS (user 'u', password 'hush');
SELECT check_name, ok, message FROM etl.test_destination('nobody_there');
ROLLBACK;

-- no secret in any answer
CREATE USER MAPPING FOR CURRENT_USER SERVER nobody_there OPTIONS (user 'u', password 'hush', headers '{"X-Key": "hush"}');
SELECT count(*) FROM etl.test_destination('nobody_there') t WHERE t::text LIKE '%hush%';
SELECT count(*) FROM etl.validate_pipeline('down') t WHERE t::text LIKE '%hush%';

-- on its way out
BEGIN;
SELECT etl.drop_pipeline('p');
SELECT try($$SELECT * FROM etl.validate_pipeline('p')$$);
ROLLBACK;

SET client_min_messages = warning;
DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE good;
DROP FOREIGN DATA WRAPPER regress_etl_other CASCADE;
DROP ROLE regress_etl_owner, regress_etl_plain;
DROP FUNCTION try, findings;
DROP PROCEDURE eventually;
