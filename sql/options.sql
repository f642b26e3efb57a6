-- Options of wrappers, servers and user mappings.
\getenv abs_srcdir PG_ABS_SRCDIR
\set helper :abs_srcdir '/sql/helper/try.sql'
\set ECHO none
\i :helper
CREATE EXTENSION etl;
CREATE ROLE regress_etl_user;
CREATE ROLE regress_etl_reader IN ROLE pg_read_server_files;
GRANT USAGE ON FOREIGN DATA WRAPPER etl_webhook, etl_null TO regress_etl_user, regress_etl_reader;

-- an unknown option tells the valid ones
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_null OPTIONS (url 'http://h/')$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', colour 'red')$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', password 'x')$$);
-- options of later releases are unknown
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_null OPTIONS (cluster 'c')$$);

-- required, empty, malformed
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url '')$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'ftp://h/')$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', max_batch_size '8XB')$$);
SELECT try($$CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', max_batch_size '5')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', max_batch_size '0')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', max_batch_size '2TB')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', connect_timeout '5 parsecs')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', max_batch_events '-1')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', compression 'rar')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', format 'xml')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', headers 'a: b')$$);
SELECT try($$CREATE SERVER s2 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', headers '["a"]')$$);
SELECT srvname, srvoptions FROM pg_foreign_server ORDER BY 1;
SELECT try($$ALTER SERVER s OPTIONS (DROP url)$$);
SELECT try($$ALTER SERVER s OPTIONS (SET max_batch_size '4MB', ADD connect_timeout '5s', ADD compression 'zstd', ADD headers '{"X-Team": "data"}')$$);
SELECT srvname, srvoptions FROM pg_foreign_server ORDER BY 1;

-- everybody may read the options of a server: no secrets there
SELECT try($$ALTER SERVER s OPTIONS (SET url 'https://me:secret@h/')$$);
SELECT try($$ALTER SERVER s OPTIONS (SET url 'https://me@h/')$$);
SELECT try($$ALTER SERVER s OPTIONS (SET url 'https://h/path@home?q=a@b')$$);
SELECT try($$ALTER SERVER s OPTIONS (ADD proxy 'http://me:secret@proxy:3128')$$);
SELECT try($$ALTER SERVER s OPTIONS (SET headers '{"Authorization": "Bearer hush"}')$$);
SELECT try($$ALTER SERVER s OPTIONS (SET headers '{"X-Team": "data", "x-API-key": "hush"}')$$);
SELECT try($$ALTER SERVER s OPTIONS (SET headers '{"Cookie": "hush"}')$$);

-- user mappings
SELECT try($$CREATE USER MAPPING FOR PUBLIC SERVER s OPTIONS (user 'u', password 'p', headers '{"Authorization": "Bearer hush"}')$$);
SELECT try($$ALTER USER MAPPING FOR PUBLIC SERVER s OPTIONS (ADD url 'http://h/')$$);
SELECT try($$ALTER USER MAPPING FOR PUBLIC SERVER s OPTIONS (ADD colour 'red')$$);
-- a malformed secret is not repeated
SELECT try($$ALTER USER MAPPING FOR PUBLIC SERVER s OPTIONS (SET headers '{"Authorization": hush}')$$);
SELECT try($$ALTER USER MAPPING FOR PUBLIC SERVER s OPTIONS (SET headers '"hush"')$$);

-- files of the server need pg_read_server_files
SET ROLE regress_etl_user;
SELECT try($$CREATE SERVER u FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/')$$);
SELECT try($$ALTER SERVER u OPTIONS (ADD ca_file '/etc/passwd')$$);
SELECT try($$CREATE USER MAPPING FOR CURRENT_USER SERVER u OPTIONS (password_file '/etc/passwd')$$);
RESET ROLE;
SET ROLE regress_etl_reader;
SELECT try($$CREATE SERVER r FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://h/', ca_file '/etc/ssl/ca.pem')$$);
RESET ROLE;

-- wrappers: one option, for superusers only
SELECT try($$CREATE FOREIGN DATA WRAPPER w VALIDATOR etl.null_validator OPTIONS (etl_handler 'etl.null_handler')$$);
SELECT try($$ALTER FOREIGN DATA WRAPPER w OPTIONS (SET etl_handler 'null_handler')$$);
SELECT try($$ALTER FOREIGN DATA WRAPPER w OPTIONS (ADD colour 'red')$$);
SET ROLE regress_etl_user;
SELECT try($$CREATE FOREIGN DATA WRAPPER w2 OPTIONS (etl_handler 'etl.null_handler')$$);
SELECT try($$ALTER FOREIGN DATA WRAPPER w OPTIONS (SET etl_handler 'x.y')$$);
RESET ROLE;

-- a wrapper whose handler is no handler
CREATE PUBLICATION regress_pub;
CREATE SERVER ws FOREIGN DATA WRAPPER w;
ALTER FOREIGN DATA WRAPPER w OPTIONS (SET etl_handler 'no.where');
SELECT try($$SELECT etl.create_pipeline('w', 'regress_pub', 'ws')$$);
ALTER FOREIGN DATA WRAPPER w OPTIONS (SET etl_handler 'pg_catalog.array_agg_finalfn');
SELECT try($$SELECT etl.create_pipeline('w', 'regress_pub', 'ws')$$);
ALTER FOREIGN DATA WRAPPER w OPTIONS (SET etl_handler 'pg_catalog.int8_avg_serialize');
SELECT try($$SELECT etl.create_pipeline('w', 'regress_pub', 'ws')$$);
ALTER FOREIGN DATA WRAPPER w OPTIONS (DROP etl_handler);
SELECT try($$SELECT etl.create_pipeline('w', 'regress_pub', 'ws')$$);

-- no foreign tables there
SELECT try($$CREATE FOREIGN TABLE f (a int) SERVER s$$);

DROP PUBLICATION regress_pub;
DROP FOREIGN DATA WRAPPER w CASCADE;
DROP EXTENSION etl CASCADE;
DROP ROLE regress_etl_user, regress_etl_reader;
DROP FUNCTION try;
DROP PROCEDURE eventually;
