package decode

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// values is a row of the default table, with some columns changed.
func values(change map[string]any) []any {
	row := []any{"e1", "order", "k", "OrderPlaced", "{}", nil, nil, nil, nil, nil}
	for name, v := range change {
		row[slices.IndexFunc(defaultColumns, func(c Column) bool { return c.Name == name })] = v
	}
	return row
}

// G6: every way in which a row can't be published is a poison event that names id,
// position and reason, holds what could be decoded, and lets the next row pass.
func TestG6Poison(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		row      map[string]any
		reason   string
		badTopic bool
		topic    string
	}{
		"id":                     {map[string]any{"event_id": nil}, "the event id is NULL", false, "outbox.event.order"},
		"headers array":          {map[string]any{"headers": "[1]"}, "the headers are not a JSON object", false, "outbox.event.order"},
		"headers null":           {map[string]any{"headers": "null"}, "the headers are not a JSON object", false, "outbox.event.order"},
		"headers empty":          {map[string]any{"headers": ""}, "the headers are not a JSON object", false, "outbox.event.order"},
		"headers broken":         {map[string]any{"headers": `{"a":1`}, "the headers are not legal JSON", false, "outbox.event.order"},
		"headers many":           {map[string]any{"headers": `{` + strings.Repeat(`"a":1,`, 4096) + `"a":1}`}, "the headers are more than 4096", false, "outbox.event.order"},
		"partition negative":     {map[string]any{"correlation_id": "-1"}, "the partition is negative", false, "outbox.event.order"},
		"partition large":        {map[string]any{"correlation_id": "2147483648"}, "the partition is greater than Kafka's greatest", false, "outbox.event.order"},
		"partition text":         {map[string]any{"correlation_id": "1x"}, "the partition is not a number", false, "outbox.event.order"},
		"partition empty":        {map[string]any{"correlation_id": ""}, "the partition is not a number", false, "outbox.event.order"},
		"no aggregate type":      {map[string]any{"aggregate_type": nil}, "the row has no topic: aggregate_type is NULL", true, ""},
		"topic characters":       {map[string]any{"aggregate_type": "a b\n"}, `the topic "outbox.event.a b\n" is no legal name: 1 to 249 letters, digits, '.', '_' and '-'`, true, "outbox.event.a b\n"},
		"topic not allowed":      {map[string]any{"topic": "payments"}, `the topic "payments" is not on the allow-list; add it by --topic-allow if it is meant`, true, "payments"},
		"topic internal":         {map[string]any{"topic": "__consumer_offsets"}, `the topic "__consumer_offsets" begins with _, as Kafka's internal topics do`, true, "__consumer_offsets"},
		"topic checkpoint":       {map[string]any{"topic": "walrelay-checkpoint"}, `the topic "walrelay-checkpoint" is the relay's own`, true, "walrelay-checkpoint"},
		"topic dead letter":      {map[string]any{"topic": "outbox.event.order.DLT"}, `the topic "outbox.event.order.DLT" is a dead-letter topic`, true, "outbox.event.order.DLT"},
		"topic plain DLT":        {map[string]any{"topic": "walrelay.DLT"}, `the topic "walrelay.DLT" is a dead-letter topic`, true, "walrelay.DLT"},
		"topic dot":              {map[string]any{"topic": ".."}, `the topic ".." is no legal name: 1 to 249 letters, digits, '.', '_' and '-'`, true, ".."},
		"topic long":             {map[string]any{"topic": long}, `the topic is longer than Kafka's 249 bytes: "` + long[:64] + `" (cut, 300 bytes)`, true, long[:249]},
		"topic long by template": {map[string]any{"aggregate_type": long}, `the topic is longer than Kafka's 249 bytes: "outbox.event.` + long[:51] + `" (cut, 263 bytes)`, true, ("outbox.event." + long)[:249]},
		"first of two":           {map[string]any{"event_id": nil, "topic": "payments"}, "the event id is NULL", true, "payments"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, Config{Columns: []string{"correlation_id=", "partition=correlation_id"}},
				slices.Concat(defaultColumns[:7], []Column{{"correlation_id", oidInt8}}, defaultColumns[8:])...)
			s.row(values(c.row)...)
			s.row(values(nil)...)
			ev, next := &s.b.Events[0], &s.b.Events[1]
			if next.Poison != nil || next.Headers.Count != 8 {
				t.Errorf("the next event is %s", render(next))
			}
			p := ev.Poison
			if p == nil {
				t.Fatalf("not poison: %s", render(ev))
			}
			if p.Reason != c.reason || p.BadTopic != c.badTopic || ev.Topic != c.topic || p.EventID != string(ev.ID) || p.Commit != ev.Commit || p.Seq != 0 {
				t.Errorf("%+v, topic %q", p, ev.Topic)
			}
			if string(ev.Key) != "k" || string(ev.Value) != "{}" || ev.Partition != -1 || ev.Headers.List()[ev.Headers.Count-3].Key != headerLSN {
				t.Errorf("the event is %s", render(ev))
			}
			if strings.Contains(p.Error(), "{}") || !strings.Contains(p.Error(), p.Commit.String()) {
				t.Errorf("text %q", p.Error())
			}
		})
	}
}

