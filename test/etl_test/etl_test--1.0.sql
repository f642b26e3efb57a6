/* etl_test--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION etl_test" to load this file. \quit

----------------------------------------------------------------------------
-- Encoders
----------------------------------------------------------------------------

CREATE FUNCTION rowbinary_types(relation regclass) RETURNS text[]
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_types';

CREATE FUNCTION rowbinary(query text, types text[], policy text DEFAULT 'error') RETURNS bytea
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary';

CREATE FUNCTION rowbinary_seconds(query text, types text[], rounds integer) RETURNS double precision
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_seconds';

CREATE FUNCTION rowbinary_version(epoch integer, lsn pg_lsn, ordinal bigint, sub integer) RETURNS bytea
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_version';

-- with the settings that every worker pins
CREATE FUNCTION json(value anyelement, flags text DEFAULT '') RETURNS text
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json'
    SET DateStyle = 'ISO' SET IntervalStyle = 'iso_8601' SET TimeZone = 'UTC'
    SET bytea_output = 'hex' SET extra_float_digits = 1 SET quote_all_identifiers = off
    SET search_path = pg_catalog;

-- with those of the session
CREATE FUNCTION json_unpinned(value anyelement, flags text DEFAULT '') RETURNS text
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json';

CREATE FUNCTION json_kind(type regtype, flags text DEFAULT '') RETURNS text
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json_kind';

CREATE FUNCTION json_skip(json bytea) RETURNS integer
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json_skip';

CREATE FUNCTION json_member(json bytea, name text) RETURNS bytea
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json_member';

CREATE FUNCTION json_seconds(query text, rounds integer) RETURNS double precision
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_json_seconds';

----------------------------------------------------------------------------
-- A kind of destination inside this database
----------------------------------------------------------------------------

CREATE TABLE local_table (
    relid      oid PRIMARY KEY,
    generation integer NOT NULL     -- the published one
);

CREATE TABLE local_row (
    relid      oid,
    generation integer,
    key        jsonb,
    "row"      jsonb NOT NULL,
    PRIMARY KEY (relid, generation, key)
);

CREATE TABLE local_change (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relid      oid NOT NULL,
    generation integer NOT NULL,
    key        jsonb NOT NULL,
    "row"      jsonb NOT NULL,
    op         text NOT NULL,
    lsn        pg_lsn NOT NULL,
    ordinal    bigint NOT NULL,
    sub        integer NOT NULL,
    copied     boolean NOT NULL
);

INSERT INTO etl.local_schema VALUES ('etl_test');

CREATE FUNCTION local_handler(internal) RETURNS internal
    LANGUAGE C AS 'MODULE_PATHNAME', 'etl_test_local_handler';

CREATE FOREIGN DATA WRAPPER etl_test_local OPTIONS (etl_handler 'etl_test.local_handler');

----------------------------------------------------------------------------
-- A kind of destination in a folder
----------------------------------------------------------------------------

CREATE FUNCTION file_handler(internal) RETURNS internal
    LANGUAGE C AS 'MODULE_PATHNAME', 'etl_test_file_handler';

CREATE FOREIGN DATA WRAPPER etl_test_file OPTIONS (etl_handler 'etl_test.file_handler');
