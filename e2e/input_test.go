package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/proc"
)

// What is wrong on the command line is exit 2 and one line that names it, before any
// server is asked.
func TestUsageErrors(t *testing.T) {
	for _, test := range []struct {
		args string
		says string
	}{
		{"run --no-such-flag", "no-such-flag"},
		{"no-such-command", "no-such-command"},
		{"run --column nonsense=x", "nonsense"},
		{"run --column payload", "payload"},
		{"run --header novalue", "novalue"},
		{"run --topic bad/name.{aggregate_type}", "bad/name"},
		{"run --topic events.{no_such_role}", "no_such_role"},
		{"run --topic __consumer_offsets", "__consumer_offsets"},
		{"run --slot Bad-Slot", "(?i)slot"},
		{"run --checkpoint nowhere", "checkpoint"},
		{"run --buffer-bytes lots", "buffer-bytes"},
		{"run --compression rar", "compression"},
		{"run --create-topics many", "create-topics"},
		{"run --until yesterday", "until"},
		{"run --config /no/such/file.yaml", "/no/such/file.yaml"},
		{"run --kafka-ca-file /no/such/ca.pem --kafka-tls", "/no/such/ca.pem"},
	} {
		t.Run(test.args, func(t *testing.T) {
			env := []string{"WALRELAY_POSTGRES_URL=postgres://u:hunter2@127.0.0.1:1/d", "WALRELAY_KAFKA_BROKERS=127.0.0.1:1", "WALRELAY_HTTP=off"}
			r, err := harness.Command(t.Context(), t.TempDir(), env, strings.Fields(test.args)...)
			if err != nil {
				t.Fatal(err)
			}
			says(t, r.Stderr, test.says)
			if r.Code != 2 {
				t.Errorf("exit %d, want 2", r.Code)
			}
			if n := strings.Count(strings.TrimSpace(r.Stderr), "\n"); n > 0 {
				t.Errorf("%d lines where one would do:\n%s", n+1, r.Stderr)
			}
		})
	}
}

func says(t *testing.T, log, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(log) {
		t.Errorf("says nothing of %q:\n%s", pattern, lastLines(log, 5))
	}
	if strings.Contains(log, "hunter2") || strings.Contains(log, secretPayload) {
		t.Errorf("a secret in the log:\n%s", lastLines(log, 5))
	}
}

const secretPayload = "s3cret-payload"

// G1: what is missing in Postgres and cannot be proven continuous ends the run with its
// code and a way out, and moves nothing.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name string
		sql  string // breaks what setup has made; %s is the slot's and publication's name
		args []string
		code int
		says string
	}{
		{"missing slot", "SELECT pg_drop_replication_slot('%s')", nil, 10, "(?i)slot"},
		{"missing publication", "DROP PUBLICATION %s", nil, 10, "(?i)publication"},
		{"missing table", "DROP TABLE outbox_event", nil, 10, "outbox_event"},
		{"table left the publication", "ALTER PUBLICATION %s DROP TABLE outbox_event", nil, 10, "(?i)publication"},
		{"missing column", "ALTER TABLE outbox_event DROP COLUMN payload", nil, 13, "payload"},
		{"mapped column that is not there", "", []string{"--column", "payload=body"}, 13, "body"},
		{"key of a type that can't be carried", "ALTER TABLE outbox_event ALTER aggregate_id TYPE bytea USING NULL", nil, 13, "aggregate_id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, option{args: test.args})
			f.insert("before")
			f.sampler.Stop()
			if test.sql != "" {
				f.exec(f.name, strings.ReplaceAll(test.sql, "%s", f.name))
			}
			f.must(f.relay.Start())
			f.exits(test.code)
			says(t, f.relay.Log(), test.says)
			t.Log(lastLines(f.relay.Log(), 1))
			if f.published() != 0 {
				t.Error("something was published")
			}
		})
	}
}

// wal_level below logical: setup and run name the setting. Exit 2.
func TestWalLevelReplica(t *testing.T) {
	f := newFixture(t, option{pg: ownPostgres(t, map[string]string{"wal_level": "replica"}), unprepared: true})
	r, err := f.relay.Command(f.ctx, "setup", "--create-table")
	f.must(err)
	if r.Code != 2 {
		t.Errorf("setup: exit %d, want 2", r.Code)
	}
	says(t, r.Stderr, "wal_level")
	f.must(f.relay.Start())
	f.exits(2)
	says(t, f.relay.Log(), "wal_level")
}

// G1: a row that can never be published stops the run with 11, by its id and position
// and without its payload; all before it is delivered and confirmed, nothing after it.
func TestPoisonRowStops(t *testing.T) {
	f := newFixture(t, option{})
	for i, poison := range []struct{ column, value string }{
		{"topic", "illegal name!"},
		{"topic", "not.allowed"},
		{"topic", "__consumer_offsets"},
		{"topic", ".."},
		{"headers", `["no", "object"]`},
		{"payload", `{"large": "` + noise(3<<20) + `"}`},
	} {
		id := fmt.Sprintf("poison-%d", i)
		f.insert(fmt.Sprintf("good-%d", i))
		mark := query[string](f, "SELECT pg_current_wal_lsn()::text")
		row := map[string]string{"payload": `{"` + secretPayload + `": 1}`, poison.column: poison.value}
		columns, values, args := "event_id, aggregate_type, aggregate_id", "$1, $2, 'key'", []any{id, f.types[0]}
		for column, value := range row {
			args = append(args, value)
			columns += ", " + column
			values += fmt.Sprintf(", $%d", len(args))
		}
		f.exec(f.name, "INSERT INTO outbox_event ("+columns+") VALUES ("+values+")", args...)
		f.must(f.relay.Start())
		f.exits(11)
		says(t, lastLines(f.relay.Log(), 1), id)
		says(t, f.relay.Log(), `\d+/[0-9A-F]+`)
		if !query[bool](f, confirmedPast, f.name, mark) {
			t.Errorf("%s: what was committed before it is not confirmed", id)
		}
		if n := f.published(); n != int64(i+1) {
			t.Errorf("%s: %d records, want %d", id, n, i+1)
		}
		// The way on here: past the row, by hand. What comes next must be published.
		f.exec(f.name, "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", f.name)
		f.must(removeFile(f.relay.Checkpoint()))
	}
}

