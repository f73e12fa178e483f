package decode

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// Builders of pgoutput messages, protocol version 1.

const testOID = 16385

type msg []byte

func (m msg) u8(v byte) msg    { return append(m, v) }
func (m msg) u16(v int) msg    { return binary.BigEndian.AppendUint16(m, uint16(v)) }
func (m msg) u32(v uint32) msg { return binary.BigEndian.AppendUint32(m, v) }
func (m msg) u64(v uint64) msg { return binary.BigEndian.AppendUint64(m, v) }
func (m msg) str(s string) msg { return append(append(m, s...), 0) }

// testTime is the commit time of test transactions.
var testTime = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

func wireBegin(commit pglogrepl.LSN) []byte {
	us := testTime.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()
	return msg{'B'}.u64(uint64(commit)).u64(uint64(us)).u32(4711)
}

func wireCommit(commit, end pglogrepl.LSN) []byte {
	return msg{'C'}.u8(0).u64(uint64(commit)).u64(uint64(end)).u64(0)
}

func wireRelation(oid uint32, schema, table string, cols ...Column) []byte {
	m := msg{'R'}.u32(oid).str(schema).str(table).u8('d').u16(len(cols))
	for _, c := range cols {
		m = m.u8(0).str(c.Name).u32(c.Type).u32(0xffffffff)
	}
	return m
}

// wireInsert takes one value per column: a string, or nil for NULL, or a byte for a
// column of that kind without a value.
func wireInsert(oid uint32, values ...any) []byte {
	m := msg{'I'}.u32(oid).u8('N').u16(len(values))
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			m = m.u8('n')
		case byte:
			m = m.u8(v)
		case string:
			m = append(m.u8('t').u32(uint32(len(v))), v...)
		}
	}
	return m
}

// defaultColumns are those of the default table, in its order.
var defaultColumns = []Column{
	{"event_id", oidText}, {"aggregate_type", oidText}, {"aggregate_id", oidText}, {"event_type", oidText},
	{"payload", oidJSONB}, {"topic", oidText}, {"headers", oidJSONB}, {"correlation_id", oidText},
	{"idempotency_key", oidText}, {"created_at", oidTimestamptz},
}

// stream feeds a decoder with transactions of a table.
type stream struct {
	t     testing.TB
	d     *Decoder
	b     *Batch
	cols  []Column
	last  pglogrepl.LSN
	table string
}

func newStream(t testing.TB, cfg Config, cols ...Column) *stream {
	t.Helper()
	if cfg.Table == "" {
		cfg.Schema, cfg.Table = "public", "outbox_event"
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.Start("0badcafe")
	if cols == nil {
		cols = defaultColumns
	}
	return &stream{t: t, d: d, b: NewBatch(1 << 20), cols: cols, last: 0x16B374D800, table: cfg.Table}
}

func (s *stream) decode(wal []byte) Kind {
	s.t.Helper()
	kind, err := s.d.Decode(wal, s.b)
	if err != nil {
		s.t.Fatalf("%q: %v", wal[0], err)
	}
	return kind
}

// begin opens a transaction and describes the table.
func (s *stream) begin() {
	s.t.Helper()
	s.last += 0x48
	s.decode(wireBegin(s.last))
	s.decode(wireRelation(testOID, "public", s.table, s.cols...))
}

func (s *stream) commit() {
	s.t.Helper()
	s.decode(wireCommit(s.last, s.last+0x30))
}

// row decodes one row within a transaction of its own.
func (s *stream) row(values ...any) *Event {
	s.t.Helper()
	s.begin()
	if kind := s.decode(wireInsert(testOID, values...)); kind != Row {
		s.t.Fatalf("insert gave kind %d", kind)
	}
	s.commit()
	return &s.b.Events[len(s.b.Events)-1]
}
