"""Making pipelines in one call."""

import json

# options with which ClickHouse's pipelines lose no time in tests
FAST = {"max_batch_delay": "20ms", "retry_delay": "50ms", "max_retry_delay": "500ms", "auth_retry_delay": "200ms"}


def quoted(value):
    return "'" + str(value).replace("'", "''") + "'"


def options(values):
    return "OPTIONS (" + ", ".join(f"{k} {quoted(v)}" for k, v in values.items()) + ")"


def webhook(server, db, receiver, name="p", publication="pub", options_=None, start=True, mapping=None, **server_options):
    """A webhook pipeline named `name` to the receiver; its server is called s_<name>.

    `options_` are the pipeline's, keyword arguments the server's, `mapping`
    the user mapping's.
    """
    url = receiver if isinstance(receiver, str) else receiver.url
    server.sql(f"CREATE SERVER s_{name} FOREIGN DATA WRAPPER etl_webhook "
               + options({"url": url, **server_options}), db=db)
    if mapping:
        server.sql(f"CREATE USER MAPPING FOR CURRENT_USER SERVER s_{name} " + options(mapping), db=db)
    return create(server, db, name, publication, f"s_{name}", options_, start)


def clickhouse(server, db, ch, database, name="p", publication="pub", options_=None, start=True, mapping=None,
               **server_options):
    """A pipeline named `name` to a database of ClickHouse; its server is called s_<name>."""
    url = ch if isinstance(ch, str) else ch.url
    server.sql(f"CREATE SERVER s_{name} FOREIGN DATA WRAPPER etl_clickhouse "
               + options({"url": url, "database": database, **server_options}), db=db)
    if mapping:
        server.sql(f"CREATE USER MAPPING FOR CURRENT_USER SERVER s_{name} " + options(mapping), db=db)
    return create(server, db, name, publication, f"s_{name}", options_, start)


def null(server, db, name="p", publication="pub", options_=None, start=True):
    """A pipeline that discards."""
    server.sql(f"CREATE SERVER s_{name} FOREIGN DATA WRAPPER etl_null", db=db)
    return create(server, db, name, publication, f"s_{name}", options_, start)


def create(server, db, name, publication, destination, options_=None, start=True):
    pipeline_id = server.value(
        "SELECT etl.create_pipeline(%s, publication => %s, destination => %s, options => %s::jsonb)",
        (name, publication, destination, json.dumps(options_ or {})), db)
    if start:
        server.sql("SELECT etl.start_pipeline(%s)", (name,), db)
    return pipeline_id


def drop(server, db, name="p"):
    """Stop and remove; waits until its workers are gone."""
    from .wait import wait_until

    server.sql("SELECT etl.drop_pipeline(%s, force => true)", (name,), db)
    wait_until(lambda: server.status(name, db) is None, 20, f"pipeline {name} gone")