// G6: NULL and empty are told apart in key, value and id.
func TestG6NullAndEmpty(t *testing.T) {
	s := newStream(t, Config{})
	ev := s.row(values(map[string]any{"aggregate_id": nil, "payload": nil})...)
	if ev.Key != nil || ev.Value != nil || ev.Poison != nil || ev.Partition != -1 {
		t.Errorf("NULL gave %s", render(ev))
	}
	ev = s.row(values(map[string]any{"event_id": "", "aggregate_id": "", "payload": "", "topic": ""})...)
	if ev.ID == nil || ev.Key == nil || ev.Value == nil || len(ev.ID)+len(ev.Key)+len(ev.Value) != 0 || ev.Poison != nil || ev.Topic != "outbox.event.order" {
		t.Errorf("empty gave %s", render(ev))
	}
}

func TestG6Timestamp(t *testing.T) {
	commit := testTime.UnixMilli()
	for _, c := range []struct {
		preset string
		typ    uint32
		text   any
		want   int64
	}{
		{"", oidTimestamptz, "2026-01-02 03:04:05.678901+00", 1767323045678},
		{"", oidTimestamptz, "1970-01-01 00:00:00+00", 0},
		{"", oidTimestamptz, "1969-12-31 23:59:59.999+00", commit},
		{"", oidTimestamptz, "infinity", commit},
		{"", oidTimestamptz, "0044-03-15 12:00:00+00 BC", commit},
		{"", oidTimestamptz, nil, commit},
		{"", oidTimestamp, "2001-01-01 00:00:00", commit},
		{"", oidText, "whatever", commit},
		{"debezium", oidTimestamp, "2026-01-02 03:04:05.678901", 1767323045678},
		{"debezium", oidTimestamp, "-infinity", commit},
	} {
		cfg := minimalConfig()
		cfg.Preset, cfg.Columns = c.preset, []string{"id=event_id", "key=aggregate_id", "timestamp=at"}
		s := newStream(t, cfg, slices.Concat(minimal, []Column{{"at", c.typ}})...)
		if ev := s.row("v", "k", "id", c.text); ev.Timestamp != c.want {
			t.Errorf("%v of type %s: %d, want %d", c.text, typeName(c.typ), ev.Timestamp, c.want)
		}
	}
}

// A session that prints values in a form of its own is no reason to guess.
func TestSessionSettings(t *testing.T) {
	for _, c := range []struct {
		row  map[string]any
		text string
	}{
		{map[string]any{"created_at": "Fri Jan 02 03:04:05 2026 UTC"}, "DateStyle must be ISO"},
		{map[string]any{"created_at": "2026-01-02 03:04:05"}, "DateStyle must be ISO"},
		{map[string]any{"payload": `\000abc`}, "bytea_output must be hex"},
	} {
		cols := slices.Clone(defaultColumns)
		cols[4].Type = oidBytea
		s := newStream(t, Config{}, cols...)
		s.begin()
		_, err := s.d.Decode(wireInsert(testOID, values(c.row)...), s.b)
		var m *MappingError
		if !errors.As(err, &m) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: error %v", c.row, err)
		}
		if len(s.b.Events) != 0 || s.b.Bytes() != 0 {
			t.Errorf("the batch holds %d events, %d bytes", len(s.b.Events), s.b.Bytes())
		}
	}
}

