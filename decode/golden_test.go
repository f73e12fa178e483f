package decode

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// hexLines reads messages that a real server sent.
func hexLines(t testing.TB, path string) (messages [][]byte) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.FieldsSeq(string(text)) {
		m, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	return messages
}

// render writes an event for comparison, nil and empty told apart.
func render(ev *Event) string {
	var w strings.Builder
	bytesOf := func(p []byte) string {
		if p == nil {
			return "nil"
		}
		return fmt.Sprintf("%q", p)
	}
	fmt.Fprintf(&w, "seq %d topic %s key %s value %s id %s ts %d partition %d", ev.Seq, ev.Topic, bytesOf(ev.Key),
		bytesOf(ev.Value), bytesOf(ev.ID), ev.Timestamp, ev.Partition)
	for _, h := range ev.Headers.List() {
		fmt.Fprintf(&w, "\n  %s=%s", h.Key, bytesOf(h.Value))
	}
	if ev.Poison != nil {
		fmt.Fprintf(&w, "\n  poison: %s", ev.Poison.Reason)
	}
	return w.String() + "\n"
}

func decodeAll(t *testing.T, d *Decoder, messages [][]byte) (b *Batch, kinds string) {
	t.Helper()
	b = NewBatch(1 << 20)
	d.Start("0badcafe")
	for i, m := range messages {
		scratch := bytes.Clone(m)
		kind, err := d.Decode(scratch, b)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		for k := range scratch { // the batch may keep nothing of the message
			scratch[k] = 0xee
		}
		kinds += string("obRc"[kind])
	}
	return b, kinds
}

func mustNew(t testing.TB, cfg Config) *Decoder {
	t.Helper()
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// G6, G4: what a real Postgres 15 sent, with domains, enums, other tables, a rolled
// back savepoint, updates, deletes, a truncate, a logical message and a changed table.
func TestG6RealServer(t *testing.T) {
	messages := hexLines(t, "testdata/postgres15.hex")
	d := mustNew(t, Config{Schema: "public", Table: "outbox_event", Headers: []string{"mood=event_type"}})
	b, kinds := decodeAll(t, d, messages)
	if want := "booo" + "Rc" + "booRRoocbooo" + "RRRRc" + "boocbocbooooo" + "c"; kinds != want {
		t.Errorf("kinds %s\nwant  %s", kinds, want)
	}
	var got strings.Builder
	for i := range b.Events {
		got.WriteString(render(&b.Events[i]))
	}
	compareFile(t, "testdata/postgres15.golden", got.String())
	if d.DroppedHeaders != 1 || d.DroppedNames()[0] != "event-id" || d.DroppedNames() != nil {
		t.Errorf("dropped %d headers", d.DroppedHeaders)
	}
	txn, open := d.Txn()
	if open || txn.Rows != 0 || txn.End <= txn.Commit || txn.Commit <= b.Events[6-1].Commit {
		t.Errorf("the last transaction is %+v", txn)
	}
}

// G6: bytea, and a partitioned table that is published by its root.
func TestG6RealServerPartitioned(t *testing.T) {
	d := mustNew(t, Config{Schema: "public", Table: "part_outbox", Columns: []string{"partition=part"}})
	b, _ := decodeAll(t, d, hexLines(t, "testdata/postgres15.hex"))
	var got strings.Builder
	for i := range b.Events {
		got.WriteString(render(&b.Events[i]))
	}
	compareFile(t, "testdata/postgres15_part.golden", got.String())
}

func compareFile(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s", path, got)
	}
}

type debeziumRecord struct {
	Topic     string
	Partition int32
	Timestamp int64
	Key       *string
	Value     *string
	Headers   [][2]*string
}

// G6: a team that moves over finds the records that Debezium wrote for its rows:
// topic, key, value, id header, placed headers, partition and timestamp.
func TestG6Debezium(t *testing.T) {
	var recorded struct {
		Variants map[string]struct{ Records []debeziumRecord }
	}
	text, err := os.ReadFile("testdata/debezium.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	messages := hexLines(t, "testdata/debezium.hex")
	preset := Config{Schema: "public", Table: "outbox", Preset: "debezium"}
	placement := preset
	placement.Columns = []string{"partition=part", "timestamp=ts"}
	placement.Headers = []string{"eventType=type", "traceparent=trace"}
	placement.Topic = "app.{aggregatetype}.events"
	bytea := preset
	bytea.Table = "outbox_bytea"
	for name, cfg := range map[string]Config{"default": preset, "tombstone": preset, "bytea": bytea, "placement": placement} {
		t.Run(name, func(t *testing.T) {
			b, _ := decodeAll(t, mustNew(t, cfg), messages)
			want := recorded.Variants[name].Records
			if len(b.Events) != len(want) || len(want) != 7 {
				t.Fatalf("%d events, %d records", len(b.Events), len(want))
			}
			for i, rec := range want {
				if name != "placement" { // the router's own clock, and the key's hash, which is the producer's matter
					rec.Timestamp, rec.Partition = b.Events[i].Timestamp, -1
				}
				if got := asDebezium(&b.Events[i]); got != rec.String() {
					t.Errorf("got  %s\nwant %s", got, rec)
				}
			}
		})
	}
}

// asDebezium leaves out the headers that walrelay adds.
func asDebezium(ev *Event) string {
	enc := func(p []byte) *string {
		if p == nil {
			return nil
		}
		s := base64.StdEncoding.EncodeToString(p)
		return &s
	}
	rec := debeziumRecord{ev.Topic, ev.Partition, ev.Timestamp, enc(ev.Key), enc(ev.Value), nil}
	for _, h := range ev.Headers.List() {
		if !strings.HasPrefix(h.Key, "walrelay-") {
			rec.Headers = append(rec.Headers, [2]*string{&h.Key, enc(h.Value)})
		}
	}
	return rec.String()
}

func (r debeziumRecord) String() string {
	text, _ := json.Marshal(r)
	return string(text)
}
