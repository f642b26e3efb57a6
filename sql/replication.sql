-- One pipeline from its start to its end, to the kind that discards.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE TABLE u (id int PRIMARY KEY);
CREATE TABLE empty (id int PRIMARY KEY);
INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g;
INSERT INTO u SELECT generate_series(1, 10);
CREATE PUBLICATION pub FOR TABLE t, empty;
SELECT etl.create_pipeline('p', 'pub', 'dest');
SELECT etl.start_pipeline('p');
SELECT etl.wait_for('p');
SELECT pipeline, state, lag < '10 s' AS lag, parked, problem FROM etl.status;
SELECT source, state, rows_copied, percent, generation, inserts FROM etl.table_status ORDER BY 1;
SELECT enabled, state, healthy, problem, waiting_for, pid IS NOT NULL AS apply, writer_pid IS NOT NULL AS writer,
       slot_name ~ '^etl_[0-9]+_[0-9a-f]{8}$' AS slot, wal_status, lag < '10 s' AS lag, tables_total, tables_ready, rows_copied
  FROM etl.pipeline_status;

-- changes
INSERT INTO t VALUES (1001, 'x');
UPDATE t SET a = 'y' WHERE id <= 10;
DELETE FROM t WHERE id = 5;
TRUNCATE empty;
SELECT etl.wait_for('p');
SELECT source, inserts, updates, deletes, truncates FROM etl.table_status ORDER BY 1;
-- starting again changes nothing
SELECT incarnation FROM etl.shared_pipelines() \gset
SELECT etl.start_pipeline('p');
SELECT etl.wait_for('p');
SELECT incarnation = :incarnation AS same FROM etl.shared_pipelines();

-- up to a position
SELECT pg_current_wal_insert_lsn() AS before \gset
INSERT INTO t VALUES (1002, 'z');
SELECT etl.wait_for('p', lsn => :'before');
SELECT etl.wait_for('p', lsn => 'FFFFFFFF/0', timeout => '50 ms');

-- a table enters the publication and counts for who waits
ALTER PUBLICATION pub ADD TABLE u;
SELECT etl.wait_for('p');
SELECT source, state, rows_copied FROM etl.table_status ORDER BY 1;

-- copies again
SELECT etl.resync_table('p', 't');
SELECT etl.wait_for('p');
SELECT source, state, generation, rows_copied FROM etl.table_status ORDER BY 1;
SELECT etl.resync_pipeline('p');
SELECT etl.wait_for('p');
SELECT source, state, generation, rows_copied FROM etl.table_status ORDER BY 1;

-- options and name while running
SELECT etl.alter_pipeline('p', '{"max_batch_delay": "1h"}');
INSERT INTO u VALUES (11);
SELECT etl.wait_for('p');
SELECT etl.alter_pipeline('p', '{"max_batch_delay": null}');
SELECT etl.wait_for('p');
SELECT incarnation FROM etl.shared_pipelines() \gset
ALTER SERVER dest OPTIONS (ADD max_batch_events '3');
SELECT etl.wait_for('p');
SELECT incarnation > :incarnation AS new_options_taken FROM etl.shared_pipelines();
SELECT etl.rename_pipeline('p', 'q');
INSERT INTO u VALUES (12);
SELECT etl.wait_for('q');
SELECT source, inserts FROM etl.table_status WHERE source = 'u'::regclass;
SELECT pipeline, state FROM etl.status;

-- what the pipeline uses stays
SELECT try($$DROP SERVER dest$$);

-- a session with an old snapshot asks for the world outside
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM u;
SELECT etl.wait_for('q');
COMMIT;

-- stop
SELECT etl.stop_pipeline('q');
CALL eventually($$SELECT state = 'stopped' AND pid IS NULL AND writer_pid IS NULL FROM etl.pipeline_status$$);
SELECT try($$SELECT etl.wait_for('q')$$);
INSERT INTO u VALUES (13);
SELECT enabled, state, healthy, rows_copied, delivered_lsn IS NOT NULL AS delivered, lag_bytes > 0 AS behind, lag
  FROM etl.pipeline_status;
SELECT active FROM pg_replication_slots WHERE plugin = 'etl' AND database = current_database();
SELECT source, inserts FROM etl.table_status WHERE source = 'u'::regclass;
SELECT etl.start_pipeline('q');
SELECT etl.wait_for('q');
SELECT source, inserts FROM etl.table_status WHERE source = 'u'::regclass;

-- the end
SELECT etl.drop_pipeline('q', drop_tables => true);
CALL eventually($$SELECT count(*) = 0 FROM etl.status$$);
SELECT count(*) FROM pg_replication_slots WHERE plugin = 'etl' AND database = current_database();
SELECT (SELECT count(*) FROM etl.pipeline_state) + (SELECT count(*) FROM etl.table_state)
       + (SELECT count(*) FROM etl.rule_history) + (SELECT count(*) FROM etl.schema_history)
       + (SELECT count(*) FROM etl.table_intent) + (SELECT count(*) FROM etl.pipeline_intent) AS rows_left;
SELECT count(*) FROM etl.shared_pipelines();

DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t, u, empty;
DROP FUNCTION try;
DROP PROCEDURE eventually;
