-- Without shared_preload_libraries: definitions work, nothing runs, and what
-- would have to run says so.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
-- silence
LOAD 'etl';
SHOW shared_preload_libraries;
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
SELECT try($$ALTER SERVER dest OPTIONS (ADD colour 'red')$$);
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t;
SELECT etl.create_pipeline('p', 'pub', 'dest', '{"on_error": "stop"}');
SELECT etl.alter_pipeline('p', '{"on_error": null}');
SELECT etl.rename_pipeline('p', 'q');
SELECT etl.alter_table('q', 't', '{"copy_data": false}');
SELECT etl.rename_pipeline('q', 'p');
SELECT * FROM etl.status;
SELECT pipeline, enabled, state, healthy FROM etl.pipeline_status;
SELECT count(*) FROM etl.table_status;
SELECT count(*) FROM etl.error_log;
SELECT count(*) > 0 AS settings FROM etl.settings WHERE scope = 'setting';
SELECT count(*) > 0 AS metrics FROM etl.metrics;
SELECT component FROM etl.build_info();
SELECT severity, check_name, message FROM etl.validate_pipeline('p') WHERE check_name IN ('preloaded', 'destination_connect');
SELECT check_name, ok, message FROM etl.test_destination('dest');

SELECT try($$SELECT etl.start_pipeline('p')$$);
SELECT try($$SELECT etl.stop_pipeline('p')$$);
SELECT try($$SELECT etl.drop_pipeline('p')$$);
SELECT try($$SELECT etl.retry_table('p')$$);
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.resync_pipeline('p')$$);
SELECT try($$SELECT etl.wait_for('p')$$);
-- as after a restart without the library
UPDATE etl.pipeline_intent SET enabled = true;
SELECT * FROM etl.status;

DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t;
DROP FUNCTION try;
DROP PROCEDURE eventually;
