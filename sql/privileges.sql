-- Who may do and see what.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
ALTER SEQUENCE etl.pipeline_id_seq RESTART WITH 1;
CREATE ROLE regress_etl_nobody;
CREATE ROLE regress_etl_plain;
CREATE ROLE regress_etl_owner REPLICATION;
CREATE ROLE regress_etl_member REPLICATION IN ROLE regress_etl_owner;
CREATE ROLE regress_etl_other REPLICATION;
CREATE ROLE regress_etl_monitor IN ROLE pg_monitor;
CREATE SERVER dest FOREIGN DATA WRAPPER etl_null;
CREATE SERVER hidden FOREIGN DATA WRAPPER etl_null;
GRANT USAGE ON FOREIGN SERVER dest TO regress_etl_plain, regress_etl_owner, regress_etl_member, regress_etl_other;
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE PUBLICATION pub FOR TABLE t;

-- EXECUTE is granted to nobody
SET ROLE regress_etl_owner;
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{}')$$);
SELECT try($$SELECT etl.rename_pipeline('p', 'q')$$);
SELECT try($$SELECT etl.start_pipeline('p')$$);
SELECT try($$SELECT etl.stop_pipeline('p')$$);
SELECT try($$SELECT etl.drop_pipeline('p')$$);
SELECT try($$SELECT etl.retry_table('p')$$);
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.resync_pipeline('p')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'a', '{}')$$);
SELECT try($$SELECT etl.wait_for('p')$$);
SELECT try($$SELECT * FROM etl.build_info()$$);
SELECT try($$SELECT * FROM etl.pipeline$$);
SELECT try($$SELECT * FROM etl.error_entry$$);
SELECT try($$INSERT INTO etl.local_schema VALUES ('public')$$);
SELECT try($$CREATE TABLE etl.mine (a int)$$);
RESET ROLE;

GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl
    TO regress_etl_plain, regress_etl_owner, regress_etl_member, regress_etl_other;

-- REPLICATION is needed too
SET ROLE regress_etl_plain;
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'dest')$$);
SELECT try($$SELECT etl.alter_pipeline('p', '{}')$$);
SELECT try($$SELECT etl.rename_pipeline('p', 'q')$$);
SELECT try($$SELECT etl.start_pipeline('p')$$);
SELECT try($$SELECT etl.stop_pipeline('p')$$);
SELECT try($$SELECT etl.drop_pipeline('p')$$);
SELECT try($$SELECT etl.retry_table('p')$$);
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.resync_pipeline('p')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'a', '{}')$$);
SELECT try($$SELECT etl.wait_for('p')$$);
RESET ROLE;

-- USAGE on the server
SET ROLE regress_etl_owner;
SELECT try($$SELECT etl.create_pipeline('p', 'pub', 'hidden')$$);
SELECT etl.create_pipeline('p', 'pub', 'dest');
SELECT current_user, owner FROM etl.pipeline_status;
RESET ROLE;

-- the owner and its members, nobody else
SET ROLE regress_etl_member;
SELECT etl.alter_pipeline('p', '{"max_batch_events": 7}');
SELECT pipeline, owner FROM etl.pipeline_status;
RESET ROLE;
SET ROLE regress_etl_other;
SELECT try($$SELECT etl.alter_pipeline('p', '{}')$$);
SELECT try($$SELECT etl.rename_pipeline('p', 'q')$$);
SELECT try($$SELECT etl.start_pipeline('p')$$);
SELECT try($$SELECT etl.stop_pipeline('p')$$);
SELECT try($$SELECT etl.drop_pipeline('p')$$);
SELECT try($$SELECT etl.retry_table('p')$$);
SELECT try($$SELECT etl.resync_table('p', 't')$$);
SELECT try($$SELECT etl.resync_pipeline('p')$$);
SELECT try($$SELECT etl.alter_table('p', 't', '{}')$$);
SELECT try($$SELECT etl.alter_column('p', 't', 'a', '{}')$$);
SELECT try($$SELECT etl.wait_for('p')$$);
RESET ROLE;

-- rows of the views
INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state, sqlstate, error)
    VALUES (1, 't'::regclass, 'public', 't', 'errored', '22003', 'value out of range');
INSERT INTO etl.error_entry (pipeline_id, relid, schema_name, table_name, sqlstate, message)
    VALUES (1, 't'::regclass, 'public', 't', '22003', 'value out of range');
CREATE FUNCTION visible() RETURNS text LANGUAGE sql AS $$
    SELECT format('%s: status %s, pipeline_status %s, table_status %s, error_log %s, settings %s, metrics %s', current_user,
                  (SELECT count(*) FROM etl.status),
                  (SELECT count(*) FROM etl.pipeline_status),
                  (SELECT count(*) FROM etl.table_status),
                  (SELECT count(*) FROM etl.error_log),
                  (SELECT count(*) > 0 FROM etl.settings WHERE scope = 'pipeline p'),
                  (SELECT count(*) > 0 FROM etl.metrics))
$$;
SET ROLE regress_etl_nobody;
SELECT visible();
SET ROLE regress_etl_other;
SELECT visible();
SET ROLE regress_etl_owner;
SELECT visible();
SET ROLE regress_etl_member;
SELECT visible();
SET ROLE regress_etl_monitor;
SELECT visible();
-- a monitor looks and does nothing
SELECT try($$SELECT etl.start_pipeline('p')$$);
RESET ROLE;

-- secrets are in no view
CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:1/', headers '{"X-Team": "data"}');
CREATE USER MAPPING FOR PUBLIC SERVER hook
    OPTIONS (user 'u', password 'hush', headers '{"Authorization": "Bearer hush"}');
SELECT etl.create_pipeline('h', 'pub', 'hook');
SELECT count(*) FROM etl.settings s WHERE s::text LIKE '%hush%';
SELECT count(*) FROM etl.pipeline_status s WHERE s::text LIKE '%hush%';

-- a search_path full of traps changes nothing
CREATE SCHEMA trap AUTHORIZATION regress_etl_owner;
SET ROLE regress_etl_owner;
CREATE FUNCTION trap.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.equal);
SET search_path = trap, pg_catalog, public;
SELECT etl.alter_pipeline('p', '{"max_batch_events": 8}');
SELECT current_setting('search_path'), current_user;
SELECT public.try($$SELECT etl.alter_pipeline('nobody', '{}')$$);
SELECT current_setting('search_path'), current_user;
RESET search_path;
RESET ROLE;

SET client_min_messages = warning;
DROP EXTENSION etl CASCADE;
DROP PUBLICATION pub;
DROP TABLE t;
DROP SCHEMA trap CASCADE;
DROP OWNED BY regress_etl_nobody, regress_etl_plain, regress_etl_owner, regress_etl_member, regress_etl_other, regress_etl_monitor;
DROP ROLE regress_etl_nobody, regress_etl_plain, regress_etl_member, regress_etl_owner, regress_etl_other, regress_etl_monitor;
DROP FUNCTION try, visible;
DROP PROCEDURE eventually;
