package decode

import (
	"errors"
	"strings"
	"testing"
)

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		text string
	}{
		"no table":            {Config{Schema: "public"}, `--table "public."`},
		"preset":              {Config{Preset: "confluent"}, "use default or debezium"},
		"column form":         {Config{Columns: []string{"payload"}}, "ROLE=NAME"},
		"column role":         {Config{Columns: []string{"colour=c"}}, "id, key, payload, aggregate_type, event_type, topic, headers, correlation_id, idempotency_key, timestamp, partition, traceparent"},
		"column twice":        {Config{Columns: []string{"key=a", "aggregate-id=b"}}, "a second time"},
		"column needed":       {Config{Columns: []string{"payload="}}, "every event needs"},
		"header form":         {Config{Headers: []string{"x"}}, "NAME=COLUMN"},
		"header empty":        {Config{Headers: []string{"x="}}, "NAME=COLUMN"},
		"header ours":         {Config{Headers: []string{"walrelay-x=c"}}, "the relay's own"},
		"header standard":     {Config{Headers: []string{"event-id=c"}}, "standard header"},
		"header twice":        {Config{Headers: []string{"x=c", "x=d"}}, "a second time"},
		"header traceparent":  {Config{Headers: []string{"traceparent=c"}, Columns: []string{"traceparent=c"}}, "standard header"},
		"header debezium id":  {Config{Headers: []string{"id=c"}, Preset: "debezium"}, "standard header"},
		"topic placeholder":   {Config{Topic: "a.{aggregat}"}, "the known ones are {aggregate_type} and {event_type}"},
		"topic payload":       {Config{Topic: "a.{payload}"}, "unknown placeholder"},
		"topic unclosed":      {Config{Topic: "a.{aggregate_type"}, "unknown placeholder"},
		"topic characters":    {Config{Topic: "a b"}, "characters"},
		"topic brace":         {Config{Topic: "a}"}, "characters"},
		"topic long":          {Config{Topic: strings.Repeat("a", 250)}, "no legal name"},
		"topic dots":          {Config{Topic: ".."}, "no legal name"},
		"topic internal":      {Config{Topic: "__consumer_offsets"}, "internal"},
		"topic checkpoint":    {Config{Topic: "walrelay-checkpoint"}, "the relay's own"},
		"topic dead letter":   {Config{Topic: "a.DLT"}, "dead-letter"},
		"topic role off":      {Config{Columns: []string{"aggregate_type="}}, "needs the role aggregate_type"},
		"topic not allowed":   {Config{Topic: "a", TopicAllow: []string{"b*"}}, "allow-list"},
		"allow characters":    {Config{TopicAllow: []string{"a[bc]"}}, "can match no topic"},
		"allow empty":         {Config{TopicAllow: []string{""}}, "can match no topic"},
		"dead letter all":     {Config{DeadLetter: "{topic}"}, "needs more text"},
		"dead letter illegal": {Config{DeadLetter: "a/b"}, "no topic name"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.Schema == "" {
				c.cfg.Schema, c.cfg.Table = "public", "outbox_event"
			}
			_, err := New(c.cfg)
			var ce *ConfigError
			if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %q", err, c.text)
			}
		})
	}
}

func TestMappingErrors(t *testing.T) {
	without := func(names ...string) (cols []Column) {
		for _, c := range defaultColumns {
			if !strings.Contains(strings.Join(names, " "), c.Name) {
				cols = append(cols, c)
			}
		}
		return cols
	}
	retyped := func(name string, oid uint32) []Column { return append(without(name), Column{name, oid}) }
	for name, c := range map[string]struct {
		cfg  Config
		cols []Column
		text string // "" = fits
	}{
		"default":               {Config{}, defaultColumns, ""},
		"needed id":             {Config{}, without("event_id"), `column "event_id" of table public.outbox_event (role id) is not there; map the role to another column by --column id=NAME (`},
		"needed key":            {Config{}, without("aggregate_id"), `(role key) is not there`},
		"needed payload":        {Config{}, without("payload"), `(role payload) is not there`},
		"optional":              {Config{}, without("headers", "topic", "correlation_id", "idempotency_key", "created_at", "event_type"), ""},
		"explicit":              {Config{Columns: []string{"correlation_id=corr"}}, defaultColumns, `column "corr" of table public.outbox_event (role correlation_id) is not there; map the role to another column by --column correlation_id=NAME or turn it off by --column correlation_id=`},
		"explicit default":      {Config{Columns: []string{"headers=headers"}}, without("headers"), `(role headers) is not there`},
		"template":              {Config{}, without("aggregate_type", "topic"), `column "aggregate_type" of table public.outbox_event (role aggregate_type) is not there, and the topic "outbox.event.{aggregate_type}" needs it; map another column by --column aggregate_type=NAME, or give a --topic without {aggregate_type}`},
		"template, topic":       {Config{}, without("aggregate_type"), ""},
		"template without":      {Config{Topic: "plain"}, without("aggregate_type", "topic"), ""},
		"extra header":          {Config{Headers: []string{"shard=shard_no"}}, defaultColumns, `column "shard_no" of table public.outbox_event (header shard) is not there`},
		"extra header bytea":    {Config{Headers: []string{"x=event_type"}, Columns: []string{"event_type="}}, retyped("event_type", oidBytea), `has type bytea`},
		"payload type":          {Config{}, retyped("payload", 142), `column "payload" of table public.outbox_event (role payload) has type xml, which can't be carried; it must be json, jsonb, text, varchar, char or bytea`},
		"payload domain":        {Config{}, retyped("payload", 16999), `has type oid 16999 (a domain`},
		"payload bytea":         {Config{}, retyped("payload", oidBytea), ""},
		"payload bpchar":        {Config{}, retyped("payload", oidBpchar), ""},
		"key bytea":             {Config{}, retyped("aggregate_id", oidBytea), `(role key) has type bytea, which can't be carried`},
		"key domain":            {Config{}, retyped("aggregate_id", 16999), ""},
		"id numeric":            {Config{}, retyped("event_id", 1700), ""},
		"headers type":          {Config{}, retyped("headers", oidText), `(role headers) has type text, which can't be carried; it must be json or jsonb`},
		"headers json":          {Config{}, retyped("headers", oidJSON), ""},
		"partition type":        {Config{Columns: []string{"partition=topic", "topic="}}, defaultColumns, `(role partition) has type text, which can't be carried; it must be smallint`},
		"partition":             {Config{Columns: []string{"partition=topic", "topic="}}, retyped("topic", oidInt2), ""},
		"timestamp of any type": {Config{}, retyped("created_at", oidTimestamp), ""},
		"debezium":              {Config{Preset: "debezium"}, defaultColumns, `column "id" of table public.outbox_event (role id) is not there`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, c.cfg, c.cols...)
			checked := s.d.Check(c.cols)
			s.decode(wireBegin(7))
			_, err := s.d.Decode(wireRelation(testOID, "public", "outbox_event", c.cols...), s.b)
			if c.text == "" {
				if checked != nil || err != nil {
					t.Errorf("errors %v, %v", checked, err)
				}
				return
			}
			var m *MappingError
			if !errors.As(err, &m) || !strings.Contains(err.Error(), c.text) || checked == nil || checked.Error() != err.Error() {
				t.Errorf("errors %v, %v\nwant %s", err, checked, c.text)
			}
		})
	}
}

