-- start, stop, drop, retry, resync: what is refused, and what is written at
-- which moment.  Whatever would start a worker is rolled back here.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE PUBLICATION pub FOR TABLE t;
SELECT etl.create_pipeline('p', 'pub', 'dest');

-- unknown, NULL
SELECT try($$SELECT etl.start_pipeline('nobody')$$);
SELECT try($$SELECT etl.start_pipeline(NULL)$$);
SELECT try($$SELECT etl.stop_pipeline('nobody')$$);
SELECT try($$SELECT etl.stop_pipeline(NULL)$$);
SELECT try($$SELECT etl.drop_pipeline('nobody')$$);
SELECT try($$SELECT etl.drop_pipeline(NULL)$$);
SELECT try($$SELECT etl.drop_pipeline('p', drop_tables => NULL)$$);
SELECT try($$SELECT etl.drop_pipeline('p', if_exists => NULL)$$);
SELECT try($$SELECT etl.drop_pipeline('p', force => NULL)$$);
SELECT etl.drop_pipeline('nobody', if_exists => true);
SELECT try($$SELECT etl.retry_table('nobody')$$);
SELECT try($$SELECT etl.retry_table(NULL)$$);
SELECT try($$SELECT etl.resync_table('nobody', 't')$$);
SELECT try($$SELECT etl.resync_table(NULL, 't')$$);
SELECT try($$SELECT etl.resync_table('p', NULL)$$);
SELECT try($$SELECT etl.resync_pipeline('nobody')$$);
SELECT try($$SELECT etl.resync_pipeline(NULL)$$);

-- tables that the pipeline does not know (it was never started)
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.retry_table('p', 't')$$);
SELECT try($$SELECT etl.retry_table('p', 4294967295::oid::regclass)$$);
SELECT try($$SELECT etl.resync_table('p', 'nothing')$$);
SELECT etl.retry_table('p');

-- intent is written, and taken back by a rollback
BEGIN;
SELECT etl.start_pipeline('p');
SELECT etl.start_pipeline('p');
SELECT enabled, start_requests FROM etl.pipeline_intent;
SELECT pipeline, enabled, state FROM etl.pipeline_status;
SELECT etl.stop_pipeline('p');
SELECT enabled, start_requests FROM etl.pipeline_intent;
SELECT etl.resync_pipeline('p');
SELECT resync_requests FROM etl.pipeline_intent;
SELECT etl.drop_pipeline('p', drop_tables => true);
SELECT dropping, drop_tables, force FROM etl.pipeline_intent;
SELECT * FROM etl.status;
SELECT etl.drop_pipeline('p', force => true);
SELECT dropping, drop_tables, force FROM etl.pipeline_intent;
-- nothing else can be done with it then
SELECT try($$SELECT etl.start_pipeline('p')$$);
SELECT try($$SELECT etl.stop_pipeline('p')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{}')$$);
SELECT try($$SELECT etl.rename_pipeline('p', 'q')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{}')$$);
SELECT try($$SELECT etl.retry_table('p')$$);
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.resync_pipeline('p')$$);
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest')$$);
ROLLBACK;
SELECT enabled, dropping, start_requests, resync_requests FROM etl.pipeline_intent;
SELECT * FROM etl.status;

-- a savepoint too
BEGIN;
SAVEPOINT s;
SELECT etl.start_pipeline('p');
ROLLBACK TO s;
SELECT enabled FROM etl.pipeline_intent;
COMMIT;

-- what waits for commit cannot be prepared
BEGIN;
SELECT etl.start_pipeline('p');
PREPARE TRANSACTION 'regress';
SELECT enabled FROM etl.pipeline_intent;

-- a server in use stays
SELECT try($$DROP SERVER dest$$);

-- stopping what is stopped is no error
SELECT etl.stop_pipeline('p');
SELECT * FROM etl.status;

-- waiting
SELECT try($$SELECT etl.wait_for('p')$$);
SELECT try($$SELECT etl.wait_for('nobody')$$);
SELECT try($$SELECT etl.wait_for(NULL)$$);
SELECT try($$SELECT etl.wait_for('p', timeout => NULL)$$);
SELECT try($$SELECT etl.wait_for('p', timeout => '-1 second')$$);
SELECT try($$SELECT etl.wait_for('p', allow_parked => NULL)$$);
BEGIN;
INSERT INTO t VALUES (1, 'a');
SELECT etl.wait_for('p');
ROLLBACK;

-- dropped at once when it never ran
SELECT etl.drop_pipeline('p');
CALL eventually($$SELECT count(*) = 0 FROM etl.status$$);
SELECT (SELECT count(*) FROM etl.pipeline) AS pipelines,
       (SELECT count(*) FROM etl.pipeline_intent) AS intents;
DROP SERVER dest;

DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t;
DROP FUNCTION try;
DROP PROCEDURE eventually;
