-- etl.create_pipeline()
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/');
CREATE FOREIGN DATA WRAPPER regress_other;
CREATE SERVER other FOREIGN DATA WRAPPER regress_other;
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE PUBLICATION pub FOR TABLE t;

-- what is right
SELECT etl.create_pipeline('first', 'pub', 'dest');
SELECT etl.create_pipeline('second', publication => 'pub', destination => 'hook',
                           options => '{"max_batch_size": "256kB", "max_batch_delay": 250, "on_error": "stop", "copy_data": false}');
SELECT id, name, owner = current_user::regrole AS mine, publication, server, options FROM etl.pipeline ORDER BY id;
SELECT * FROM etl.status;
SELECT pipeline, kind, enabled, state, healthy FROM etl.pipeline_status ORDER BY 1;

-- names
SELECT try($$SELECT etl.create_pipeline('', 'pub', 'dest')$$);
SELECT try(format('SELECT etl.create_pipeline(%L, %L, %L)', repeat('x', 64), 'pub', 'dest'));
SELECT try(format('SELECT etl.create_pipeline(%L, %L, %L)', repeat('x', 63), 'pub', 'dest'));
SELECT try($$SELECT etl.create_pipeline('first', 'pub', 'dest')$$);
SELECT etl.create_pipeline('first', 'pub', 'dest', if_not_exists => true);
SELECT etl.create_pipeline('first', 'nopub', 'nodest', if_not_exists => true);

-- what is missing or wrong
SELECT try($$SELECT etl.create_pipeline('p', 'nopub', 'dest')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'nodest')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'other')$$);

-- NULL
SELECT try($$SELECT etl.create_pipeline(NULL, 'pub', 'dest')$$);
SELECT try($$SELECT etl.create_pipeline('p', NULL, 'dest')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', NULL)$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', NULL)$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{}', NULL)$$);

-- options
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"colour": "red"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hook', '{"url": "http://h/"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"format": "ndjson"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"destination_table": "x"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_copy_workers": 2}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"value_policy": "null"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '[]')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '"x"')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": "8 parsecs"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": 0}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": true}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": [1]}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_size": 1e99}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_delay": "1 fortnight"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"copy_data": "maybe"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"copy_data": 1}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"on_error": "skip"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"on_error": 1}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_sync_workers": 1000}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hook', '{"events": "insert"}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hook', '{"events": [1]}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hook', '{"events": ["insert", "explode"]}')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hook', '{"format": "xml"}')$$);
-- not JSON at all is the type's own error
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest', '{"a"')$$);

-- nothing is left of what failed
SELECT name FROM etl.pipeline ORDER BY id;

-- rolled back, also by a savepoint
BEGIN;
SELECT etl.create_pipeline('gone', 'pub', 'dest') > 0 AS created;
SAVEPOINT s;
SELECT etl.create_pipeline('gone too', 'pub', 'dest') > 0 AS created;
ROLLBACK TO s;
ROLLBACK;
BEGIN READ ONLY;
SELECT etl.create_pipeline('p', 'pub', 'dest');
ROLLBACK;
SELECT count(*) FROM etl.pipeline WHERE name LIKE 'gone%';

DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t;
DROP FOREIGN DATA WRAPPER regress_other CASCADE;
DROP FUNCTION try;
DROP PROCEDURE eventually;