// G8: run waits for what is unreachable, alive and not ready; what was written is
// delivered when it is there.
func TestWaitsForPostgres(t *testing.T) {
	t.Parallel()
	f := newFixture(t, option{})
	f.insert("waiting")
	f.pg.Proxy.Pass()
	ports, err := proc.FreePorts(1)
	f.must(err)
	url := f.relay.Postgres
	f.relay.Postgres = strings.Replace(url, f.pg.Proxy.Addr(), proc.Addr(ports[0]), 1)
	f.must(f.relay.Start())
	f.pass(3 * time.Second)
	if f.relay.Ready(f.ctx) == nil {
		t.Error("ready without Postgres")
	}
	says(t, f.relay.Log(), "refused")
	f.must(f.relay.Kill(f.ctx))
	f.relay.Postgres = url
	f.up()
	f.drain()
	f.stop()
	f.noRepeats()
}

func TestWaitsForKafka(t *testing.T) {
	t.Parallel()
	f := newFixture(t, option{args: []string{"--drain-timeout", "2s"}})
	f.insert("waiting")
	ports, err := proc.FreePorts(1)
	f.must(err)
	f.relay.Brokers = proc.Addr(ports[0])
	f.must(f.relay.Start())
	f.pass(6 * time.Second)
	if f.relay.Ready(f.ctx) == nil {
		t.Error("ready without Kafka")
	}
	says(t, f.relay.Log(), "refused")
	f.must(f.relay.Signal(syscall.SIGTERM))
	f.exits(14) // an event was in flight
	f.relay.Brokers = f.kafka.Bootstrap()
	f.up()
	f.drain()
	f.stop()
	f.noRepeats()
}

func TestWaitsForMissingTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t, option{unprepared: true})
	late := f.name + ".late"
	f.setup()
	f.types = append(f.types, late)
	f.watch() // takes no sample before all topics exist
	f.insert("before")
	f.exec(f.name, "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload) VALUES ('late', $1, 'key', '{}')", late)
	f.must(f.relay.Start())
	f.await(20*time.Second, "the log names the topic", func() bool { return strings.Contains(f.relay.Log(), "outbox.event."+late) })
	f.pass(6 * time.Second)
	if f.relay.Ready(f.ctx) == nil {
		t.Error("ready with a row whose topic is missing")
	}
	f.must(f.kafka.CreateTopics(f.ctx, 3, nil, "outbox.event."+late))
	f.must(f.relay.AwaitReady(f.ctx))
	f.drain()
	f.stop()
	f.noRepeats()
}

// What only a person can mend ends the run with 12, after a minute in which it might
// have been a rotation of passwords.
func TestAuthenticationIsRetriedForAMinute(t *testing.T) {
	t.Parallel()
	f := newFixture(t, option{})
	f.insert("waiting")
	f.exec("postgres", "CREATE ROLE "+f.name+" LOGIN PASSWORD 'hunter2'")
	t.Cleanup(func() { f.exec("postgres", "DROP ROLE "+f.name) })
	unprivileged, err := harness.New(f.relay.Config)
	f.must(err)
	defer unprivileged.Close()
	unprivileged.Postgres = f.pg.UserURL(f.name, "hunter2", f.name) // no REPLICATION
	f.relay.Postgres = f.pg.UserURL(f.name, "wrong-hunter2", f.name)
	begin := time.Now()
	f.must(f.relay.Start())
	f.must(unprivileged.Start())
	f.exits(12)
	if d := time.Since(begin); d < 50*time.Second || d > 90*time.Second {
		t.Errorf("gave up after %s", d)
	}
	says(t, f.relay.Log(), "(?i)password|authentication")
	if code, err := unprivileged.Wait(f.ctx); err != nil || code != 12 {
		t.Errorf("no privilege: exit %d, %v", code, err)
	}
	says(t, unprivileged.Log(), "(?i)replication")
	if f.published() != 0 {
		t.Error("something was published")
	}
}

// G1: a relay that finds its slot in use waits, and takes over when it is free.
func TestStandbyTakesOver(t *testing.T) {
	f := newFixture(t, option{})
	f.up()
	config := f.relay.Config
	config.Shared = f.relay.Checkpoint()
	standby, err := harness.New(config)
	f.must(err)
	defer standby.Close()
	f.must(standby.Start())
	f.insert("one")
	f.drain()
	f.pass(2 * time.Second)
	if standby.Ready(f.ctx) == nil || !standby.Running() {
		t.Errorf("the standby is ready, or has ended\n%s", lastLines(standby.Log(), 5))
	}
	f.must(f.relay.Kill(f.ctx))
	f.must(standby.AwaitReady(f.ctx))
	f.insert("two")
	f.drain()
	if code, err := standby.Stop(f.ctx); code != 0 || err != nil {
		t.Errorf("exit %d, %v", code, err)
	}
	f.check()
}
