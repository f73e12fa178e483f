-- What the real server was asked for; postgres15.hex is its answer, one pgoutput
-- message a line, by
--
--   SET timezone = 'Asia/Kolkata';
--   SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,
--     'proto_version', '1', 'publication_names', 'p', 'messages', 'true');
CREATE TYPE mood AS ENUM ('ok','bad');
CREATE DOMAIN eid AS uuid;
CREATE TABLE outbox_event(note text, event_id eid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type mood, payload jsonb, topic text, headers json, correlation_id bigint, idempotency_key varchar(40), created_at timestamptz);
CREATE TABLE other(id int primary key, t text);
CREATE TABLE part_outbox(event_id text, aggregate_type text, aggregate_id text, payload bytea, part int, day int not null) PARTITION BY LIST(day);
CREATE TABLE part_outbox_1 PARTITION OF part_outbox FOR VALUES IN (1);
CREATE PUBLICATION p FOR TABLE outbox_event, other, part_outbox WITH (publish_via_partition_root);
SELECT pg_create_logical_replication_slot('s','pgoutput');
INSERT INTO outbox_event VALUES (NULL, '00000000-0000-0000-0000-000000000001','order','k1','ok','{"b":1,"a":[1,2.50,1e3,null],"s":"é\u20ac\n\"q\""}',NULL,'{"a":"x\ny","n": 1.50,"o":{"k":[1, 2]},"z":null,"event-id":"forged","bad":"\ud800x"}',42,'ik','2026-01-02 03:04:05.678901+00');
BEGIN;
INSERT INTO other VALUES (1,'x');
INSERT INTO outbox_event VALUES (NULL, '00000000-0000-0000-0000-000000000002','order','','bad','null',NULL,NULL,NULL,NULL,'infinity');
SAVEPOINT a;
INSERT INTO outbox_event VALUES (NULL, '00000000-0000-0000-0000-00000000dead','order','','bad','null',NULL,NULL,NULL,NULL,NULL);
ROLLBACK TO a;
INSERT INTO outbox_event VALUES (NULL, '00000000-0000-0000-0000-000000000003','order',NULL,NULL,NULL,'outbox.event.special','{}',NULL,NULL,'0044-03-15 12:00:00 BC');
UPDATE outbox_event SET payload='1' WHERE event_id='00000000-0000-0000-0000-000000000002';
DELETE FROM outbox_event WHERE event_id='00000000-0000-0000-0000-000000000003';
COMMIT;
ALTER TABLE outbox_event ADD COLUMN extra int DEFAULT 7;
ALTER TABLE outbox_event DROP COLUMN note;
INSERT INTO outbox_event(event_id,aggregate_type,aggregate_id,payload,created_at) SELECT ('00000000-0000-0000-0000-0000000001'||lpad(i::text,2,'0'))::uuid, 'order','k'||i, to_jsonb(repeat('x',100*i)), '2026-01-02 03:04:05+00' FROM generate_series(0,3) i;
TRUNCATE other;
SELECT pg_logical_emit_message(true,'walrelay','hello');
INSERT INTO part_outbox VALUES ('p1','line','k','\x00ff10',3,1),('p2','line','k',NULL,NULL,1),('p3','line','k','\x',0,1);
