package decode

import (
	"testing"
	"time"
)

// G6: a row that is read from the table becomes the event that the stream would have
// made of it, but for its place in the WAL.
func TestG6TableRow(t *testing.T) {
	cols := []Column{{"event_id", oidText}, {"aggregate_type", oidText}, {"aggregate_id", oidText}, {"payload", oidJSONB},
		{"headers", oidJSONB}, {"created_at", oidTimestamptz}}
	d, err := New(Config{Schema: "public", Table: "outbox_event"})
	if err != nil {
		t.Fatal(err)
	}
	d.Marks = []Header{{Key: "walrelay-recover", Value: []byte("run")}}
	if err := d.StartTable("cafe", cols, time.UnixMilli(77)); err != nil {
		t.Fatal(err)
	}
	b := NewBatch(1 << 10)
	for _, row := range [][][]byte{
		{[]byte("id-1"), []byte("order"), []byte("key"), []byte(`{"a": 1}`), []byte(`{"x": "y"}`), []byte("2026-01-02 03:04:05.678+00")},
		{[]byte("id-2"), []byte("order"), nil, nil, nil, nil},
	} {
		if err := d.TableRow(row, b); err != nil {
			t.Fatal(err)
		}
	}
	first, second := b.Events[0], b.Events[1]
	if string(first.ID) != "id-1" || string(first.Key) != "key" || string(first.Value) != `{"a": 1}` || first.Topic != "outbox.event.order" ||
		first.Timestamp != time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC).UnixMilli() || first.Commit != 0 || first.Poison != nil {
		t.Errorf("got %+v", first)
	}
	if second.Key != nil || second.Value != nil || second.Timestamp != 77 || second.Seq != 1 {
		t.Errorf("got %+v", second)
	}
	got := map[string]string{}
	for _, h := range first.Headers.List() {
		got[h.Key] = string(h.Value)
	}
	if got["walrelay-recover"] != "run" || got["walrelay-source"] != "cafe" || got["x"] != "y" || got["event-id"] != "id-1" {
		t.Errorf("headers %v", got)
	}
	for _, place := range []string{"walrelay-lsn", "walrelay-seq"} {
		if _, has := got[place]; has {
			t.Errorf("a row of the table has %s", place)
		}
	}
	if err := d.TableRow(nil, b); err == nil {
		t.Error("a row without columns was taken")
	}
	d.Marks = nil
	d.Start("cafe") // a stream again
	if d.unplaced {
		t.Error("the stream that follows has no place in the WAL")
	}
}