func TestG6Bytea(t *testing.T) {
	cols := slices.Clone(defaultColumns)
	cols[4].Type = oidBytea
	s := newStream(t, Config{}, cols...)
	if ev := s.row(values(map[string]any{"payload": `\x00fF10`})...); string(ev.Value) != "\x00\xff\x10" || string(ev.Headers.List()[0].Value) != "e1" {
		t.Errorf("event %s", render(ev))
	}
	if ev := s.row(values(map[string]any{"payload": `\x`})...); ev.Value == nil || len(ev.Value) != 0 {
		t.Errorf("event %s", render(ev))
	}
	s.begin()
	for _, bad := range []string{`\x0`, `\x0g`} {
		var p *ProtocolError
		if _, err := s.d.Decode(wireInsert(testOID, values(map[string]any{"payload": bad})...), s.b); !errors.As(err, &p) {
			t.Errorf("%s: error %v", bad, err)
		}
	}
}

// G6: the topic is the row's, else the template's, and names are made once.
func TestG6Topic(t *testing.T) {
	s := newStream(t, Config{Topic: "{event-type}.of.{aggregatetype}", TopicAllow: []string{"*.of.order", "special-?"}})
	for _, c := range []struct {
		row  map[string]any
		want string
	}{
		{nil, "OrderPlaced.of.order"},
		{map[string]any{"topic": "special-1"}, "special-1"},
		{map[string]any{"topic": ""}, "OrderPlaced.of.order"},
		{map[string]any{"event_type": ""}, ".of.order"},
		{nil, "OrderPlaced.of.order"},
	} {
		if ev := s.row(values(c.row)...); ev.Topic != c.want || ev.Poison != nil {
			t.Errorf("%v gave %s", c.row, render(ev))
		}
	}
	for topic, poison := range map[string]bool{"special-12": true, "special-": true, "xof.order": true} {
		if ev := s.row(values(map[string]any{"topic": topic})...); (ev.Poison != nil) != poison {
			t.Errorf("%s gave %s", topic, render(ev))
		}
	}
}

// G1: which topics rows are known to go to before the first one does; what is only permitted is not among them.
func TestG1ExpectedTopics(t *testing.T) {
	for _, c := range []struct {
		template string
		allow    []string
		want     string // of these: a.order b.order order other
	}{
		{"a.{aggregate_type}", nil, "a.order"},
		{"a.{aggregate_type}", []string{"*"}, "a.order"},
		{"a.{aggregate_type}", []string{"b.*", "order"}, "order"},
		{"{aggregate_type}", nil, ""},
		{"{aggregate_type}", []string{"*", "other"}, "other"},
		{"order", nil, "order"},
		{"order", []string{"order", "*.order"}, "order"},
	} {
		d, err := New(Config{Schema: "public", Table: "o", Topic: c.template, TopicAllow: c.allow})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, topic := range []string{"a.order", "b.order", "order", "other", "_order", "a.order.DLT"} {
			if d.Expects(topic) {
				got = append(got, topic)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s, %v: %v, want %s", c.template, c.allow, got, c.want)
		}
	}
}

// G7: what rows choose does not grow the decoder without bound.
func TestG7CachesAreBounded(t *testing.T) {
	s := newStream(t, Config{TopicAllow: []string{"*"}})
	s.begin()
	for i := range 3 * knownTopics {
		name := strings.Repeat("x", i%200) + string(rune('a'+i/200%26)) + string(rune('a'+i/5200))
		s.decode(wireInsert(testOID, values(map[string]any{"topic": name, "headers": `{"` + name + `":1,"walrelay-` + name + `":1}`})...))
		if got := s.b.Events[0].Topic; got != name {
			t.Fatalf("topic %s, want %s", got, name)
		}
		s.b.Reset()
	}
	if n := len(s.d.m.topics.known); n > knownTopics {
		t.Errorf("%d topics are kept", n)
	}
	if n := len(s.d.names.known); n > maxKnownNames {
		t.Errorf("%d header names are kept", n)
	}
	if n := len(s.d.DroppedNames()); n != maxDropped {
		t.Errorf("%d names are reported", n)
	}
}
