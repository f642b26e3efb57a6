-- What the views say of states that are stored (no worker runs here), and
-- the settings and metrics.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null OPTIONS (max_batch_events '50');
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE TABLE gone (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE t;
SELECT etl.create_pipeline('p', 'pub', 'dest', '{"max_batch_delay": "1s"}');

-- never started
SELECT pipeline, publication, destination, kind, enabled, state, healthy, problem, lag_bytes, lag, tables_total, changes
  FROM etl.pipeline_status;

-- as if it had run and was stopped
INSERT INTO etl.pipeline_state (pipeline_id, system_identifier, database_oid, timeline, slot_name, durable_lsn,
                                transactions, changes, rows_copied, bytes_sent, batches, retries, last_delivery_time)
    VALUES (1, 1, 1, 1, 'etl_regress', '0/1', 5, 6, 7, 8, 9, 10, now());
INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state, generation, owned_generation, owned_from,
                             rows_copied, inserts, updates, deletes, truncates)
    VALUES (1, 't'::regclass, 'public', 't', 'ready', 1, 1, '0/1', 7, 1, 2, 3, 4);
INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state, generation, recovery,
                             sqlstate, error, hint, error_lsn, error_ordinal, error_time)
    VALUES (1, 'gone'::regclass, 'public', 'gone', 'errored', 2, 'resync',
            '22003', 'value out of range', 'Use a wider column.', '0/2', 3, now());
INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state, excluded_reason)
    VALUES (1, 4294967295, 'public', 'temporary', 'excluded', 'temporary');
INSERT INTO etl.schema_history (pipeline_id, relid, generation, version, from_lsn, shape)
    VALUES (1, 't'::regclass, 1, 1, '0/1', ''), (1, 't'::regclass, 1, 2, '0/2', '');
INSERT INTO etl.error_entry (pipeline_id, relid, schema_name, table_name, sqlstate, message, lsn, ordinal)
    VALUES (1, NULL, NULL, NULL, '08006', 'could not connect', NULL, NULL),
           (1, 'gone'::regclass, 'public', 'gone', '22003', 'value out of range', '0/2', 3);
SELECT * FROM etl.status;
SELECT state, healthy, problem, slot_name, delivered_lsn, lag_bytes > 0 AS behind, lag,
       tables_total, tables_ready, tables_syncing, tables_parked,
       transactions, changes, rows_copied, bytes_sent, batches, retries, last_error
  FROM etl.pipeline_status;
SELECT source, schema_name, table_name, state, recovery, schema_version, generation, owned_from, rows_copied, percent,
       inserts, updates, deletes, truncates, excluded_reason, sqlstate, error, hint, error_lsn, error_ordinal,
       error_time IS NOT NULL AS error_time, retry_policy, attempts, next_retry_time
  FROM etl.table_status ORDER BY table_name;
SELECT pipeline, source, sqlstate, message, hint, lsn, ordinal FROM etl.error_log;

-- a table that is gone shows as its OID
DROP TABLE gone;
SELECT source::text ~ '^[0-9]+$' AS is_number, table_name FROM etl.table_status WHERE table_name = 'gone';
SELECT source::text ~ '^[0-9]+$' AS is_number, message FROM etl.error_log WHERE table_name = 'gone';
UPDATE etl.table_state SET state = 'dropped' WHERE table_name = 'gone';
SELECT state, recovery, error, retry_policy FROM etl.table_status WHERE table_name = 'gone';

-- it failed
UPDATE etl.pipeline_state SET failed_sqlstate = '55000', failed_message = 'the slot is missing';
SELECT * FROM etl.status;
BEGIN;
UPDATE etl.pipeline_intent SET enabled = true;
SELECT pipeline, state, problem FROM etl.status;
-- and is asked to start again
UPDATE etl.pipeline_intent SET start_requests = 1;
SELECT pipeline, state FROM etl.status;
ROLLBACK;

-- retries and resyncs are counted in intent
UPDATE etl.table_state SET state = 'errored' WHERE table_name = 'gone';
SELECT relid AS gone FROM etl.table_state WHERE table_name = 'gone' \gset
BEGIN;
SELECT etl.retry_table('p');
SELECT etl.retry_table('p', :gone::oid::regclass);
SELECT etl.retry_table('p', 't');
SELECT etl.resync_table('p', 't');
SELECT s.table_name, i.resync_requests, i.retry_requests
  FROM etl.table_intent i JOIN etl.table_state s USING (pipeline_id, relid) ORDER BY 1;
SELECT try($$SELECT etl.resync_table('p', 4294967295::oid::regclass)$$);
ROLLBACK;
SELECT count(*) FROM etl.table_intent;

-- settings: all of them, each with a sentence
SELECT name, value, unit, default_value, min_val, max_val FROM etl.settings WHERE scope = 'setting' AND name <> 'failpoint' ORDER BY name;
SELECT scope, name, value, unit, source, default_value, min_val, max_val, enumvals
  FROM etl.settings WHERE scope LIKE 'kind %' ORDER BY scope, name;
SELECT name, value, source FROM etl.settings WHERE scope = 'pipeline p' AND source <> 'setting' ORDER BY name;
SELECT count(*) AS without_comment FROM etl.settings WHERE coalesce(comment, '') !~ '^[A-Z].*\.$';

-- metrics: names with a unit, numbers that are numbers
SELECT DISTINCT name, type, help FROM etl.metrics ORDER BY name;
SELECT count(*) FROM etl.metrics WHERE name !~ '^etl_[a-z_]+_(bytes|seconds|total)$' OR type NOT IN ('gauge', 'counter');
SELECT name, labels, value FROM etl.metrics WHERE name ~ '_changes_total$' ORDER BY name, labels::text;
SELECT count(*) - count(DISTINCT (name, labels)) AS doubles FROM etl.metrics;

-- the definition is there, the server is not
BEGIN;
UPDATE etl.pipeline SET server = 'vanished';
SELECT pipeline, state, problem FROM etl.status;
UPDATE etl.pipeline_intent SET enabled = true;
UPDATE etl.pipeline_state SET failed_sqlstate = NULL;
SELECT pipeline, problem FROM etl.status;
SELECT count(*) FROM etl.settings WHERE scope = 'pipeline p';
ROLLBACK;

DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t;
DROP FUNCTION try;
DROP PROCEDURE eventually;
