-- Options of single columns.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER house FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'd');
CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/');
CREATE SERVER nowhere FOREIGN DATA WRAPPER etl_null;
CREATE TABLE t (id int PRIMARY KEY, gone int, n numeric, d date, "Odd ""name" text, "_etl_x" int);
ALTER TABLE t DROP COLUMN gone;
CREATE TABLE hidden (id int PRIMARY KEY, "id 2" int);
CREATE VIEW v AS SELECT 1 AS a;
CREATE PUBLICATION pub FOR TABLE t, hidden (id);
SELECT etl.create_pipeline('p', 'pub', 'house');
SELECT etl.create_pipeline('q', 'pub', 'hook');
SELECT etl.create_pipeline('r', 'pub', 'nowhere');

-- merge; null is back to the default
SELECT etl.alter_column('p', 't', 'n', '{"destination_type": "Decimal(38, 9)", "value_policy": "clamp"}');
SELECT etl.alter_column('p', 't', 'n', '{"value_policy": "null", "destination_column": "amount"}');
SELECT etl.alter_column('p', 't', 'Odd "name', '{"destination_column": "Strange `name"}');
SELECT etl.alter_column('q', 't', 'id', '{"int8_as": "string"}');
SELECT schema_name, table_name, options, columns FROM etl.table_option ORDER BY pipeline_id, table_name;
SELECT scope, name, value, source, default_value FROM etl.settings WHERE scope LIKE '%, column %' ORDER BY scope, name;
SELECT etl.alter_column('p', 't', 'n', '{"destination_type": null}');
SELECT columns FROM etl.table_option WHERE pipeline_id = 1;
-- beside options of the table, which stay
SELECT etl.alter_table('p', 't', '{"value_policy": "clamp"}');
SELECT etl.alter_column('p', 't', 'n', '{"destination_column": null, "value_policy": null}');
SELECT options, columns FROM etl.table_option WHERE pipeline_id = 1;
SELECT scope, name, value, source FROM etl.settings WHERE scope LIKE '%, table %' ORDER BY scope, name;
SELECT etl.alter_column('p', 't', 'Odd "name', '{"destination_column": null}');
SELECT etl.alter_table('p', 't', '{"value_policy": null}');
SELECT count(*) FROM etl.table_option WHERE pipeline_id = 1;
-- nothing to change is no error
SELECT etl.alter_column('p', 't', 'n', '{}');
SELECT etl.alter_column('p', 't', 'n', '{"value_policy": null}');
SELECT count(*) FROM etl.table_option WHERE pipeline_id = 1;

-- columns that are none
SELECT try($$SELECT etl.alter_column('p', 't', 'nothing', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'gone', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '........pg.dropped.2........', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'odd "NAME', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'ctid', '{"value_policy": "null"}')$$);

-- tables and pipelines that are none
SELECT try($$SELECT etl.alter_column('p', 'v', 'a', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't_pkey', 'id', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 'nothing', 'id', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 4294967295::oid::regclass, 'id', '{}')$$);
SELECT try($$SELECT etl.alter_column('nobody', 't', 'id', '{}')$$);

-- NULL
SELECT try($$SELECT etl.alter_column(NULL, 't', 'n', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', NULL, 'n', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', NULL, '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', NULL)$$);

-- options: unknown, of another scope, of another kind, malformed
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"colour": "red"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"order_by": "id"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"max_batch_size": "1MB"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"int8_as": "string"}')$$);
SELECT try($$SELECT etl.alter_column('q', 't', 'n', '{"destination_type": "String"}')$$);
SELECT try($$SELECT etl.alter_column('q', 't', 'n', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('r', 't', 'n', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"value_policy": "ignore"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"value_policy": 1}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_type": ["String"]}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '["value_policy"]')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"destination_column": "x"}')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{"value_policy": "wish"}')$$);

-- a type that the column cannot be written as; a statement is no type
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_type": "UUID"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_type": "Zahl"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_type": ""}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_type": "String) ENGINE = Null --"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"value_policy": "null", "destination_type": "UUID"}')$$);

-- names that are reserved, or taken
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_column": "_etl_version"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '_etl_x', '{"destination_column": "_etl_y"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '_etl_x', '{"destination_column": "cdc_lsn"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '_etl_x', '{"destination_column": "etl_x"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', '_etl_x', '{"destination_column": null}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_column": "d"}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'n', '{"destination_column": ""}')$$);
-- that of a column which is not published is free
SELECT try($$SELECT etl.alter_column('p', 'hidden', 'id', '{"destination_column": "id 2"}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"order_by": "nothing"}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"order_by": "id, d"}')$$);

-- nothing of all that was stored
SELECT table_name, options, columns FROM etl.table_option WHERE pipeline_id = 1 ORDER BY table_name;
-- and a rollback undoes what was
BEGIN;
SELECT etl.alter_column('p', 't', 'd', '{"value_policy": "clamp"}');
ROLLBACK;
SELECT table_name, options, columns FROM etl.table_option WHERE pipeline_id = 1 ORDER BY table_name;

SET client_min_messages = warning;
DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP VIEW v;
DROP TABLE t, hidden;
DROP FUNCTION try;
DROP PROCEDURE eventually;
