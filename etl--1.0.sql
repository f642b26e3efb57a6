/* etl--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION etl" to load this file. \quit

DO $$
BEGIN
    IF pg_catalog.to_regnamespace('etl') IS NOT NULL THEN
        RAISE EXCEPTION 'schema "etl" already exists'
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'The extension creates this schema itself.  Supabase ETL keeps its state in a schema of that name: rename or drop it first.';
    END IF;
END
$$;

CREATE SCHEMA etl;
COMMENT ON SCHEMA etl IS 'replication of published tables to destinations';

----------------------------------------------------------------------------
-- Definitions: written by SQL functions, dumped by pg_dump
----------------------------------------------------------------------------

CREATE TABLE etl.pipeline (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    owner       regrole NOT NULL,
    publication name NOT NULL,
    server      name NOT NULL,
    options     jsonb NOT NULL DEFAULT '{}',
    created     timestamptz NOT NULL DEFAULT pg_catalog.now()
);
-- Ids of events begin with the pipeline's: they must not come again when the
-- extension is dropped and created anew.
SELECT pg_catalog.setval('etl.pipeline_id_seq',
                         (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint, false);
COMMENT ON TABLE etl.pipeline IS 'definitions of pipelines; use the functions of this schema to change them';

CREATE TABLE etl.table_option (
    pipeline_id bigint NOT NULL,
    schema_name name NOT NULL,
    table_name  name NOT NULL,
    options     jsonb NOT NULL DEFAULT '{}',    -- of the table
    columns     jsonb NOT NULL DEFAULT '{}',    -- column name -> its options
    PRIMARY KEY (pipeline_id, schema_name, table_name)
);
COMMENT ON TABLE etl.table_option IS 'options of single tables and columns';

----------------------------------------------------------------------------
-- Intent: written by SQL functions, read by workers, never dumped
----------------------------------------------------------------------------

CREATE TABLE etl.pipeline_intent (
    pipeline_id     bigint PRIMARY KEY,
    enabled         boolean NOT NULL DEFAULT false,
    dropping        boolean NOT NULL DEFAULT false,
    drop_tables     boolean NOT NULL DEFAULT false,
    force           boolean NOT NULL DEFAULT false,
    resync_requests bigint NOT NULL DEFAULT 0,
    start_requests  bigint NOT NULL DEFAULT 0       -- counts start_pipeline()
);
COMMENT ON TABLE etl.pipeline_intent IS 'what users want of a pipeline';

CREATE TABLE etl.table_intent (
    pipeline_id     bigint NOT NULL,
    relid           oid NOT NULL,
    resync_requests bigint NOT NULL DEFAULT 0,
    retry_requests  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (pipeline_id, relid)
);
COMMENT ON TABLE etl.table_intent IS 'what users want of a table: counters of requests';

----------------------------------------------------------------------------
-- Runtime: written by workers, never dumped
----------------------------------------------------------------------------

CREATE TABLE etl.pipeline_state (
    pipeline_id       bigint PRIMARY KEY,
    system_identifier bigint NOT NULL,
    database_oid      oid NOT NULL,
    timeline          bigint NOT NULL,
    data_directory    bigint NOT NULL DEFAULT 0,    -- its inode: another one is another copy of the files
    epoch             integer NOT NULL DEFAULT 0,
    publication_oid   oid,              -- as last followed: a publication may be renamed
    slot_name         name NOT NULL,
    slot_created      boolean NOT NULL DEFAULT false,
    resync_done       bigint NOT NULL DEFAULT 0,
    released_generation integer NOT NULL DEFAULT 0,     -- highest of tables that were let go of
    start_done        bigint NOT NULL DEFAULT 0,    -- start_requests that were acted on
    durable_lsn       pg_lsn,
    stopped_lsn       pg_lsn,           -- at most confirmed when it last stopped; NULL: it runs, or died
    failed_sqlstate   text,             -- NULL: not failed
    failed_message    text,
    failed_hint       text,
    transactions      bigint NOT NULL DEFAULT 0,
    changes           bigint NOT NULL DEFAULT 0,
    rows_copied       bigint NOT NULL DEFAULT 0,
    bytes_sent        bigint NOT NULL DEFAULT 0,
    batches           bigint NOT NULL DEFAULT 0,
    retries           bigint NOT NULL DEFAULT 0,
    last_commit_time  timestamptz,
    last_delivery_time timestamptz,
    counted_lsn       pg_lsn,           -- up to here column_state counts changes
    stats_reset       timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE etl.pipeline_state IS 'identity, slot and statistics of a pipeline';

CREATE TABLE etl.table_state (
    pipeline_id       bigint NOT NULL,
    relid             oid NOT NULL,
    schema_name       name NOT NULL,
    table_name        name NOT NULL,
    state             text NOT NULL,
    reason            text,             -- why the newest generation is made
    generation        integer NOT NULL DEFAULT 0,   -- newest started
    owned_generation  integer NOT NULL DEFAULT 0,   -- newest handed over
    owned_from        pg_lsn,           -- of owned_generation
    shape_hash        bigint NOT NULL DEFAULT 0,    -- of owned_generation
    resync_done       bigint NOT NULL DEFAULT 0,
    retry_done        bigint NOT NULL DEFAULT 0,
    destination_table text,
    excluded_reason   text,
    recovery          text,
    sqlstate          text,
    error             text,
    hint              text,
    error_lsn         pg_lsn,
    error_ordinal     bigint,
    error_time        timestamptz,
    attempts          integer NOT NULL DEFAULT 0,
    rows_copied       bigint NOT NULL DEFAULT 0,
    bytes_copied      bigint NOT NULL DEFAULT 0,
    rows_estimated    bigint NOT NULL DEFAULT 0,
    inserts           bigint NOT NULL DEFAULT 0,
    updates           bigint NOT NULL DEFAULT 0,
    deletes           bigint NOT NULL DEFAULT 0,
    truncates         bigint NOT NULL DEFAULT 0,
    last_change_time  timestamptz,
    last_delivered_lsn pg_lsn,
    PRIMARY KEY (pipeline_id, relid)
);
COMMENT ON TABLE etl.table_state IS 'state of each tracked table';

CREATE TABLE etl.rule_history (
    pipeline_id bigint NOT NULL,
    relid       oid NOT NULL,
    from_lsn    pg_lsn NOT NULL,
    rule        bytea NOT NULL,         -- serialised, see source/rules.h
    PRIMARY KEY (pipeline_id, relid, from_lsn)
);
COMMENT ON TABLE etl.rule_history IS 'versions of the publication''s rules, down to the confirmed position';

CREATE TABLE etl.schema_history (
    pipeline_id bigint NOT NULL,
    relid       oid NOT NULL,
    generation  integer NOT NULL,
    version     integer NOT NULL,
    from_lsn    pg_lsn NOT NULL,
    shape       bytea NOT NULL,         -- serialised, see schema/shape.h
    layout      text,                   -- of version 1: see catalog/option_layout.c
    recorded    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline_id, relid, generation, version)
);
COMMENT ON TABLE etl.schema_history IS 'versions of the shape of each table';

CREATE TABLE etl.column_state (
    pipeline_id bigint NOT NULL,
    relid       oid NOT NULL,
    attnum      smallint NOT NULL,
    adjusted    bigint NOT NULL,        -- values that went out as others, by policy
    PRIMARY KEY (pipeline_id, relid, attnum)
);
COMMENT ON TABLE etl.column_state IS 'statistics of columns that have any';

CREATE TABLE etl.destination_column (
    pipeline_id bigint NOT NULL,
    relid       oid NOT NULL,
    generation  integer NOT NULL,
    attnum      smallint NOT NULL,
    column_name text NOT NULL,
    column_type text NOT NULL,
    position    integer NOT NULL,
    PRIMARY KEY (pipeline_id, relid, generation, attnum)
);
COMMENT ON TABLE etl.destination_column IS 'columns that destinations really have (a cache)';

CREATE TABLE etl.error_entry (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id bigint NOT NULL,
    relid       oid,
    schema_name name,
    table_name  name,
    happened    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    sqlstate    text NOT NULL,
    message     text NOT NULL,
    hint        text,
    lsn         pg_lsn,
    ordinal     bigint
);
COMMENT ON TABLE etl.error_entry IS 'the newest errors of each pipeline';
CREATE INDEX error_entry_pipeline_id_id_idx ON etl.error_entry (pipeline_id, id);

CREATE TABLE etl.local_schema (
    schema_name name PRIMARY KEY
);
COMMENT ON TABLE etl.local_schema IS 'schemas of this database that hold a destination''s catalog: never replicated';

----------------------------------------------------------------------------
-- Kinds of destinations
----------------------------------------------------------------------------

CREATE FUNCTION etl.clickhouse_handler(internal) RETURNS internal
    LANGUAGE C AS 'MODULE_PATHNAME', 'etl_clickhouse_handler';
COMMENT ON FUNCTION etl.clickhouse_handler(internal) IS 'routine of kind clickhouse';

CREATE FUNCTION etl.clickhouse_validator(options text[], catalog oid) RETURNS void
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_clickhouse_validator';
COMMENT ON FUNCTION etl.clickhouse_validator(text[], oid) IS 'checks the options of servers of kind clickhouse';

CREATE FOREIGN DATA WRAPPER etl_clickhouse NO HANDLER
    VALIDATOR etl.clickhouse_validator OPTIONS (etl_handler 'etl.clickhouse_handler');
COMMENT ON FOREIGN DATA WRAPPER etl_clickhouse IS 'destinations that are databases of ClickHouse';

CREATE FUNCTION etl.webhook_handler(internal) RETURNS internal
    LANGUAGE C AS 'MODULE_PATHNAME', 'etl_webhook_handler';
COMMENT ON FUNCTION etl.webhook_handler(internal) IS 'routine of kind webhook';

CREATE FUNCTION etl.webhook_validator(options text[], catalog oid) RETURNS void
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_webhook_validator';
COMMENT ON FUNCTION etl.webhook_validator(text[], oid) IS 'checks the options of servers of kind webhook';

CREATE FOREIGN DATA WRAPPER etl_webhook NO HANDLER
    VALIDATOR etl.webhook_validator OPTIONS (etl_handler 'etl.webhook_handler');
COMMENT ON FOREIGN DATA WRAPPER etl_webhook IS 'destinations that receive events by HTTP';

CREATE FUNCTION etl.null_handler(internal) RETURNS internal
    LANGUAGE C AS 'MODULE_PATHNAME', 'etl_null_handler';
COMMENT ON FUNCTION etl.null_handler(internal) IS 'routine of kind null';

CREATE FUNCTION etl.null_validator(options text[], catalog oid) RETURNS void
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_null_validator';
COMMENT ON FUNCTION etl.null_validator(text[], oid) IS 'checks the options of servers of kind null';

CREATE FOREIGN DATA WRAPPER etl_null NO HANDLER
    VALIDATOR etl.null_validator OPTIONS (etl_handler 'etl.null_handler');
COMMENT ON FOREIGN DATA WRAPPER etl_null IS 'destinations that encode every row and discard it';

----------------------------------------------------------------------------
-- Pipelines
--
-- Not STRICT, so that NULL is an error and not a silent nothing.
----------------------------------------------------------------------------

CREATE FUNCTION etl.create_pipeline(pipeline text, publication name, destination name,
                                    options jsonb DEFAULT '{}', if_not_exists boolean DEFAULT false)
    RETURNS bigint
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_create_pipeline';
COMMENT ON FUNCTION etl.create_pipeline(text, name, name, jsonb, boolean)
    IS 'define a pipeline, stopped; returns its ID';

CREATE FUNCTION etl.alter_pipeline(pipeline text, options jsonb) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_alter_pipeline';
COMMENT ON FUNCTION etl.alter_pipeline(text, jsonb)
    IS 'change options of a pipeline; null means back to the default';

CREATE FUNCTION etl.rename_pipeline(pipeline text, new_name text) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_rename_pipeline';
COMMENT ON FUNCTION etl.rename_pipeline(text, text) IS 'give a pipeline another name';

CREATE FUNCTION etl.start_pipeline(pipeline text) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_start_pipeline';
COMMENT ON FUNCTION etl.start_pipeline(text) IS 'start a pipeline at commit, also one that failed';

CREATE FUNCTION etl.stop_pipeline(pipeline text) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_stop_pipeline';
COMMENT ON FUNCTION etl.stop_pipeline(text) IS 'stop a pipeline at commit; its slot keeps WAL';

CREATE FUNCTION etl.drop_pipeline(pipeline text, drop_tables boolean DEFAULT false,
                                  if_exists boolean DEFAULT false, force boolean DEFAULT false)
    RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_drop_pipeline';
COMMENT ON FUNCTION etl.drop_pipeline(text, boolean, boolean, boolean)
    IS 'drop a pipeline with its slot, and its tables at the destination if asked';

CREATE FUNCTION etl.retry_table(pipeline text, target regclass DEFAULT NULL) RETURNS integer
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_retry_table';
COMMENT ON FUNCTION etl.retry_table(text, regclass)
    IS 'try a parked table again (NULL: all of them); returns how many';

CREATE FUNCTION etl.resync_table(pipeline text, target regclass) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_resync_table';
COMMENT ON FUNCTION etl.resync_table(text, regclass) IS 'copy a table again while changes go on';

CREATE FUNCTION etl.resync_pipeline(pipeline text) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_resync_pipeline';
COMMENT ON FUNCTION etl.resync_pipeline(text) IS 'copy all tables of a pipeline again';

CREATE FUNCTION etl.alter_table(pipeline text, target regclass, options jsonb) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_alter_table';
COMMENT ON FUNCTION etl.alter_table(text, regclass, jsonb)
    IS 'change options of one table; null means back to the pipeline''s';

CREATE FUNCTION etl.alter_column(pipeline text, target regclass, column_name name, options jsonb) RETURNS void
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_alter_column';
COMMENT ON FUNCTION etl.alter_column(text, regclass, name, jsonb)
    IS 'change options of one column; null means back to the table''s';

CREATE FUNCTION etl.wait_for(pipeline text, lsn pg_lsn DEFAULT NULL, timeout interval DEFAULT '1 minute',
                             allow_parked boolean DEFAULT false) RETURNS boolean
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_wait_for';
COMMENT ON FUNCTION etl.wait_for(text, pg_lsn, interval, boolean)
    IS 'wait until everything up to now (or lsn) is durable at the destination; false at the timeout';

CREATE FUNCTION etl.validate_pipeline(pipeline text)
    RETURNS TABLE (severity text, check_name text, target text, message text, hint text)
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_validate_pipeline';
COMMENT ON FUNCTION etl.validate_pipeline(text)
    IS 'what keeps a pipeline from running, or from running well; no row: nothing does';

CREATE FUNCTION etl.plan(pipeline text)
    RETURNS TABLE (source regclass, destination_table text, source_column name, source_type text,
                   destination_column text, destination_type text, value_policy text, ddl text)
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_plan';
COMMENT ON FUNCTION etl.plan(text)
    IS 'what a start would make at the destination, table by table and column by column; touches nothing';

CREATE FUNCTION etl.test_destination(destination name)
    RETURNS TABLE (check_name text, ok boolean, message text, elapsed interval)
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_test_destination';
COMMENT ON FUNCTION etl.test_destination(name)
    IS 'connect to a destination, as you, and say how far that went';

CREATE FUNCTION etl.build_info() RETURNS TABLE (component text, version text)
    LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'etl_build_info';
COMMENT ON FUNCTION etl.build_info() IS 'versions of the library and of what it is built with';

----------------------------------------------------------------------------
-- Sources of the views.  A view checks functions as its reader, so everybody
-- may call these; they show what the views would show.
----------------------------------------------------------------------------

CREATE FUNCTION etl.shared_server(OUT preloaded boolean, OUT launcher_pid integer, OUT pipelines_full boolean)
    LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'etl_shared_server';
COMMENT ON FUNCTION etl.shared_server() IS 'internal: is the launcher running, has shared memory room';

CREATE FUNCTION etl.shared_pipelines()
    RETURNS TABLE (pipeline_id bigint, state text, waiting_for text, wanted boolean,
                   apply_pid integer, writer_pid integer,
                   decoded_lsn pg_lsn, durable_lsn pg_lsn, confirmed_lsn pg_lsn,
                   oldest_undelivered timestamptz, last_progress timestamptz, waiting_since timestamptz,
                   transactions bigint, changes bigint, rows_copied bigint, bytes_sent bigint,
                   batches bigint, retries bigint,
                   last_commit_time timestamptz, last_delivery_time timestamptz,
                   last_sqlstate text, last_error text, last_error_time timestamptz,
                   next_retry_time timestamptz, endpoint_trouble boolean, slot_lost boolean,
                   failed_sqlstate text, failed_message text, failed_hint text, incarnation bigint)
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10 AS 'MODULE_PATHNAME', 'etl_shared_pipelines';
COMMENT ON FUNCTION etl.shared_pipelines() IS 'internal: pipelines in shared memory';

CREATE FUNCTION etl.shared_tables()
    RETURNS TABLE (pipeline_id bigint, relid oid, state text, recovery text, generation bigint,
                   owned_from pg_lsn, rows_copied bigint, rows_estimated bigint, bytes_copied bigint,
                   inserts bigint, updates bigint, deletes bigint, truncates bigint,
                   last_change_time timestamptz, last_delivered_lsn pg_lsn,
                   sqlstate text, error_lsn pg_lsn)
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100 AS 'MODULE_PATHNAME', 'etl_shared_tables';
COMMENT ON FUNCTION etl.shared_tables() IS 'internal: tables in shared memory';

CREATE FUNCTION etl.column_rows()
    RETURNS TABLE (pipeline_id bigint, relid oid, attnum smallint, column_name name, source_type text,
                   destination_column text, destination_type text, value_policy text, adjusted bigint,
                   note text)
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1000 AS 'MODULE_PATHNAME', 'etl_column_rows';
COMMENT ON FUNCTION etl.column_rows() IS 'internal: columns of tables as they are at destinations';

CREATE FUNCTION etl.option_rows()
    RETURNS TABLE (scope text, name text, value text, unit text, source text, default_value text,
                   min_val text, max_val text, enumvals text[], comment text)
    LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100 AS 'MODULE_PATHNAME', 'etl_option_rows';
COMMENT ON FUNCTION etl.option_rows() IS 'internal: options of kinds, pipelines, tables and columns';

CREATE FUNCTION etl.option_number(options jsonb, name text) RETURNS bigint
    LANGUAGE C STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'etl_option_number';
COMMENT ON FUNCTION etl.option_number(jsonb, text) IS 'internal: a pipeline''s number of a general option';

----------------------------------------------------------------------------
-- Views.  Rows of a pipeline are for members of its owner and of pg_monitor.
----------------------------------------------------------------------------

CREATE VIEW etl.table_status WITH (security_barrier) AS
SELECT p.name AS pipeline,
       t.relid::regclass AS source,
       t.schema_name,
       t.table_name,
       st.state,
       CASE WHEN st.state = 'errored' THEN coalesce(m.recovery, t.recovery) END AS recovery,
       t.destination_table,
       v.version AS schema_version,
       coalesce(m.generation, t.generation) AS generation,
       coalesce(m.owned_from, t.owned_from) AS owned_from,
       coalesce(m.rows_copied, t.rows_copied) AS rows_copied,
       coalesce(nullif(m.rows_estimated, 0), t.rows_estimated) AS rows_estimated,
       coalesce(m.bytes_copied, t.bytes_copied) AS bytes_copied,
       CASE
           WHEN st.state IN ('finished_copy', 'sync_wait', 'catchup', 'sync_done', 'ready') THEN 100
           WHEN st.state = 'data_sync' AND coalesce(nullif(m.rows_estimated, 0), t.rows_estimated) > 0
           THEN least(99, trunc(100.0 * coalesce(m.rows_copied, t.rows_copied)
                                / coalesce(nullif(m.rows_estimated, 0), t.rows_estimated)))
           WHEN st.state IN ('init', 'data_sync') THEN 0
       END::integer AS percent,
       greatest(m.inserts, t.inserts) AS inserts,
       greatest(m.updates, t.updates) AS updates,
       greatest(m.deletes, t.deletes) AS deletes,
       greatest(m.truncates, t.truncates) AS truncates,
       greatest(m.last_change_time, t.last_change_time) AS last_change_time,
       greatest(m.last_delivered_lsn, t.last_delivered_lsn) AS last_delivered_lsn,
       t.excluded_reason,
       CASE WHEN st.state = 'errored' THEN coalesce(t.sqlstate, m.sqlstate) END AS sqlstate,
       CASE WHEN st.state = 'errored' THEN t.error END AS error,
       CASE WHEN st.state = 'errored' THEN t.hint END AS hint,
       CASE WHEN st.state = 'errored' THEN coalesce(t.error_lsn, m.error_lsn) END AS error_lsn,
       CASE WHEN st.state = 'errored' THEN t.error_ordinal END AS error_ordinal,
       CASE WHEN st.state = 'errored' THEN t.error_time END AS error_time,
       CASE
           WHEN st.state = 'errored' THEN 'manual'
           WHEN st.state NOT IN ('excluded', 'dropped') AND mp.next_retry_time IS NOT NULL THEN 'automatic'
           ELSE 'none'
       END AS retry_policy,
       t.attempts,
       CASE WHEN st.state NOT IN ('errored', 'excluded', 'dropped') THEN mp.next_retry_time END AS next_retry_time
  FROM etl.pipeline p
  JOIN etl.table_state t ON t.pipeline_id = p.id
  LEFT JOIN etl.shared_tables() m ON m.pipeline_id = t.pipeline_id AND m.relid = t.relid
  LEFT JOIN etl.shared_pipelines() mp ON mp.pipeline_id = p.id
  LEFT JOIN LATERAL (SELECT max(h.version) AS version
                       FROM etl.schema_history h
                      WHERE h.pipeline_id = t.pipeline_id AND h.relid = t.relid
                        AND h.generation = CASE WHEN t.owned_generation > 0
                                                THEN t.owned_generation ELSE t.generation END) v ON true
 CROSS JOIN LATERAL (SELECT coalesce(m.state, t.state) AS state) st
 WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');

CREATE VIEW etl.column_status WITH (security_barrier) AS
SELECT p.name AS pipeline,
       c.relid::regclass AS source,
       c.attnum,
       c.column_name,
       c.source_type,
       c.destination_column,
       c.destination_type,
       c.value_policy,
       coalesce(greatest(c.adjusted, s.adjusted), 0) AS adjusted,
       c.note
  FROM etl.pipeline p
  JOIN etl.column_rows() c ON c.pipeline_id = p.id
  LEFT JOIN etl.column_state s ON s.pipeline_id = p.id AND s.relid = c.relid AND s.attnum = c.attnum
 WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE')
 ORDER BY p.name, c.relid, c.attnum;

CREATE VIEW etl.pipeline_status WITH (security_barrier) AS
WITH tables AS (
    SELECT t.pipeline_id,
           count(*) FILTER (WHERE s.state NOT IN ('excluded', 'dropped')) AS total,
           count(*) FILTER (WHERE s.state = 'ready') AS ready,
           count(*) FILTER (WHERE s.state = 'errored') AS parked,
           count(*) FILTER (WHERE s.state NOT IN ('ready', 'errored', 'excluded', 'dropped')) AS syncing,
           bool_or(s.state = 'dropped') AND bool_and(s.state IN ('dropped', 'excluded')) AS emptied
      FROM etl.table_state t
      LEFT JOIN etl.shared_tables() m ON m.pipeline_id = t.pipeline_id AND m.relid = t.relid
     CROSS JOIN LATERAL (SELECT coalesce(m.state, t.state) AS state) s
     GROUP BY t.pipeline_id
), server AS (
    SELECT sh.preloaded, sh.launcher_pid, sh.pipelines_full,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                ELSE pg_catalog.pg_current_wal_flush_lsn() END AS flushed,
           pg_catalog.clock_timestamp() AS now
      FROM etl.shared_server() sh
), base AS (
    SELECT p.id, p.name, p.owner, p.publication, p.server AS destination, p.options,
           pg_catalog.regexp_replace(w.fdwname, '^etl_', '') AS kind,
           f.oid IS NULL AS server_gone,
           NOT EXISTS (SELECT FROM pg_catalog.pg_publication u WHERE u.pubname = p.publication) AS publication_gone,
           coalesce(i.enabled, false) AS enabled,
           CASE
               WHEN i.dropping THEN 'dropping'
               WHEN m.state <> 'stopped'
                    AND (i.enabled OR m.apply_pid IS NOT NULL OR m.writer_pid IS NOT NULL) THEN m.state
               WHEN i.enabled IS NOT TRUE OR sv.launcher_pid IS NULL
                    OR pg_catalog.current_setting('etl.enabled', true) = 'off' THEN 'stopped'
               WHEN s.failed_sqlstate IS NOT NULL AND s.start_done >= i.start_requests THEN 'failed'
               WHEN m.pipeline_id IS NULL AND sv.pipelines_full THEN 'waiting'
               ELSE 'starting'
           END AS state,
           m.pipeline_id IS NULL AND sv.pipelines_full AS no_room,
           m.waiting_for, m.apply_pid, m.writer_pid, m.endpoint_trouble, m.waiting_since, m.oldest_undelivered,
           sv.preloaded, sv.launcher_pid, sv.flushed, sv.now,
           s.slot_name,
           CASE WHEN m.slot_lost THEN 'lost' ELSE r.wal_status END AS wal_status,
           r.restart_lsn, r.confirmed_flush_lsn, r.safe_wal_size,
           m.decoded_lsn,
           coalesce(m.durable_lsn, s.durable_lsn) AS delivered_lsn,
           coalesce(t.total, 0) AS total, coalesce(t.ready, 0) AS ready,
           coalesce(t.syncing, 0) AS syncing, coalesce(t.parked, 0) AS parked,
           coalesce(t.emptied, false) AS emptied,
           coalesce(greatest(m.transactions, s.transactions), 0) AS transactions,
           coalesce(greatest(m.changes, s.changes), 0) AS changes,
           coalesce(greatest(m.rows_copied, s.rows_copied), 0) AS rows_copied,
           coalesce(greatest(m.bytes_sent, s.bytes_sent), 0) AS bytes_sent,
           coalesce(greatest(m.batches, s.batches), 0) AS batches,
           coalesce(greatest(m.retries, s.retries), 0) AS retries,
           greatest(m.last_commit_time, s.last_commit_time) AS last_commit_time,
           greatest(m.last_delivery_time, s.last_delivery_time) AS last_delivery_time,
           coalesce(m.last_error, e.message) AS last_error,
           coalesce(m.last_error_time, e.happened) AS last_error_time,
           coalesce(m.failed_message, s.failed_message) AS failed_message,
           m.next_retry_time,
           s.stats_reset
      FROM etl.pipeline p
     CROSS JOIN server sv
      LEFT JOIN etl.pipeline_intent i ON i.pipeline_id = p.id
      LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id
      LEFT JOIN etl.shared_pipelines() m ON m.pipeline_id = p.id
      LEFT JOIN tables t ON t.pipeline_id = p.id
      LEFT JOIN pg_catalog.pg_replication_slots r ON r.slot_name = s.slot_name AND r.plugin = 'etl'
      LEFT JOIN pg_catalog.pg_foreign_server f ON f.srvname = p.server
      LEFT JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = f.srvfdw
      LEFT JOIN LATERAL (SELECT ee.message, ee.happened FROM etl.error_entry ee
                          WHERE ee.pipeline_id = p.id ORDER BY ee.id DESC LIMIT 1) e ON true
     WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE')
), lagging AS (
    SELECT b.*,
           CASE WHEN b.delivered_lsn IS NOT NULL
                THEN greatest(b.flushed - b.delivered_lsn, 0) END::bigint AS lag_bytes,
           greatest(b.flushed - b.restart_lsn, 0)::bigint AS retained,
           CASE
               WHEN b.delivered_lsn >= b.flushed THEN interval '0'
               WHEN b.oldest_undelivered IS NOT NULL AND b.writer_pid IS NOT NULL
               THEN greatest(b.now - b.oldest_undelivered, interval '0')
               WHEN b.writer_pid IS NULL THEN NULL
               WHEN b.waiting_since IS NOT NULL THEN greatest(b.now - b.waiting_since, interval '0')
               ELSE interval '0'
           END AS lag,
           b.writer_pid IS NOT NULL
           AND b.now - b.waiting_since
               > etl.option_number(b.options, 'stall_timeout') * interval '1 millisecond' AS stalled,
           b.wal_status IN ('unreserved', 'lost')
           OR b.safe_wal_size < (b.flushed - b.restart_lsn) / 4 AS wal_near
      FROM base b
), judged AS (
    SELECT l.*,
           CASE WHEN l.state = 'waiting' AND l.no_room THEN 'etl.max_pipelines' ELSE l.waiting_for END AS waits,
           CASE
               WHEN l.state = 'failed'
               THEN coalesce(l.failed_message, 'the pipeline has failed')
               WHEN l.enabled AND NOT l.preloaded
               THEN 'etl is not in shared_preload_libraries'
               WHEN l.enabled AND l.launcher_pid IS NULL
               THEN 'the launcher is not running'
               WHEN l.enabled AND pg_catalog.current_setting('wal_level') <> 'logical'
               THEN 'wal_level is not "logical"'
               WHEN l.enabled AND l.server_gone
               THEN 'the destination''s server does not exist any more'
               WHEN l.enabled AND l.publication_gone
               THEN 'the publication does not exist any more'
               WHEN l.wal_status = 'lost'
               THEN 'the replication slot has lost WAL that it needs'
               WHEN l.enabled AND l.emptied
               THEN 'all tables of the publication were dropped'
               WHEN l.parked > 0
               THEN l.parked || CASE WHEN l.parked = 1 THEN ' table is parked' ELSE ' tables are parked' END
               WHEN l.endpoint_trouble
               THEN 'the destination refuses: ' || coalesce(l.last_error, 'unknown error')
               WHEN l.stalled
               THEN 'no progress since ' || pg_catalog.to_char(l.waiting_since, 'YYYY-MM-DD HH24:MI:SS')
                    || ' while changes wait' || coalesce(': ' || l.last_error, '')
               WHEN l.wal_near
               THEN 'the replication slot keeps nearly as much WAL as max_slot_wal_keep_size allows'
           END AS unhealthy
      FROM lagging l
)
SELECT j.name AS pipeline,
       j.id AS pipeline_id,
       j.owner,
       j.publication,
       j.destination,
       j.kind,
       j.enabled,
       j.state,
       j.unhealthy IS NULL AS healthy,
       coalesce(j.unhealthy,
                CASE WHEN j.next_retry_time IS NOT NULL THEN j.last_error END,
                CASE
                    WHEN j.enabled AND pg_catalog.current_setting('etl.enabled', true) = 'off'
                    THEN 'etl.enabled is off'
                    WHEN j.waits IN ('etl.max_workers', 'max_worker_processes', 'max_replication_slots',
                                     'etl.max_pipelines', 'etl.max_tables')
                    THEN 'waits until ' || j.waits || ' leaves room'
                    WHEN j.waits = 'running transactions'
                    THEN 'waits until running transactions have ended'
                END) AS problem,
       j.waits AS waiting_for,
       j.apply_pid AS pid,
       j.writer_pid,
       j.slot_name,
       j.wal_status,
       j.restart_lsn,
       j.confirmed_flush_lsn,
       j.decoded_lsn,
       j.delivered_lsn,
       j.lag_bytes,
       j.lag,
       j.retained AS retained_wal_bytes,
       j.safe_wal_size,
       j.total AS tables_total,
       j.ready AS tables_ready,
       j.syncing AS tables_syncing,
       j.parked AS tables_parked,
       j.transactions,
       j.changes,
       j.rows_copied,
       j.bytes_sent,
       j.batches,
       j.retries,
       j.last_commit_time,
       j.last_delivery_time,
       j.last_error,
       j.last_error_time,
       j.next_retry_time,
       j.stats_reset
  FROM judged j;

CREATE VIEW etl.status WITH (security_barrier) AS
SELECT s.pipeline,
       s.state,
       pg_catalog.date_trunc('milliseconds', s.lag) AS lag,
       s.tables_parked AS parked,
       s.problem
  FROM etl.pipeline_status s
 ORDER BY s.pipeline;

CREATE VIEW etl.error_log WITH (security_barrier) AS
SELECT p.name AS pipeline,
       e.happened,
       e.relid::regclass AS source,
       e.schema_name,
       e.table_name,
       e.sqlstate,
       e.message,
       e.hint,
       e.lsn,
       e.ordinal
  FROM etl.error_entry e
  JOIN etl.pipeline p ON p.id = e.pipeline_id
 WHERE pg_catalog.pg_has_role(p.owner, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE')
 ORDER BY e.id DESC;

CREATE VIEW etl.settings WITH (security_barrier) AS
SELECT 'setting'::text AS scope,
       pg_catalog.substr(s.name, 5) AS name,
       s.setting AS value,
       s.unit,
       s.source,
       s.boot_val AS default_value,
       s.min_val,
       s.max_val,
       s.enumvals,
       s.short_desc AS comment
  FROM pg_catalog.pg_settings s
 WHERE s.name LIKE 'etl.%'
UNION ALL
SELECT o.scope, o.name, o.value, o.unit, o.source, o.default_value, o.min_val, o.max_val, o.enumvals, o.comment
  FROM etl.option_rows() o;

CREATE VIEW etl.metrics WITH (security_barrier) AS
SELECT m.name,
       pg_catalog.jsonb_build_object('pipeline', s.pipeline, 'destination', s.destination, 'kind', s.kind)
       || coalesce(m.labels, '{}') AS labels,
       m.value::double precision AS value,
       m.type,
       m.help
  FROM etl.pipeline_status s
 CROSS JOIN LATERAL (VALUES
    ('etl_pipeline_problems_total', NULL::jsonb, CASE WHEN s.healthy THEN 0 ELSE 1 END::numeric, 'gauge',
     '1 when the pipeline is not healthy, else 0.'),
    ('etl_pipeline_lag_bytes', NULL, s.lag_bytes, 'gauge',
     'WAL flushed and not yet delivered.'),
    ('etl_pipeline_lag_seconds', NULL, extract(epoch FROM s.lag), 'gauge',
     'Age of the oldest commit that is not delivered.'),
    ('etl_pipeline_retained_wal_bytes', NULL, s.retained_wal_bytes, 'gauge',
     'WAL that the replication slot keeps.'),
    ('etl_pipeline_safe_wal_bytes', NULL, s.safe_wal_size, 'gauge',
     'WAL that can be written before the replication slot is lost.'),
    ('etl_pipeline_tables_total', '{"state": "ready"}', s.tables_ready, 'gauge',
     'Tables by state.'),
    ('etl_pipeline_tables_total', '{"state": "syncing"}', s.tables_syncing, 'gauge',
     'Tables by state.'),
    ('etl_pipeline_tables_total', '{"state": "parked"}', s.tables_parked, 'gauge',
     'Tables by state.'),
    ('etl_pipeline_transactions_total', NULL, s.transactions, 'counter',
     'Transactions delivered.'),
    ('etl_pipeline_changes_total', NULL, s.changes, 'counter',
     'Changes delivered.'),
    ('etl_pipeline_rows_copied_total', NULL, s.rows_copied, 'counter',
     'Rows copied by initial syncs and resyncs.'),
    ('etl_pipeline_sent_bytes', NULL, s.bytes_sent, 'counter',
     'Bytes sent to the destination.'),
    ('etl_pipeline_batches_total', NULL, s.batches, 'counter',
     'Batches delivered.'),
    ('etl_pipeline_retries_total', NULL, s.retries, 'counter',
     'Requests sent again after transient errors.'),
    ('etl_pipeline_since_delivery_seconds', NULL,
     extract(epoch FROM pg_catalog.clock_timestamp() - s.last_delivery_time), 'gauge',
     'Time since the last delivery.')
 ) m (name, labels, value, type, help)
 WHERE m.value IS NOT NULL
UNION ALL
SELECT m.name,
       pg_catalog.jsonb_build_object('pipeline', t.pipeline, 'schema', t.schema_name, 'table', t.table_name)
       || coalesce(m.labels, '{}'),
       m.value::double precision,
       m.type,
       m.help
  FROM etl.table_status t
 CROSS JOIN LATERAL (VALUES
    ('etl_table_rows_copied_total', NULL::jsonb, t.rows_copied, 'gauge',
     'Rows of the newest copy of the table.'),
    ('etl_table_copied_bytes', NULL, t.bytes_copied, 'gauge',
     'Bytes of the newest copy of the table.'),
    ('etl_table_changes_total', '{"operation": "insert"}', t.inserts, 'counter',
     'Changes of the table that were delivered.'),
    ('etl_table_changes_total', '{"operation": "update"}', t.updates, 'counter',
     'Changes of the table that were delivered.'),
    ('etl_table_changes_total', '{"operation": "delete"}', t.deletes, 'counter',
     'Changes of the table that were delivered.'),
    ('etl_table_changes_total', '{"operation": "truncate"}', t.truncates, 'counter',
     'Changes of the table that were delivered.')
 ) m (name, labels, value, type, help)
 WHERE m.value IS NOT NULL AND t.state NOT IN ('excluded', 'dropped');

COMMENT ON VIEW etl.status IS 'one line a pipeline';
COMMENT ON VIEW etl.pipeline_status IS 'everything about each pipeline';
COMMENT ON VIEW etl.table_status IS 'everything about each table of each pipeline';
COMMENT ON VIEW etl.column_status IS 'each column of each table of each pipeline, and what it became';
COMMENT ON VIEW etl.error_log IS 'the newest errors of each pipeline, newest first';
COMMENT ON VIEW etl.settings IS 'settings and options: what there is and what is in force';
COMMENT ON VIEW etl.metrics IS 'figures for a monitoring system';

----------------------------------------------------------------------------
-- Rights: everybody may look through the views; nobody else gets anything
----------------------------------------------------------------------------

REVOKE ALL ON ALL TABLES IN SCHEMA etl FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA etl FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA etl FROM PUBLIC;

GRANT USAGE ON SCHEMA etl TO PUBLIC;
GRANT SELECT ON etl.status, etl.pipeline_status, etl.table_status, etl.column_status, etl.error_log,
    etl.settings, etl.metrics TO PUBLIC;
GRANT EXECUTE ON FUNCTION etl.shared_server(), etl.shared_pipelines(), etl.shared_tables(),
    etl.column_rows(), etl.option_rows(), etl.option_number(jsonb, text) TO PUBLIC;

----------------------------------------------------------------------------
-- pg_dump carries definitions, never what runs: a restored database has all
-- pipelines stopped.  Nobody adopts the pipelines of a role that is gone.
----------------------------------------------------------------------------

SELECT pg_catalog.pg_extension_config_dump('etl.pipeline',
    'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) owner)'
    ' AND NOT EXISTS (SELECT FROM etl.pipeline_intent i WHERE i.pipeline_id OPERATOR(pg_catalog.=) id AND i.dropping)');
SELECT pg_catalog.pg_extension_config_dump('etl.pipeline_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('etl.table_option',
    'WHERE EXISTS (SELECT FROM etl.pipeline p JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) p.owner'
    ' WHERE p.id OPERATOR(pg_catalog.=) pipeline_id'
    ' AND NOT EXISTS (SELECT FROM etl.pipeline_intent i WHERE i.pipeline_id OPERATOR(pg_catalog.=) p.id AND i.dropping))');
