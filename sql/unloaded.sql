-- The library on a server that does not preload it: it loads without a word
-- (pg_upgrade and a restore need that), definitions can be made, and what
-- needs the workers says what is missing.
\set SHOW_CONTEXT never
LOAD 'etl';
CREATE EXTENSION etl;
CREATE TABLE t (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE t;
CREATE SERVER nothing FOREIGN DATA WRAPPER etl_null;
SELECT etl.create_pipeline('p', publication => 'p', destination => 'nothing') > 0 AS created;

SELECT etl.start_pipeline('p');
SELECT etl.wait_for('p');

-- the views show what is defined
SELECT pipeline, enabled, state FROM etl.pipeline_status;
SELECT count(*) FROM etl.table_status;
DROP EXTENSION etl CASCADE;
