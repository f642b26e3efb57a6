-- etl.alter_pipeline(), etl.rename_pipeline(), etl.alter_table()
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/');
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE VIEW v AS SELECT * FROM t;
CREATE PUBLICATION pub FOR TABLE t;
SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": "1MB"}');
SELECT etl.create_pipeline('h', 'pub', 'hook');

-- merge; null is back to the default
SELECT etl.alter_pipeline('p', '{"max_batch_delay": "250ms", "on_error": "stop"}');
SELECT options FROM etl.pipeline WHERE name = 'p';
SELECT etl.alter_pipeline('p', '{"max_batch_size": null, "on_error": "PARK"}');
SELECT options FROM etl.pipeline WHERE name = 'p';
SELECT etl.alter_pipeline('p', '{"retry_delay": null}');
SELECT etl.alter_pipeline('p', '{}');
SELECT options FROM etl.pipeline WHERE name = 'p';
SELECT etl.alter_pipeline('h', '{"events": ["insert", "delete"], "format": "ndjson"}');
SELECT options FROM etl.pipeline WHERE name = 'h';

-- nothing half-applied
SELECT try($$SELECT etl.alter_pipeline('p', '{"max_batch_delay": "1s", "colour": "red"}')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{"max_batch_delay": "1s", "on_error": "explode"}')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{"colour": null}')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '[1]')$$);
SELECT try($$SELECT etl.alter_pipeline('nobody', '{}')$$);
SELECT try($$SELECT etl.alter_pipeline(NULL, '{}')$$);
SELECT try($$SELECT etl.alter_pipeline('p', NULL)$$);
SELECT options FROM etl.pipeline WHERE name = 'p';

-- rename
SELECT etl.rename_pipeline('p', 'Pipe "line"');
SELECT id, name FROM etl.pipeline ORDER BY id;
SELECT try($$SELECT etl.rename_pipeline('p', 'q')$$);
SELECT try($$SELECT etl.rename_pipeline('h', 'Pipe "line"')$$);
SELECT try($$SELECT etl.rename_pipeline('h', '')$$);
SELECT try(format('SELECT etl.rename_pipeline(%L, %L)', 'h', repeat('ä', 32)));
SELECT try($$SELECT etl.rename_pipeline(NULL, 'q')$$);
SELECT try($$SELECT etl.rename_pipeline('h', NULL)$$);
SELECT etl.rename_pipeline('Pipe "line"', 'p');

-- options of a table, also before the first start
SELECT etl.alter_table('p', 't', '{"copy_data": false}');
SELECT * FROM etl.table_option;
SELECT etl.alter_table('p', 't', '{"on_error": "stop"}');
SELECT * FROM etl.table_option;
SELECT scope, name, value, source FROM etl.settings WHERE scope LIKE '%table%' ORDER BY 2;
SELECT etl.alter_table('p', 't', '{"on_error": null, "copy_data": null}');
SELECT * FROM etl.table_option;
SELECT try($$SELECT etl.alter_table('p', 't', '{"max_batch_size": "1MB"}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"destination_table": "x"}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"copy_data": "x"}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{"copy_data": [true]}')$$);
SELECT try($$SELECT etl.alter_table('p', 'v', '{}')$$);
SELECT try($$SELECT etl.alter_table('p', 'nothing', '{}')$$);
SELECT try($$SELECT etl.alter_table('p', 4294967295::oid::regclass, '{}')$$);
SELECT try($$SELECT etl.alter_table('nobody', 't', '{}')$$);
SELECT try($$SELECT etl.alter_table(NULL, 't', '{}')$$);
SELECT try($$SELECT etl.alter_table('p', NULL, '{}')$$);
SELECT try($$SELECT etl.alter_table('p', 't', NULL)$$);
SELECT * FROM etl.table_option;

SET client_min_messages = warning;
DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP VIEW v;
DROP TABLE t;
DROP FUNCTION try;
DROP PROCEDURE eventually;
