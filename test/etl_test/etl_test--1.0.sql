/* etl_test--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION etl_test" to load this file. \quit

----------------------------------------------------------------------------
-- Encoders
----------------------------------------------------------------------------

CREATE FUNCTION rowbinary_types(relation regclass) RETURNS text[]
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_types';

CREATE FUNCTION rowbinary(query text, types text[]) RETURNS bytea
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary';

CREATE FUNCTION rowbinary_seconds(query text, types text[], rounds integer) RETURNS double precision
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_seconds';

CREATE FUNCTION rowbinary_version(epoch integer, lsn pg_lsn, ordinal bigint, sub integer) RETURNS bytea
    LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'etl_test_rowbinary_version';
