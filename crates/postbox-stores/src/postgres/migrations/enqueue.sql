CREATE OR REPLACE FUNCTION {{enqueue}}(
    outbox         REGCLASS,
    topic          TEXT,
    payload        JSONB,
    event_id       UUID        DEFAULT NULL,
    tenant_id      UUID        DEFAULT NULL,
    aggregate_type TEXT        DEFAULT NULL,
    aggregate_id   TEXT        DEFAULT NULL,
    headers        JSONB       DEFAULT NULL,
    available_at   TIMESTAMPTZ DEFAULT NULL,
    occurred_at    TIMESTAMPTZ DEFAULT NULL,
    schema_id      TEXT        DEFAULT NULL,
    schema_version INT         DEFAULT NULL,
    routing_key    TEXT        DEFAULT NULL,
    metadata       JSONB       DEFAULT NULL,
    traceparent    TEXT        DEFAULT NULL,
    tracestate     TEXT        DEFAULT NULL
) RETURNS TABLE (enqueued_id UUID, enqueued_sequence BIGINT, duplicate BOOLEAN)
LANGUAGE plpgsql AS $postbox$
#variable_conflict use_variable
DECLARE
    bytes BIGINT;
BEGIN
    IF topic IS NULL OR length(topic) >= 128 OR topic !~ '^[a-z0-9-]+(\.[a-z0-9-]+){2,}\.v[1-9][0-9]{0,6}$' THEN
        RAISE EXCEPTION 'OUTBOX_TOPIC_INVALID: topic %', quote_nullable(left(topic, 64)) USING ERRCODE = '22023',
            HINT = 'Use <module>.<aggregate>.<event>.vN, lower case.';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'OUTBOX_PAYLOAD_INVALID: the payload is NULL' USING ERRCODE = '22004',
            HINT = 'JSON null is written as ''null''::jsonb.';
    END IF;
    bytes := octet_length(payload::text);
    IF bytes > 1048576 THEN
        RAISE EXCEPTION 'OUTBOX_PAYLOAD_TOO_LARGE: the payload has % bytes, the limit is 1048576', bytes
            USING ERRCODE = '22023', HINT = 'Store the data elsewhere and send a reference.';
    END IF;
    IF headers IS NOT NULL THEN
        IF jsonb_typeof(headers) <> 'object' THEN
            RAISE EXCEPTION 'OUTBOX_HEADERS_INVALID: headers are not an object' USING ERRCODE = '22023';
        END IF;
        IF EXISTS (SELECT 1 FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string') THEN
            RAISE EXCEPTION 'OUTBOX_HEADERS_INVALID: a header is not a text' USING ERRCODE = '22023';
        END IF;
        SELECT coalesce(sum(octet_length(h.key) + octet_length(h.value)), 0) INTO bytes FROM jsonb_each_text(headers) h;
        IF bytes > 8192 OR (SELECT count(*) FROM jsonb_each(headers)) > 64 THEN
            RAISE EXCEPTION 'OUTBOX_HEADERS_INVALID: more than 64 headers or 8192 bytes' USING ERRCODE = '22023';
        END IF;
    END IF;
    event_id := coalesce(event_id, gen_random_uuid());
    duplicate := false;
    FOR attempt IN 1..3 LOOP
        EXECUTE format(
            'INSERT INTO %s (event_id, tenant_id, topic, payload, available_at, aggregate_type, aggregate_id, headers,
                 occurred_at, schema_id, schema_version, routing_key, metadata, traceparent, tracestate)
             VALUES ($1, $2, $3, $4, coalesce($5, now()), $6, $7, $8, coalesce($9, now()), $10, $11, $12, $13, $14, $15)
             ON CONFLICT (event_id) DO NOTHING RETURNING sequence', outbox)
        INTO enqueued_sequence
        USING event_id, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'), topic, payload, available_at,
              aggregate_type, aggregate_id, headers, occurred_at, schema_id, schema_version, routing_key, metadata,
              traceparent, tracestate;
        EXIT WHEN enqueued_sequence IS NOT NULL;
        EXECUTE format('SELECT sequence FROM %s WHERE event_id = $1', outbox) INTO enqueued_sequence USING event_id;
        duplicate := enqueued_sequence IS NOT NULL;
        EXIT WHEN duplicate;
    END LOOP;
    IF enqueued_sequence IS NULL THEN
        RAISE EXCEPTION 'OUTBOX_DB_ERROR: the event was not written, and none with its event_id is to be seen' USING ERRCODE = '55000',
            HINT = 'A trigger of the table, or row-level security, keeps it out.';
    END IF;
    -- Only while a relay sleeps: it has this lock alone then.
    IF NOT duplicate AND NOT pg_try_advisory_xact_lock_shared({{wake_lock}}, outbox::oid::int) THEN
        PERFORM pg_notify('postbox_' || outbox::oid, '');
    END IF;
    enqueued_id := event_id;
    RETURN NEXT;
END
$postbox$
