package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzDecode feeds a stream of messages, each behind two bytes of length. Nothing
// panics, errors are typed and leave the batch alone, and a row is one event.
func FuzzDecode(f *testing.F) {
	for _, path := range []string{"testdata/postgres15.hex", "testdata/debezium.hex"} {
		var all []byte
		for _, m := range hexLines(f, path) {
			all = append(append(all, byte(len(m)>>8), byte(len(m))), m...)
		}
		f.Add(all)
	}
	var short []byte
	for _, m := range [][]byte{wireBegin(7), wireRelation(testOID, "public", "outbox_event", defaultColumns[:7]...),
		wireInsert(testOID, "e1", "order", "k", "T", `{"a":1}`, nil, `{"a":"\u0041","walrelay-lsn":1}`), wireCommit(7, 8)} {
		short = append(append(short, 0, byte(len(m))), m...)
	}
	f.Add(short)
	b := NewBatch(0)
	f.Fuzz(func(t *testing.T, stream []byte) {
		d := mustNew(t, Config{Schema: "public", Table: "outbox_event", Headers: []string{"extra=event_type"}})
		p := mustNew(t, Config{Schema: "public", Table: "part_outbox", Columns: []string{"partition=part"}})
		for _, d := range []*Decoder{d, p} {
			b.Reset()
			fuzzStream(t, d, b, stream)
		}
	})
}

func fuzzStream(t *testing.T, d *Decoder, b *Batch, stream []byte) {
	d.Start("0badcafe")
	for len(stream) >= 2 {
		n := min(int(stream[0])<<8|int(stream[1]), len(stream)-2)
		m := bytes.Clone(stream[2 : 2+n : 2+n])
		stream = stream[2+n:]
		events, size := len(b.Events), b.Bytes()
		kind, err := d.Decode(m, b)
		if err != nil {
			var pe *ProtocolError
			var me *MappingError
			if !errors.As(err, &pe) && !errors.As(err, &me) {
				t.Fatalf("error %T", err)
			}
			if pe != nil && (pe.Offset < 0 || pe.Offset > len(m)) {
				t.Fatalf("offset %d of %d", pe.Offset, len(m))
			}
			if len(b.Events) != events || b.Bytes() != size {
				t.Fatal("an error changed the batch")
			}
			continue
		}
		if grown := len(b.Events) - events; grown != 0 && kind != Row || grown != 1 && kind == Row {
			t.Fatalf("kind %d appended %d events", kind, grown)
		}
		if kind == Row {
			checkEvent(t, d, &b.Events[events])
		}
		if kind == Row && b.Bytes()%3 == 0 {
			b.DropLast()
			if b.Bytes() != size {
				t.Fatal("a dropped event left bytes behind")
			}
		}
	}
}

// checkEvent states what holds for every event.
func checkEvent(t *testing.T, d *Decoder, ev *Event) {
	txn, open := d.Txn()
	if !open || ev.Commit != txn.Commit || ev.Seq != txn.Rows-1 {
		t.Fatalf("event %d of %s in %+v", ev.Seq, ev.Commit, txn)
	}
	if ev.Timestamp < 0 || ev.Partition < -1 || ev.Headers.Count < 3 {
		t.Fatalf("event %+v", ev)
	}
	if ev.Poison == nil && (ev.ID == nil || ev.Topic == "" || d.m.topics.refuse(ev.Topic) != "") {
		t.Fatalf("event %+v", ev)
	}
	if n := len(ev.Headers.List()); n != ev.Headers.Count {
		t.Fatalf("%d headers, said to be %d", n, ev.Headers.Count)
	}
	own := 0
	for _, h := range ev.Headers.List() {
		if h.Key == headerEventID || h.Key == headerLSN || h.Key == headerSeq || h.Key == headerSource {
			own++
		}
	}
	if own != 4 && ev.ID != nil || own > 4 {
		t.Fatalf("%d headers are the relay's in %s", own, headerText(ev))
	}
}

// FuzzHeaders compares with encoding/json what a headers column gives.
func FuzzHeaders(f *testing.F) {
	for _, text := range []string{`{}`, `{"a":"b","c":1}`, `{"a\u00e9\n":"\ud83d\ude00\ud800x"}`, ` { "a" : [1, {"b":null}] , "c" : null } `,
		`{"a":1.5e+3,"b":true,"c":false}`, `[]`, `{"a":"` + "\x7f" + `"}`, `{"walrelay-lsn":"1/1"}`, `{"a":1,"a":2}`, `{"a":-0.0E1}`} {
		f.Add([]byte(text))
	}
	b := NewBatch(0)
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) { // Postgres sends none
			return
		}
		s := newStream(t, minimalConfig(), append(slices.Clone(minimal), Column{"headers", oidJSON})...)
		b.Reset()
		s.b = b
		ev := s.row("v", "k", "id", string(text))
		want, ok := jsonMembers(text)
		if len(want) > maxRowHeaders {
			return
		}
		if ok != (ev.Poison == nil) {
			t.Fatalf("legal %v, poison %v", ok, ev.Poison)
		}
		want = slices.DeleteFunc(want, func(h Header) bool { return ownName(h.Key) })
		got := ev.Headers.List()
		got = got[3 : len(got)-3]
		if !slices.EqualFunc(got, want, func(a, b Header) bool {
			return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
		}) {
			t.Fatalf("got  %s\nwant %s", headerText(&Event{Headers: NewHeaders(got...)}), headerText(&Event{Headers: NewHeaders(want...)}))
		}
	})
}

func ownName(name string) bool {
	return slices.Contains([]string{headerEventID, headerEventType, headerAggregateType, headerAggregateID, headerCorrelationID, headerIdempotencyKey}, name) ||
		len(name) >= len(headerPrefix) && name[:len(headerPrefix)] == headerPrefix
}

// jsonMembers reads an object's members with encoding/json.
func jsonMembers(text []byte) (members []Header, ok bool) {
	if !json.Valid(text) || bytes.TrimLeft(text, " \n\r\t")[0] != '{' {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.Token()
	for dec.More() {
		name, _ := dec.Token()
		var value json.RawMessage
		dec.Decode(&value)
		h := Header{Key: name.(string), Value: value}
		switch value[0] {
		case 'n':
			h.Value = nil
		case '"':
			var s string
			json.Unmarshal(value, &s)
			h.Value = append([]byte{}, s...)
		}
		members = append(members, h)
	}
	return members, true
}

// FuzzTimestamp compares with package time what parseTime reads.
func FuzzTimestamp(f *testing.F) {
	for _, text := range []string{"2026-01-02 03:04:05.678901+00", "2026-01-02 08:34:05+05:30", "1900-01-01 00:53:28+00:53:28",
		"0044-03-15 12:00:00+00 BC", "infinity", "10000-01-01 00:00:00-12", "1969-12-31 23:59:59.9-00:00:02"} {
		f.Add(text)
	}
	iso := regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d(:[0-5]\d){0,2}$`)
	layouts := []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00", "2006-01-02 15:04:05.999999-07:00:00"}
	f.Fuzz(func(t *testing.T, text string) {
		ms, ok := parseTime([]byte(text), true)
		parseTime([]byte(text), false)
		if !iso.MatchString(text) || strings.HasSuffix(text, "-00:00:01") { // which package time takes for no offset
			return
		}
		for _, layout := range layouts {
			at, err := time.Parse(layout, text)
			if err != nil || text[:4] == "0000" {
				continue
			}
			if !ok || ms != at.UnixMilli() {
				t.Fatalf("%q is %d, %v; want %d", text, ms, ok, at.UnixMilli())
			}
		}
	})
}
