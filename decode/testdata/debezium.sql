-- Rows in Debezium's outbox layout, with columns for its additional placements.
-- debezium.hex is what a real Postgres 15 sent for them, one pgoutput message a
-- line (as in postgres15.sql); debezium.json is what Debezium made of them.
CREATE TABLE outbox(id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb, trace text, part int, ts timestamp);
CREATE TABLE outbox_bytea(id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload bytea, trace text, part int, ts timestamp);
CREATE PUBLICATION p FOR TABLE outbox, outbox_bytea WITH (publish = 'insert');
SELECT pg_create_logical_replication_slot('s','pgoutput');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000001', 'order', '42', 'OrderCreated', '{"b": 1, "a": [1, 2.50, 1e400, null], "s": "é\u20ac\n\"q\""}', '00-abc-1', '0', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000002', 'Order', 'k-2', 'OrderCreated.v2', '"just a string"', NULL, '3', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000003', 'order.line', 'schlüssel', 'x y', '[]', 't', '7', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000004', 'order', '', 'EmptyKey', '{}', 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000005', 'order', '42', 'JsonNull', 'null', 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000006', 'order', '42', 'SqlNull', NULL, 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox VALUES ('00000000-0000-0000-0000-000000000007', 'order', '42', 'Number', '12345678901234567890.10', 't', '2', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000001', 'order', '42', 'OrderCreated', convert_to('{"b": 1, "a": [1, 2.50, 1e400, null], "s": "é\u20ac\n\"q\""}','UTF8'), '00-abc-1', '0', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000002', 'Order', 'k-2', 'OrderCreated.v2', convert_to('"just a string"','UTF8'), NULL, '3', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000003', 'order.line', 'schlüssel', 'x y', convert_to('[]','UTF8'), 't', '7', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000004', 'order', '', 'EmptyKey', convert_to('{}','UTF8'), 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000005', 'order', '42', 'JsonNull', convert_to('null','UTF8'), 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000006', 'order', '42', 'SqlNull', NULL, 't', '1', '2026-01-02 03:04:05.678');
INSERT INTO outbox_bytea VALUES ('00000000-0000-0000-0000-000000000007', 'order', '42', 'Number', convert_to('12345678901234567890.10','UTF8'), 't', '2', '2026-01-02 03:04:05.678');
