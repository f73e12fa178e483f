package decode

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// minimal is a table with the needed columns only, in an order of its own.
var minimal = []Column{{"payload", oidText}, {"aggregate_id", oidVarchar}, {"event_id", 2950}}

func minimalConfig() Config {
	return Config{Schema: "public", Table: "outbox_event", Topic: "events"}
}

// G2: an event's identity is its transaction's commit LSN and its place among the
// outbox rows; rows of other tables don't count.
func TestG2IdentityCountsOutboxRowsOnly(t *testing.T) {
	s := newStream(t, Config{})
	s.begin()
	s.decode(wireRelation(99, "public", "other", Column{"event_id", oidText}))
	s.decode(wireRelation(98, "elsewhere", "outbox_event", defaultColumns...))
	row := wireInsert(testOID, "e1", "order", "k", "T", "{}", nil, nil, nil, nil, nil)
	s.decode(row)
	for _, oid := range []uint32{99, 98, 97} {
		if kind := s.decode(wireInsert(oid, "x")); kind != Other {
			t.Errorf("a row of relation %d gave kind %d", oid, kind)
		}
	}
	s.decode(row)
	if txn, open := s.d.Txn(); !open || txn.Rows != 2 || txn.Commit != s.last || txn.XID != 4711 || !txn.Time.Equal(testTime) || txn.End != 0 {
		t.Errorf("in the transaction: %+v, open %v", txn, open)
	}
	s.commit()
	if txn, open := s.d.Txn(); open || txn.End != s.last+0x30 {
		t.Errorf("behind the transaction: %+v, open %v", txn, open)
	}
	s.begin()
	s.decode(row)
	var got []pglogrepl.LSN
	for _, ev := range s.b.Events {
		got = append(got, ev.Commit, pglogrepl.LSN(ev.Seq))
	}
	if want := []pglogrepl.LSN{s.last - 0x48, 0, s.last - 0x48, 1, s.last, 0}; !slices.Equal(got, want) {
		t.Errorf("identities %v, want %v", got, want)
	}
	if s.d.Ignored != 5 {
		t.Errorf("ignored %d messages", s.d.Ignored)
	}
}

// G1: after a new start nothing of the session before is believed.
func TestG1StartForgets(t *testing.T) {
	s := newStream(t, Config{})
	s.begin()
	s.d.Start("")
	if txn, open := s.d.Txn(); open || txn != (Txn{}) {
		t.Errorf("after the start: %+v, open %v", txn, open)
	}
	s.decode(wireBegin(1))
	row := wireInsert(testOID, "e1", "order", "k", "T", "{}", nil, nil, nil, nil, nil)
	if kind := s.decode(row); kind != Other {
		t.Errorf("a row of a relation that was not described gave kind %d", kind)
	}
	s.decode(wireRelation(testOID, "public", "outbox_event", defaultColumns...))
	s.decode(row)
	for _, h := range s.b.Events[0].Headers.List() {
		if h.Key == headerSource {
			t.Error("a source header without a source")
		}
	}
}