// G6: a column that rows had and lose is no header that quietly ends, but WAL that
// is read again, from before the column was added, is no loss.
func TestG6LostColumn(t *testing.T) {
	less := defaultColumns[:8]
	relation := func(cols []Column) []byte { return wireRelation(testOID, "public", "outbox_event", cols...) }
	const text = `column "idempotency_key" of table public.outbox_event (role idempotency_key) was there before and is gone; add it again, or turn the role off by --column idempotency_key=`

	for name, again := range map[string]func(s *stream) []byte{
		"in the same transaction": func(*stream) []byte { return relation(less) },
		"in a later transaction": func(s *stream) []byte {
			s.commit()
			s.last += 0x100
			s.decode(wireBegin(s.last))
			return relation(less)
		},
		"in a later session": func(s *stream) []byte {
			s.d.Start("0badcafe")
			s.last += 0x100
			s.decode(wireBegin(s.last))
			return relation(less)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, Config{})
			s.begin()
			_, err := s.d.Decode(again(s), s.b)
			var m *MappingError
			if !errors.As(err, &m) || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("read again", func(t *testing.T) {
		s := newStream(t, Config{})
		s.decode(wireBegin(100))
		s.decode(relation(less))
		s.decode(relation(defaultColumns))
		for _, commit := range []uint64{50, 100} {
			s.d.Start("0badcafe")
			s.decode(msg(wireBegin(0))[:1].u64(commit).u64(0).u32(1))
			s.decode(relation(less))
		}
	})
}

// G1: rows of a table that was renamed under the relay are not passed over.
func TestG1RenamedTable(t *testing.T) {
	s := newStream(t, Config{})
	s.begin()
	_, err := s.d.Decode(wireRelation(testOID, "public", "outbox_old", defaultColumns...), s.b)
	var m *MappingError
	if !errors.As(err, &m) || err.Error() != "decode: table public.outbox_event: it was renamed; give its new name by --table, or rename it back" {
		t.Errorf("error %v", err)
	}
	s.d.Start("")
	s.begin()
	s.decode(wireRelation(testOID+1, "public", "outbox_event", defaultColumns...))
	s.decode(wireRelation(testOID, "public", "outbox_old", defaultColumns...)) // another took its name
}

func TestRoleNames(t *testing.T) {
	for _, name := range []string{"id", "event_id", "event-id", "key", "aggregate_id", "aggregateid", "payload", "value",
		"aggregate_type", "aggregatetype", "event_type", "type", "timestamp", "created-at", " headers "} {
		if _, ok := parseRole(name); !ok {
			t.Errorf("%q is no role", name)
		}
	}
}

// Topic says for values what decoding says for rows.
func TestTopicOfValues(t *testing.T) {
	text := func(s string) *string { return &s }
	d, err := New(Config{Schema: "public", Table: "outbox_event", Topic: "{aggregate_type}.v1", TopicAllow: []string{"order.*", "own"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		topic, kind *string
		name, why   string
	}{
		{nil, text("order"), "order.v1", ""},
		{text(""), text("order"), "order.v1", ""},
		{text("own"), text("order"), "own", ""},
		{nil, nil, "", "aggregate_type is NULL"},
		{nil, text("payment"), "payment.v1", "allow-list"},
		{text("_schemas"), nil, "_schemas", "begins with _"},
	} {
		name, why := d.Topic(c.topic, c.kind, nil)
		if name != c.name || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%v: %q %q, want %q %q", c, name, why, c.name, c.why)
		}
	}
	if got := d.Column("key"); got != "aggregate_id" {
		t.Errorf("column of the key: %q", got)
	}
	if got := d.Column("colour"); got != "" {
		t.Errorf("column of no role: %q", got)
	}
}
