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
    epoch             integer NOT NULL DEFAULT 0,
    slot_name         name NOT NULL,
    slot_created      boolean NOT NULL DEFAULT false,
    resync_done       bigint NOT NULL DEFAULT 0,
    start_done        bigint NOT NULL DEFAULT 0,    -- start_requests that were acted on
    durable_lsn       pg_lsn,
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
    recorded    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline_id, relid, generation, version)
);
COMMENT ON TABLE etl.schema_history IS 'versions of the shape of each table';

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
