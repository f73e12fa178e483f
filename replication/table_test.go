package replication

import (
	"strings"
	"testing"
)

func TestParseTable(t *testing.T) {
	for in, want := range map[string]Table{
		"outbox":              {"public", "outbox"},
		"app.Outbox":          {"app", "outbox"},
		`"App"."out.box"`:     {"App", "out.box"},
		`app."say ""hi"""`:    {"app", `say "hi"`},
		` public.my-outbox `:  {"public", "my-outbox"},
		`"public".événements`: {"public", "événements"},
	} {
		if got, err := ParseTable(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ".", "a.", ".b", "a.b.c", `"a`, `"a"b`, `a b`, "x;drop", `""`, strings.Repeat("x", 64), `"a` + "\x00" + `"`} {
		if got, err := ParseTable(in); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
}

// What is printed reads back as the same name.
func TestTableString(t *testing.T) {
	for want, table := range map[string]Table{
		"public.outbox_event": {"public", "outbox_event"},
		`public."order"`:      {"public", "order"},
		`"App"."out""box"`:    {"App", `out"box`},
		`_a."1b"`:             {"_a", "1b"},
	} {
		if got := table.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if back, err := ParseTable(table.String()); err != nil || back != table {
			t.Errorf("%s reads back as %+v, %v", table, back, err)
		}
	}
	if got := quoteLiteral(`it's \ "x"`); got != `'it''s \ "x"'` {
		t.Error(got)
	}
}
