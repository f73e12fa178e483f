package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/workload"
)

// logged is the newest line of a command's log with this message.
func logged(t *testing.T, r harness.Result, message string) map[string]any {
	t.Helper()
	lines := strings.Split(r.Stderr, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		var fields map[string]any
		if json.Unmarshal([]byte(lines[i]), &fields) == nil && strings.Contains(fmt.Sprint(fields["message"]), message) {
			return fields
		}
	}
	t.Fatalf("no line %q in\n%s", message, r.Stderr)
	return nil
}

// G1: after the slot was dropped, everything that was written meanwhile is published from the
// table: rows of savepoints too, of transactions that were open when the relay stopped, and of a
// COPY. What comes twice bears the mark, and is counted.
func TestG1RecoverFromTable(t *testing.T) {
	f := newFixture(t, option{})
	f.sampler.Stop()
	f.exec("postgres", "SELECT pg_drop_replication_slot($1)", f.truth.Slot)
	f.up()
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "early-", 2000, 100))
	f.drain()
	// A long transaction that has written before the relay stops, in a savepoint, and commits after.
	open, err := pgx.Connect(f.ctx, f.url())
	f.must(err)
	defer open.Close(f.ctx)
	const one = "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, 'key', 'test', '{}')"
	tx, err := open.Begin(f.ctx)
	f.must(err)
	point, err := tx.Begin(f.ctx)
	f.must(err)
	_, err = point.Exec(f.ctx, one, "straddles-1", f.types[0])
	f.must(err)
	f.must(point.Commit(f.ctx))
	for i := range 5 {
		f.insert(fmt.Sprintf("delivered-%d", i))
	}
	f.drain()
	f.stop()
	before := f.published()
	_, err = tx.Exec(f.ctx, one, "straddles-2", f.types[0])
	f.must(err)
	f.must(tx.Commit(f.ctx))
	f.exec(f.name, "SELECT pg_drop_replication_slot($1)", f.name)
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[1], "gap-", 1500, 200))
	f.insert("gap-single")
	says(t, f.refused(10), "the outbox holds [0-9]+ rows that may be of it.*recover --from-table")

	r := f.recover("--from-table")
	if r.Code != 0 {
		t.Fatalf("recover --from-table: exit %d\n%s", r.Code, r.Stderr)
	}
	t.Log(lastLines(r.Stderr, 3))
	f.up()
	f.insert("after")
	f.drain()
	f.stop()

	ids, marked := f.marked()
	all := query[[]string](f, "SELECT array_agg(event_id) FROM outbox_event")
	repeats := 0
	for _, id := range all {
		switch {
		case ids[id] == 0:
			t.Errorf("G1: %s was never published", id)
		case ids[id] > 1 && marked[id] == 0:
			t.Errorf("%s is repeated without a mark", id)
		}
		repeats += ids[id] - 1
	}
	done := logged(t, r, "recovered from the table")
	if n := f.published() - before - 1; float64(n) != done["published"] {
		t.Errorf("%d events came from the table, %v were counted", n, done["published"])
	}
	// What the long transaction has written before the last delivered commit may have been delivered.
	least, most := done["repeats_at_least"].(float64), done["repeats_at_most"].(float64)
	if n := float64(repeats); n < least || n > most || most > n+1 {
		t.Errorf("%d events came twice, %v to %v were counted", repeats, least, most)
	}
	if repeats == 0 || repeats > 20 {
		t.Errorf("%d repeats, want the few since the long transaction began", repeats)
	}
}