func TestProtocolErrors(t *testing.T) {
	row := wireInsert(testOID, "value", "key", "id")
	insert := func(change func(m []byte) []byte) []byte { return change(bytes.Clone(row)) }
	begin, relation := wireBegin(7), wireRelation(testOID, "public", "outbox_event", minimal...)
	for name, c := range map[string]struct {
		before [][]byte
		bad    []byte
		offset int
		text   string
	}{
		"empty":                {nil, nil, 0, "empty"},
		"unknown type":         {nil, []byte{'Z'}, 0, "not a message of protocol version 1"},
		"stream start":         {nil, []byte{'S', 0, 0, 0, 1, 1}, 0, "not a message of protocol version 1"},
		"two-phase":            {nil, []byte{'P', 0}, 0, "two_phase"},
		"short begin":          {nil, begin[:12], 9, "cut short"},
		"long begin":           {nil, append(bytes.Clone(begin), 0), 21, "goes on"},
		"begin in transaction": {[][]byte{begin}, begin, 21, "inside of another"},
		"lone commit":          {nil, wireCommit(7, 8), 26, "without a transaction"},
		"other commit":         {[][]byte{begin}, wireCommit(8, 9), 26, "not of the transaction"},
		"commit without end":   {[][]byte{begin}, wireCommit(7, 7), 26, "not behind"},
		"short commit":         {[][]byte{begin}, wireCommit(7, 8)[:20], 18, "cut short"},
		"lone row":             {nil, row, 0, "outside of a transaction"},
		"lone update":          {nil, []byte{'U'}, 0, "outside of a transaction"},
		"short relation":       {[][]byte{begin}, relation[:len(relation)-1], len(relation) - 4, "cut short"},
		"relation without end": {[][]byte{begin}, []byte{'R', 0, 0, 0, 1, 'p'}, 5, "cut short"},
		"long relation":        {[][]byte{begin}, append(bytes.Clone(relation), 0), len(relation), "goes on"},
		"short row":            {[][]byte{begin, relation}, row[:7], 7, "cut short"},
		"no new row":           {[][]byte{begin, relation}, insert(func(m []byte) []byte { m[5] = 'K'; return m }), 5, "without a new row"},
		"width":                {[][]byte{begin, relation}, wireInsert(testOID, "v", "k"), 6, "number of columns"},
		"no columns":           {[][]byte{begin, relation}, row[:8], 8, "cut short"},
		"short length":         {[][]byte{begin, relation}, row[:10], 8, "cut short"},
		"short value":          {[][]byte{begin, relation}, row[:15], 9, "longer than the message"},
		"negative length":      {[][]byte{begin, relation}, insert(func(m []byte) []byte { m[9] = 0xff; return m }), 9, "longer than the message"},
		"long row":             {[][]byte{begin, relation}, append(bytes.Clone(row), 'n'), len(row), "goes on"},
		"unchanged":            {[][]byte{begin, relation}, wireInsert(testOID, byte('u'), "key", "id"), 8, "unchanged"},
		"binary":               {[][]byte{begin, relation}, wireInsert(testOID, byte('b'), "key", "id"), 8, "binary"},
		"unknown kind":         {[][]byte{begin, relation}, wireInsert(testOID, byte('q'), "key", "id"), 8, "unknown kind"},
	} {
		t.Run(name, func(t *testing.T) {
			d, b := mustNew(t, minimalConfig()), NewBatch(1000)
			for _, m := range c.before {
				if _, err := d.Decode(m, b); err != nil {
					t.Fatal(err)
				}
			}
			_, err := d.Decode(c.bad, b)
			var p *ProtocolError
			if !errors.As(err, &p) {
				t.Fatalf("error %v", err)
			}
			if p.Offset != c.offset || len(c.bad) > 0 && p.Type != c.bad[0] || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %q at %d", err, c.text, c.offset)
			}
			if len(b.Events) != 0 || b.Bytes() != 0 {
				t.Errorf("the batch holds %d events, %d bytes", len(b.Events), b.Bytes())
			}
		})
	}
}

// Messages that carry no event and may come at any place.
func TestIgnoredMessages(t *testing.T) {
	s := newStream(t, Config{})
	s.decode([]byte("O\x00"))
	s.decode([]byte("Y\x00"))
	s.decode([]byte("M\x00"))
	s.decode([]byte("A\x00\x00\x00\x01\x00\x00\x00\x01"))
	s.begin()
	s.decode([]byte("U\x00"))
	s.decode([]byte("D\x00"))
	s.decode([]byte("T\x00"))
	if s.d.Ignored != 7 || len(s.b.Events) != 0 {
		t.Errorf("ignored %d messages, %d events", s.d.Ignored, len(s.b.Events))
	}
}

// G6: columns are found by name whenever the server describes the table.
func TestG6ColumnsAreFoundByName(t *testing.T) {
	s := newStream(t, minimalConfig(), minimal...)
	if got := s.row("v", "k", "id"); string(got.Value) != "v" || string(got.Key) != "k" || string(got.ID) != "id" {
		t.Errorf("event %s", render(got))
	}
	s.cols = []Column{{"new", 600}, {"event_id", 2950}, {"payload", oidText}, {"aggregate_id", oidVarchar}, {"event_type", oidText}}
	got := s.row(nil, "id", "v", "k", "T")
	if string(got.Value) != "v" || string(got.Key) != "k" || string(got.ID) != "id" || got.Headers.List()[1].Key != headerEventType {
		t.Errorf("event %s", render(got))
	}
}
