-- What a consumer needs in its own database, so that its effects happen once:
--
--     psql -d appdb -v ON_ERROR_STOP=1 -f inbox.sql
--
-- The consumer claims an event in the transaction of its effect: it inserts a row here, and
-- does nothing if the row is there already. Consumers in other languages do the same by
--
--     INSERT INTO consumed_event (consumer_name, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING
--
-- as the first statement of the transaction, and leave out the effect if no row was inserted.

-- One row for each event that was applied. A second claim of the same event waits at the
-- primary key until the transaction of the first has ended. consumer_name is one name for each
-- effect; a consumer of idempotency keys has a name of its own (name#key).
CREATE TABLE IF NOT EXISTS consumed_event (
    consumer_name text NOT NULL,
    event_id      text NOT NULL,
    claimed_at    timestamptz NOT NULL DEFAULT now(),
    parked_at     timestamptz, -- not applied: it went to the dead-letter topic
    result        bytea,       -- what duplicates get as an answer
    PRIMARY KEY (consumer_name, event_id)
);

-- Retention. Keep a row for longer than anything can bring its event again: the topic's
-- retention, the outbox that recover publishes from, the window of replay; where event
-- ids are deterministic, longer than the command that they are made of can be repeated. Then, now
-- and then, in batches, so that no transaction is long:
--
--     DELETE FROM consumed_event WHERE ctid = ANY (ARRAY(
--         SELECT ctid FROM consumed_event
--         WHERE claimed_at < now() - interval '30 days' AND parked_at IS NULL LIMIT 5000));
--
-- A BRIN index finds the old rows and costs an insert next to nothing. Partitions by time
-- would be dropped faster, but a primary key must then contain the time, and two copies of an
-- event that are claimed at different times would both be new.
CREATE INDEX IF NOT EXISTS consumed_event_claimed_at ON consumed_event USING brin (claimed_at) WITH (autosummarize = on);

-- The position inbox: one row for each consumer, topic, partition and source (the header
-- walrelay-source), with the position that was applied last. It never grows. Half-empty pages let
-- updates stay on their page.
CREATE TABLE IF NOT EXISTS consumed_position (
    consumer_name text    NOT NULL,
    topic         text    NOT NULL,
    partition     integer NOT NULL,
    source        text    NOT NULL,
    lsn           pg_lsn  NOT NULL, -- header walrelay-lsn
    seq           bigint  NOT NULL, -- header walrelay-seq
    PRIMARY KEY (consumer_name, topic, partition, source)
) WITH (fillfactor = 50);
