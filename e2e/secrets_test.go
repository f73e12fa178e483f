package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Neither a password nor a payload shows anywhere: not in the log at its finest, not in
// what the HTTP endpoints say, not in the process' command line, and with a password file
// not in its environment.
func TestSecretsStaySecret(t *testing.T) {
	const password, payload = "pa55-in-a-file", "pa7load-of-a-row"
	f := newFixture(t, option{args: []string{"--log-level", "trace", "--poison", "dead-letter", "--dead-letter-topic", "secrets.dead"}})
	f.exec("postgres", "CREATE ROLE "+f.name+" LOGIN REPLICATION PASSWORD '"+password+"'")
	t.Cleanup(func() { f.exec("postgres", "DROP ROLE "+f.name) })
	f.must(f.kafka.CreateTopics(f.ctx, 1, nil, "secrets.dead"))
	file := filepath.Join(f.relay.Dir(), "pgpass")
	f.must(os.WriteFile(file, []byte("*:*:*:*:"+password+"\n"), 0o600))
	f.relay.Postgres = strings.Replace(f.pg.UserURL(f.name, "x", f.name), ":x@", "@", 1)
	f.relay.Env = []string{"PGPASSFILE=" + file}
	f.up()
	for i, topic := range []string{"outbox.event." + f.types[0], "not.allowed"} {
		f.exec(f.name, `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload, topic, headers) VALUES ($1, $2, 'key', $3, $4, $5)`,
			fmt.Sprintf("secret-%d", i), f.types[0], `{"`+payload+`": 1}`, topic, `{"`+payload+`": 1, "walrelay-lsn": "`+payload+`"}`)
	}
	f.drain()
	proc := fmt.Sprintf("/proc/%d/", f.relay.Pid())
	said := map[string]string{"log": f.relay.Log()}
	for _, name := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(proc + name)
		f.must(err)
		said[name] = string(b)
	}
	for _, path := range []string{"/metrics", "/readyz", "/healthz", "/status", "/debug/pprof/cmdline"} {
		resp, err := http.Get("http://" + f.relay.HTTP + path)
		f.must(err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		f.must(err)
		said[path] = string(b)
	}
	help, err := f.relay.Command(f.ctx, "run", "--help")
	f.must(err)
	said["--help"] = help.Stdout + help.Stderr
	f.stop()
	checkpoint, err := os.ReadFile(f.relay.Checkpoint())
	f.must(err)
	said["checkpoint"] = string(checkpoint)
	for where, text := range said {
		if text == "" && where != "/healthz" {
			t.Errorf("%s is empty: nothing was checked", where)
		}
		for _, secret := range []string{password, payload} {
			if strings.Contains(text, secret) {
				t.Errorf("%s tells %s", where, secret)
			}
		}
	}
}

// Rows are input: they choose no topic outside the allow-list, none of Kafka's or the
// relay's own, no dead-letter topic; they forge none of the relay's headers; and nothing
// that they say is taken for the name of a file.
func TestRowsAreNotTrusted(t *testing.T) {
	f := newFixture(t, option{args: []string{"--poison", "dead-letter", "--topic-allow", "outbox.event.*", "--dead-letter-topic", "outbox.event.dead"}})
	f.must(f.kafka.CreateTopics(f.ctx, 1, nil, "outbox.event.dead")) // what went elsewhere would wait for ever
	f.up()
	bad := []string{"elsewhere", "_schemas", "__consumer_offsets", "walrelay-checkpoint", "outbox.event.dead", "walrelay.DLT", "../../etc/passwd",
		"file:///etc/passwd", "@/etc/passwd", "outbox.event." + strings.Repeat("x", 300), "outbox.event.a/b", "outbox.event.\n", "OUTBOX.EVENT.x"}
	const forged = `{"walrelay-lsn": "0/1", "walrelay-seq": "7", "walrelay-source": "00000000", "walrelay-error": "forged", "walrelay-original-topic": "x",
		"Walrelay-LSN": "0/1", "event-id": "forged", "idempotency-key": "forged", "file": "@/etc/passwd"}`
	for i, topic := range append(bad, "outbox.event."+f.types[0]) {
		f.exec(f.name, `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload, topic, headers) VALUES ($1, $2, '/etc/passwd', '"@/etc/passwd"', $3, $4)`,
			fmt.Sprintf("row-%d", i), f.types[0], topic, forged)
	}
	f.drain()
	f.stop()
	if n := f.published(); n != 1 {
		t.Errorf("%d records in the allowed topics, want 1", n)
	}
	client, err := f.kafka.Client(kgo.ConsumeTopics("outbox.event.dead", f.topics()[0]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	f.must(err)
	defer client.Close()
	for seen := 0; seen < len(bad)+1; {
		fetches := client.PollFetches(f.ctx)
		f.must(f.ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			headers := map[string][]string{}
			for _, h := range r.Headers {
				headers[h.Key] = append(headers[h.Key], string(h.Value))
			}
			_, dead := headers["walrelay-error"]
			if own := r.Topic == f.topics()[0]; !own && r.Topic != "outbox.event.dead" || own == dead {
				t.Errorf("%v is in %s", headers["event-id"], r.Topic)
			}
			for _, name := range []string{"walrelay-lsn", "walrelay-seq", "walrelay-source", "event-id", "idempotency-key"} {
				if v := headers[name]; len(v) != 1 || v[0] == "forged" || v[0] == "0/1" || v[0] == "7" || v[0] == "00000000" {
					t.Errorf("%v: %s is %q", headers["event-id"], name, v)
				}
			}
			if string(r.Value) != `"@/etc/passwd"` || string(r.Key) != "/etc/passwd" || headers["file"][0] != "@/etc/passwd" {
				t.Errorf("%v is not what the row says", headers["event-id"])
			}
			if strings.Contains(strings.Join(headers["walrelay-error"], ""), "forged") {
				t.Error("a row says why it is a dead letter")
			}
		})
	}
}
