-- etl.plan(): what a start would make.  etl.column_status: what was made.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER house FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'Odd `lake');
CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/');
CREATE SERVER nowhere FOREIGN DATA WRAPPER etl_null;
CREATE TABLE t (id int PRIMARY KEY, gone int, n numeric(12,2), "Odd `name" text, h int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE t DROP COLUMN gone;
CREATE TABLE keyless (a int, b timestamptz NOT NULL);
CREATE TABLE reserved (id int PRIMARY KEY, _etl_version int);
CREATE TABLE listed (id int PRIMARY KEY, hidden int, v text NOT NULL);
CREATE PUBLICATION pub FOR TABLE t, listed (id, v);
CREATE PUBLICATION others FOR TABLE keyless, reserved;
SELECT etl.create_pipeline('p', 'pub', 'house');
SELECT etl.create_pipeline('q', 'pub', 'hook');
SELECT etl.create_pipeline('r', 'pub', 'nowhere');
SELECT etl.create_pipeline('s', 'others', 'house');

SELECT source, destination_table, source_column, source_type, destination_column, destination_type, value_policy, ddl
  FROM etl.plan('p');
-- with options of table and column
SELECT etl.alter_table('p', 't', '{"destination_table": "shop", "generated_columns": false, "partition_by": "id % 4"}');
SELECT etl.alter_column('p', 't', 'n', '{"destination_column": "amount", "destination_type": "Nullable(Decimal(38, 9))"}');
SELECT source, destination_table, source_column, destination_column, destination_type, ddl FROM etl.plan('p');
SELECT etl.alter_table('p', 't', '{"engine": "merge_tree", "partition_by": null}');
SELECT destination_column, destination_type, ddl FROM etl.plan('p');
-- a receiver has no tables, but types
SELECT source, destination_table, source_column, source_type, destination_column, destination_type, ddl FROM etl.plan('q');
SELECT etl.alter_column('q', 't', 'n', '{"numeric_as": "number"}');
SELECT source_column, destination_type FROM etl.plan('q');
SELECT source, source_column, destination_column, destination_type, ddl FROM etl.plan('r');
-- what would be set aside, or is never replicated, is not made
SELECT source, destination_table, source_column FROM etl.plan('s');
SELECT etl.alter_pipeline('s', '{"engine": "merge_tree"}');
SELECT etl.alter_column('s', 'reserved', '_etl_version', '{"destination_column": "version"}');
SELECT source, destination_table, source_column, destination_column FROM etl.plan('s');

-- touches nothing
SELECT count(*) FROM etl.table_state;
SELECT slot_name FROM etl.pipeline_status;

-- who may not, and what is not there
SELECT try($$SELECT etl.plan(NULL)$$);
SELECT try($$SELECT etl.plan('nobody')$$);
DROP PUBLICATION others;
SELECT try($$SELECT etl.plan('s')$$);
CREATE ROLE regress_etl_plain;
CREATE ROLE regress_etl_other REPLICATION;
SET ROLE regress_etl_plain;
SELECT try($$SELECT etl.plan('p')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION etl.plan(text) TO regress_etl_plain, regress_etl_other;
SET ROLE regress_etl_plain;
SELECT try($$SELECT etl.plan('p')$$);
RESET ROLE;
SET ROLE regress_etl_other;
SELECT try($$SELECT etl.plan('p')$$);
RESET ROLE;

-- column_status, as if a copy were under way: the table as it is
INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state, generation)
    VALUES (1, 't'::regclass, 'public', 't', 'data_sync', 1), (2, 't'::regclass, 'public', 't', 'init', 0),
           (1, 'keyless'::regclass, 'public', 'keyless', 'excluded', 0), (1, 4294967295, 'public', 'lost', 'init', 0);
INSERT INTO etl.column_state VALUES (1, 't'::regclass, 3, 42);
SELECT * FROM etl.column_status;
SET ROLE regress_etl_other;
SELECT count(*) FROM etl.column_status;
SELECT count(*) FROM etl.column_rows();
SELECT try($$SELECT * FROM etl.column_state$$);
RESET ROLE;
GRANT pg_monitor TO regress_etl_other;
SET ROLE regress_etl_other;
SELECT count(*) FROM etl.column_status;
RESET ROLE;
-- the server is gone: nobody knows
BEGIN;
UPDATE etl.pipeline SET server = 'vanished';
SELECT count(*) FROM etl.column_status;
ROLLBACK;

SET client_min_messages = warning;
DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t, listed, keyless, reserved;
DROP ROLE regress_etl_plain, regress_etl_other;
DROP FUNCTION try;
DROP PROCEDURE eventually;
