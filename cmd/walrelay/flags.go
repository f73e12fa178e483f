package main

import (
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/sink"
)

// settings is where the shared options store their values: mostly the packages'
// own configurations, so that no value is kept twice.
type settings struct {
	relay    relay.Config // Postgres, BufferBytes, DrainTimeout, Log; run adds the rest
	decode   decode.Config
	client   sink.ClientConfig
	producer sink.Config

	tls        bool
	tlsFiles   sink.TLSConfig
	sasl       sink.SASLConfig
	checkpoint string // path of the file; "" = the default one
	positions  string // the checkpoint's topic; "" = it is a file
	delivery   string

	fromFile, fromTopic string // --checkpoint-from
	http                string
	pprof               bool
	timeout             time.Duration // of a command that ends by itself

	config    string
	logLevel  string
	logFormat string
	stderr    io.Writer
	log       zerolog.Logger // set by load

	options []*option // the shared ones
}

// Values of --delivery.
const (
	atLeastOnce = "at-least-once"
	exactlyOnce = "exactly-once"
)

// Headings of --help and of the README's table.
const (
	groupPostgres = "POSTGRES"
	groupKafka    = "KAFKA"
	groupEvents   = "EVENTS"
	groupRelay    = "RELAY"
)

// newSettings declares every shared option. It is the only place that names one.
func newSettings(stderr io.Writer) *settings {
	s := &settings{stderr: stderr, log: zerolog.New(stderr)}
	pg := &s.relay.Postgres
	s.options = []*option{
		{group: groupPostgres, name: "postgres-url", arg: "URL", secret: true, set: postgresURL(&pg.URL),
			usage: "libpq URL or keywords; PG* variables, service and password files and sslmode work as in libpq", shown: "PG* variables"},
		{group: groupPostgres, name: "table", arg: "TABLE", def: "public.outbox_event", set: s.setTable,
			usage: "the outbox table, [schema.]name"},
		{group: groupPostgres, name: "publication", arg: "NAME", def: "walrelay", set: text(&pg.Publication),
			usage: "the publication that the table is in"},
		{group: groupPostgres, name: "slot", arg: "NAME", def: "walrelay", set: slotName(&pg.Slot),
			usage: "the logical replication slot"},

		{group: groupKafka, name: "kafka-brokers", arg: "HOST:PORT,…", list: true, set: brokers(&s.client.Brokers),
			usage: "brokers to ask for the cluster"},
		{group: groupKafka, name: "kafka-tls", shown: "off", set: boolean(&s.tls),
			usage: "encrypt, and verify the brokers"},
		{group: groupKafka, name: "kafka-ca-file", arg: "FILE", set: readable(&s.tlsFiles.CAFile), shown: "the system's",
			usage: "certificate authorities to trust, PEM"},
		{group: groupKafka, name: "kafka-cert-file", arg: "FILE", set: readable(&s.tlsFiles.CertFile),
			usage: "client certificate, PEM"},
		{group: groupKafka, name: "kafka-key-file", arg: "FILE", set: readable(&s.tlsFiles.KeyFile),
			usage: "key of the client certificate, PEM"},
		{group: groupKafka, name: "kafka-sasl", arg: "MECHANISM", shown: "off", usage: "plain, scram-sha-256, scram-sha-512, oauthbearer, or aws-msk-iam in a build with it",
			set: oneOf(&s.sasl.Mechanism, "plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "aws-msk-iam")},
		{group: groupKafka, name: "kafka-username", arg: "NAME", set: text(&s.sasl.Username),
			usage: "user for plain and scram"},
		{group: groupKafka, name: "kafka-password-file", arg: "FILE", set: readable(&s.sasl.PasswordFile),
			usage: "file with the password for plain and scram; read again for each connection"},
		{group: groupKafka, name: "kafka-oauth-token-file", arg: "FILE", set: readable(&s.sasl.OAuth.TokenFile),
			usage: "file with the bearer token; read again for each connection"},
		{group: groupKafka, name: "kafka-oauth-token-url", arg: "URL", set: text(&s.sasl.OAuth.TokenURL),
			usage: "token endpoint for the client credentials grant, instead of a token file"},
		{group: groupKafka, name: "kafka-oauth-client-id", arg: "ID", set: text(&s.sasl.OAuth.ClientID),
			usage: "client id at the token endpoint"},
		{group: groupKafka, name: "kafka-oauth-client-secret-file", arg: "FILE", set: readable(&s.sasl.OAuth.ClientSecretFile),
			usage: "file with the client secret"},
		{group: groupKafka, name: "kafka-oauth-scope", arg: "SCOPE", set: text(&s.sasl.OAuth.Scope),
			usage: "scope to ask the token endpoint for"},
		{group: groupKafka, name: "kafka-oauth-extension", arg: "NAME=VALUE", list: true, set: s.addExtension,
			usage: "SASL extension sent with the token"},
		{group: groupKafka, name: "create-topics", arg: "PARTITIONS:REPLICATION", shown: "off: a missing topic is waited for", set: partitionsReplication(&s.producer.CreateTopics),
			usage: "create missing topics like this"},
		{group: groupKafka, name: "allow-weak-topics", shown: "off", set: boolean(&s.producer.AllowWeakTopics),
			usage: "accept topics that lose acknowledged events when one broker is lost"},
		{group: groupKafka, name: "compression", arg: "CODEC", def: "none", set: oneOf(&s.producer.Compression, "none", "lz4", "snappy", "gzip", "zstd"),
			usage: "none, lz4, snappy, gzip or zstd"},
		{group: groupKafka, name: "batch-bytes", arg: "SIZE", def: "1MiB", set: size(&s.producer.BatchBytes),
			usage: "most bytes of one record batch; keep it under the topics' max.message.bytes"},

		{group: groupEvents, name: "preset", arg: "NAME", def: "default", set: oneOf(&s.decode.Preset, "default", "debezium"),
			usage: "default, or debezium: the columns, topics and headers of Debezium's outbox event router"},
		{group: groupEvents, name: "column", arg: "ROLE=NAME", list: true, set: add(&s.decode.Columns), shown: "the preset's",
			usage: "the column that has a role; ROLE= turns the role off"},
		{group: groupEvents, name: "header", arg: "NAME=COLUMN", list: true, set: add(&s.decode.Headers),
			usage: "one more header, from a column"},
		{group: groupEvents, name: "topic", arg: "TEMPLATE", def: "outbox.event.{aggregate_type}", set: text(&s.decode.Topic),
			usage: "topic of rows that name none; {aggregate_type} and {event_type} are replaced"},
		{group: groupEvents, name: "topic-allow", arg: "GLOB", list: true, set: add(&s.decode.TopicAllow), shown: "the template's own pattern",
			usage: "topics that rows may go to"},
		{group: groupEvents, name: "poison", arg: "POLICY", def: "stop", set: s.setPoison,
			usage: "what to do with a row that can never be published: stop or dead-letter"},
		{group: groupEvents, name: "dead-letter-topic", arg: "TOPIC", def: "{topic}.DLT", set: s.setDeadLetter,
			usage: "where dead letters go; {topic} is the event's topic"},

		{group: groupRelay, name: "buffer-bytes", arg: "SIZE", def: "16MiB", set: size(&s.relay.BufferBytes),
			usage: "most bytes of all events held"},
		{group: groupRelay, name: "delivery", arg: "MODE", def: atLeastOnce, set: oneOf(&s.delivery, atLeastOnce, exactlyOnce),
			usage: "at-least-once, or exactly-once: events and position in one Kafka transaction; consumers read with isolation.level=read_committed"},
		{group: groupRelay, name: "checkpoint", arg: "STORE", set: checkpointPlace(&s.checkpoint, &s.positions),
			shown: "file:walrelay-SLOT.checkpoint in $STATE_DIRECTORY or the working folder; with exactly-once kafka:walrelay-checkpoint",
			usage: "file:PATH; kafka:TOPIC, a compacted topic, for standbys on several hosts; or none to trust the slot alone"},
		{group: groupRelay, name: "checkpoint-from", arg: "STORE", set: checkpointPlace(&s.fromFile, &s.fromTopic),
			shown: "with a checkpoint in Kafka the default file, if it is there",
			usage: "where the position was kept before, file:PATH or kafka:TOPIC: it is taken over once, and the old store marked as moved"},
		{group: groupRelay, name: "replay-retain", arg: "SIZE", def: "0", set: sizeOrZero(&s.relay.Postgres.ReplayRetain),
			usage: "how much WAL can be replayed: so far behind is the anchor kept; 0: no anchor"},
		{group: groupRelay, name: "http", arg: "ADDR", def: "127.0.0.1:9464", set: listenAddress(&s.http),
			usage: "address of /metrics, /healthz, /readyz and /status; off for none"},
		{group: groupRelay, name: "pprof", shown: "off", set: boolean(&s.pprof),
			usage: "also serve profiles of the process there, under /debug/pprof/"},
		{group: groupRelay, name: "drain-timeout", arg: "TIME", def: "30s", set: duration(&s.relay.DrainTimeout),
			usage: "how long a stop waits for what is in flight; 0s: as long as it takes"},
		{group: groupRelay, name: "timeout", arg: "TIME", def: "30s", set: duration(&s.timeout),
			usage: "when a command that ends by itself gives up; run does not"},
		{group: groupRelay, name: "log-level", arg: "LEVEL", def: "info", set: oneOf(&s.logLevel, "trace", "debug", "info", "warn", "error"),
			usage: "trace, debug, info, warn or error"},
		{group: groupRelay, name: "log-format", arg: "FORMAT", def: "auto", set: oneOf(&s.logFormat, "auto", "json", "console"),
			usage: "json, console, or auto: console on a terminal, json elsewhere"},
		{group: groupRelay, name: "config", arg: "FILE", set: text(&s.config),
			usage: "YAML file with these options, without the dashes, as keys"},
	}
	return s
}
