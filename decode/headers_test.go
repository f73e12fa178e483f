package decode

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func headerText(ev *Event) string {
	var w strings.Builder
	for _, h := range ev.Headers.List() {
		if h.Value == nil {
			fmt.Fprintf(&w, "%s;", h.Key)
		} else {
			fmt.Fprintf(&w, "%s=%s;", h.Key, h.Value)
		}
	}
	return w.String()
}

// G6: names and order of the headers.
func TestG6Headers(t *testing.T) {
	cols := append(slices.Clone(defaultColumns), Column{"trace", oidText}, Column{"shard", oidInt4}, Column{"eid", oidText})
	s := newStream(t, Config{Columns: []string{"traceparent=trace"}, Headers: []string{"shard=shard", "entity=eid"}}, cols...)
	const position = "walrelay-lsn=16/B374D848;walrelay-seq=0;walrelay-source=0badcafe;"
	for _, c := range []struct {
		row  []any
		want string
	}{
		{
			[]any{"e1", "order", "k", "T", "{}", nil, `{"a": "b", "n": 1}`, "c1", "i1", nil, "00-ab", "7", "x"},
			"event-id=e1;event-type=T;aggregate-type=order;aggregate-id=k;correlation-id=c1;idempotency-key=i1;a=b;n=1;shard=7;entity=x;traceparent=00-ab;",
		},
		{ // NULL gives no header, and the idempotency key falls back to the id
			[]any{"e1", "order", nil, nil, "{}", nil, nil, nil, nil, nil, nil, nil, nil},
			"event-id=e1;aggregate-type=order;idempotency-key=e1;",
		},
		{ // what the row must not give is left out; traceparent and the extra headers only where the columns give them
			[]any{"e1", "order", "k", "", "{}", nil, `{"event-id":"f","event-type":1,"aggregate-type":1,"aggregate-id":1,"correlation-id":1,"idempotency-key":1,"walrelay-lsn":1,"walrelay-":1,"traceparent":"mine","shard":"mine","a":1}`, nil, nil, nil, nil, "7", nil},
			"event-id=e1;event-type=;aggregate-type=order;aggregate-id=k;idempotency-key=e1;traceparent=mine;a=1;shard=7;",
		},
	} {
		s.last = 0x16B374D800
		if got := headerText(s.row(c.row...)); got != c.want+position {
			t.Errorf("got  %s\nwant %s", got, c.want+position)
		}
	}
	want := []string{"event-id", "event-type", "aggregate-type", "aggregate-id", "correlation-id", "idempotency-key", "walrelay-lsn", "walrelay-", "shard"}
	if got := s.d.DroppedNames(); !slices.Equal(got, want) || s.d.DroppedHeaders != 9 {
		t.Errorf("dropped %d, %q", s.d.DroppedHeaders, got)
	}
}

func TestG6HeadersDebezium(t *testing.T) {
	cols := []Column{{"id", 2950}, {"aggregatetype", oidVarchar}, {"aggregateid", oidVarchar}, {"type", oidVarchar}, {"payload", oidJSONB}, {"corr", oidText}, {"h", oidJSONB}}
	s := newStream(t, Config{Preset: "debezium", Columns: []string{"correlation_id=corr", "headers=h"}, Headers: []string{"event-type=type", "corr=corr"}}, cols...)
	got := headerText(s.row("e1", "order", "k", "T", "{}", nil, `{"id":1,"corr":2,"event-id":3}`))
	if want := "id=e1;event-id=3;event-type=T;corr;walrelay-lsn=16/B374D848;walrelay-seq=0;walrelay-source=0badcafe;"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// G6: marks come last, and a row can't forge one.
func TestG6Marks(t *testing.T) {
	s := newStream(t, Config{})
	s.d.Marks = []Header{{headerPrefix + "replay", []byte("r1")}}
	s.b.Reset()
	for range 3 {
		ev := s.row("e1", "order", "k", "T", "{}", nil, `{"walrelay-replay":"forged"}`, nil, nil, nil)
		if got := headerText(ev); strings.Count(got, "walrelay-replay") != 1 || !strings.HasSuffix(got, "walrelay-replay=r1;") {
			t.Errorf("got %s", got)
		}
	}
}

// G6: members of the headers column.
func TestG6RowHeaders(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                    "",
		" {\t} ":                "",
		`{"a":"b"}`:             "a=b;",
		`{ "a" : "b" , "c":""}`: "a=b;c=;",
		`{"a":null,"b":true,"c":-1.5e+3,"d":{"x":[1, {"y":null}]},"e":[ ]}`: `a;b=true;c=-1.5e+3;d={"x":[1, {"y":null}]};e=[ ];`,
		`{"a\n\"\\\/\b\f\r\t":"\u00e9\u20AC\ud83d\ude00"}`:                  "a\n\"\\/\b\f\r\t=é€😀;",
		`{"a":"\ud800","b":"\udc00x","c":"\ud800\ud800\udc00"}`:             "a=\uFFFD;b=\uFFFDx;c=\uFFFD𐀀;",
		`{"a":"\u0000","":1}`: "a=\x00;=1;",
		`{"a":1,"a":2}`:       "a=1;a=2;",
		`{"a":"\"}`:           "!",
		`{"a":"\x"}`:          "!",
		`{"a":"\u12g4"}`:      "!",
		`{"a":"\u12`:          "!",
		"{\"a\":\"\n\"}":      "!",
		`{"a":1,}`:            "!",
		`{,}`:                 "!",
		`{"a"}`:               "!",
		`{"a":}`:              "!",
		`{"a" 1}`:             "!",
		`{a:1}`:               "!",
		`{"a":1}x`:            "!",
		`{"a":1}}`:            "!",
		`{"a":01}`:            "!",
		`{"a":1.}`:            "!",
		`{"a":-}`:             "!",
		`{"a":1e}`:            "!",
		`{"a":nul}`:           "!",
		`{"a":[1,]}`:          "!",
		`{"a":[1`:             "!",
		`{"a":{"b":1,}}`:      "!",
		`{"a":{b:1}}`:         "!",
		`{"a":{"b" 1}}`:       "!",
		`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`: "!",
	} {
		s := newStream(t, Config{})
		ev := s.row(values(map[string]any{"headers": text})...)
		list := ev.Headers.List()
		got := headerText(&Event{Headers: NewHeaders(list[5 : len(list)-3]...)})
		if ev.Poison != nil {
			got += "!"
		}
		if got != want {
			t.Errorf("%.100s gave %q, want %q", text, got, want)
		}
	}
}

// G6: many headers stay what they are, and their neighbours too.
func TestG6ManyHeaders(t *testing.T) {
	s := newStream(t, Config{})
	for n := range 700 {
		var members []string
		for i := range n % 350 * 3 {
			members = append(members, fmt.Sprintf(`"h%d":"%d\u0041"`, i, n))
		}
		s.row(values(map[string]any{"headers": "{" + strings.Join(members, ",") + "}"})...)
	}
	for n := range s.b.Events {
		ev := &s.b.Events[n]
		list := ev.Headers.List()
		if len(list) != n%350*3+8 || len(list) != ev.Headers.Count || list[0].Key != headerEventID || list[len(list)-1].Key != headerSource {
			t.Fatalf("event %d has %d headers", n, len(list))
		}
		for i, h := range list[5 : len(list)-3] {
			if h.Key != fmt.Sprintf("h%d", i) || string(h.Value) != fmt.Sprintf("%dA", n) {
				t.Fatalf("event %d: header %d is %s=%s", n, i, h.Key, h.Value)
			}
		}
	}
}
