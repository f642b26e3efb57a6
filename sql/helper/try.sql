-- What a statement answers when it fails: SQLSTATE, message, detail, hint.
CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN state || ': ' || message
        || CASE WHEN detail <> '' THEN E'\nDETAIL: ' || detail ELSE '' END
        || CASE WHEN hint <> '' THEN E'\nHINT: ' || hint ELSE '' END;
END
$$;

-- Wait until a query gives true; false after the deadline.
CREATE PROCEDURE eventually(query text, seconds integer DEFAULT 30) LANGUAGE plpgsql AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + seconds * interval '1 second';
    answer boolean;
BEGIN
    LOOP
        EXECUTE query INTO answer;
        EXIT WHEN answer;
        IF clock_timestamp() > deadline THEN
            RAISE EXCEPTION 'not true within % s: %', seconds, query;
        END IF;
        COMMIT;
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;

\pset format unaligned
\pset footer off
\set ECHO all
