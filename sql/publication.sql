-- What walrelay needs in the database, for a DBA to read and run. This is what
-- `walrelay setup --create-table --role walrelay` does, and `--print` prints, for
-- the default names. Run it in the database that holds the outbox:
--
--     psql -d appdb -v ON_ERROR_STOP=1 -f publication.sql
--
-- not with psql's -1: a slot can't be created in a transaction that has written.
-- Keep the order. A slot that is older than its publication can't get past the
-- WAL in between.
--
-- Server settings, once, followed by a restart:
--
--     ALTER SYSTEM SET wal_level = 'logical';
--     -- one slot and one sender for the relay, beside those for standbys and backups
--     ALTER SYSTEM SET max_replication_slots = 10;
--     ALTER SYSTEM SET max_wal_senders = 10;

-- The outbox. Services insert here, in the transaction of the change that the
-- event is about. Every column can have another name; only the id, the key
-- (aggregate_id) and the payload have to be there; a service may declare any of
-- them stricter (uuid, NOT NULL). The table may be partitioned. Rows may be
-- deleted at any time, in the same transaction too: the stream comes from the WAL.
CREATE TABLE IF NOT EXISTS public.outbox_event (
    event_id        text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    topic           text,
    headers         jsonb,
    correlation_id  text,
    idempotency_key text,
    created_at      timestamptz DEFAULT clock_timestamp()
);

-- What is streamed. Inserts only: deletes and updates in the outbox then cost the
-- stream nothing, and no replica identity is needed. A partitioned outbox comes
-- under its own name instead of its partitions'. No row filter and no column
-- list: a hidden row is a lost event. Needs CREATE on the database and ownership
-- of the table.
CREATE PUBLICATION walrelay FOR TABLE public.outbox_event WITH (publish = 'insert', publish_via_partition_root = true);

-- Where the stream stands. Rows committed after this are delivered; the server
-- keeps WAL until walrelay has confirmed it, also while walrelay is down. So
-- monitor it, and decide what may be sacrificed when the disk fills up:
--
--     ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  -- then SELECT pg_reload_conf();
--
-- without a limit (-1, the default) a relay that is gone for good fills the disk
-- and stops the database; with one the slot is invalidated beyond it, and what it
-- still had to deliver must be published from the table. Set it well above
-- the WAL of the longest outage that you want to survive. To retire the relay:
-- SELECT pg_drop_replication_slot('walrelay'). Needs REPLICATION; waits until the
-- transactions that are writing now have ended.
SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput');

-- The role that walrelay runs as. LOGIN and REPLICATION are all that streaming
-- needs. It has no password yet; set one so that it isn't logged:
-- \password walrelay
--
-- REPLICATION is a power over the whole cluster: with it a client can copy every
-- database (pg_basebackup) and create or drop slots. Contain it in pg_hba.conf,
-- above more general lines. A logical stream matches by its database; the keyword
-- replication matches physical ones only:
--
--     # TYPE   DATABASE     USER      ADDRESS       METHOD
--     hostssl  appdb        walrelay  10.0.0.0/8    scram-sha-256
--     host     all          walrelay  all           reject
--     host     replication  walrelay  all           reject
--
-- (Where the provider reserves the attribute: CREATE ROLE walrelay LOGIN, then its
-- own way, as in GRANT rds_replication TO walrelay.)
CREATE ROLE walrelay LOGIN REPLICATION;

-- To connect to this database, for the stream and for the catalog queries beside
-- it. PUBLIC has this unless it was revoked.
DO $$ BEGIN
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'walrelay');
END $$;

-- To see the table. The stream itself needs no privilege on it; reading it is
-- needed only to publish from the table itself, when the stream can't be continued:
-- GRANT SELECT ON public.outbox_event TO walrelay;
GRANT USAGE ON SCHEMA public TO walrelay;
