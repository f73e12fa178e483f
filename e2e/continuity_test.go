package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// breach is a row of the table of continuity: what is done to the two sides while the relay is
// stopped, and what it must say.
type breach struct {
	name string
	sql  string // %s: the name of slot and publication; rows are inserted in its place of HIDDEN
	do   func(f *fixture)
	mend string // what has to be done before a recovery
	says string
	long bool // in a long run only
}

var breaches = []breach{
	{name: "slot dropped", sql: "SELECT pg_drop_replication_slot('%s')", says: "does not exist"},
	{name: "slot created again", sql: "SELECT pg_drop_replication_slot('%s'); HIDDEN; SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", says: "ahead of the saved position"},
	{name: "slot advanced", long: true, sql: "HIDDEN; SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", says: "ahead of the saved position"},
	{name: "other plugin", long: true, sql: "SELECT pg_drop_replication_slot('%s'); SELECT pg_create_logical_replication_slot('%s', 'test_decoding')",
		mend: "SELECT pg_drop_replication_slot('%s')", says: "decodes with test_decoding"},
	{name: "two-phase", long: true, sql: "SELECT pg_drop_replication_slot('%s'); SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, true)",
		mend: "SELECT pg_drop_replication_slot('%s')", says: "two-phase"},
	{name: "publication dropped", long: true, sql: "DROP PUBLICATION %s; HIDDEN", mend: "CREATE PUBLICATION %s FOR TABLE outbox_event WITH (publish = 'insert')", says: "does not exist"},
	{name: "publication created again", sql: "DROP PUBLICATION %s; HIDDEN; CREATE PUBLICATION %s FOR TABLE outbox_event WITH (publish = 'insert')", says: "was replaced"},
	{name: "publication narrowed", long: true, sql: "ALTER PUBLICATION %s SET (publish = 'update'); HIDDEN", mend: "ALTER PUBLICATION %s SET (publish = 'insert')", says: "does not publish inserts"},
	{name: "publication narrowed and back", long: true, sql: "ALTER PUBLICATION %s SET (publish = 'update'); HIDDEN; ALTER PUBLICATION %s SET (publish = 'insert')", says: "was altered"},
	{name: "table left", long: true, sql: "ALTER PUBLICATION %s DROP TABLE outbox_event; HIDDEN", mend: "ALTER PUBLICATION %s ADD TABLE outbox_event", says: "does not hold"},
	{name: "table left and came back", long: true, sql: "ALTER PUBLICATION %s DROP TABLE outbox_event; HIDDEN; ALTER PUBLICATION %s ADD TABLE outbox_event", says: "came back"},
	{name: "row filter", long: true, sql: "ALTER PUBLICATION %s SET TABLE outbox_event WHERE (event_type = 'none'); HIDDEN", mend: "ALTER PUBLICATION %s SET TABLE outbox_event", says: "row filter"},
	{name: "column list", long: true, sql: "ALTER PUBLICATION %s SET TABLE outbox_event (event_id, aggregate_id, aggregate_type); HIDDEN", mend: "ALTER PUBLICATION %s SET TABLE outbox_event", says: "came back"},
	{name: "table created again", long: true, sql: "CREATE TABLE spare (LIKE outbox_event INCLUDING ALL); DROP TABLE outbox_event; ALTER TABLE spare RENAME TO outbox_event; HIDDEN; ALTER PUBLICATION %s ADD TABLE outbox_event", says: "was replaced"},
	{name: "checkpoint torn", do: func(f *fixture) { f.must(os.Truncate(f.relay.Checkpoint(), 100)) }, says: "torn"},
}

// G1: each row of the table of continuity is refused within five seconds, with the gap and
// the command that gets out of it, which then does.
func TestG1Continuity(t *testing.T) {
	f := newFixture(t, option{})
	f.sampler.Stop()
	f.up()
	var done []int
	for i, b := range breaches {
		if b.long && !long {
			continue
		}
		done = append(done, i)
		f.insert(fmt.Sprintf("before-%d", i))
		f.drain()
		f.stop()
		f.breach(b, fmt.Sprintf("hidden-%d", i))
		line := f.refused(10)
		says(t, line, b.says)
		if !f.recovers(b.name, line, b.mend) {
			return
		}
		f.up()
		f.insert(fmt.Sprintf("after-%d", i))
		f.drain()
	}
	f.stop()
	delivered := f.ids()
	for _, i := range done {
		if delivered[fmt.Sprintf("before-%d", i)] == 0 || delivered[fmt.Sprintf("after-%d", i)] == 0 {
			t.Errorf("%s: an event before or after the gap is missing", breaches[i].name)
		}
	}
}

// breach breaks the continuity. A slot can't be created in a transaction that has written.
func (f *fixture) breach(b breach, hidden string) {
	f.t.Helper()
	if b.do != nil {
		b.do(f)
	}
	for sql := range strings.SplitSeq(b.sql, "; ") {
		switch {
		case sql == "HIDDEN":
			f.insert(hidden)
		case sql != "":
			f.exec(f.name, strings.ReplaceAll(sql, "%s", f.name))
		}
	}
}

// refused starts the relay, which has to end within five seconds, and returns its last line.
func (f *fixture) refused(code int) string {
	f.t.Helper()
	began := time.Now()
	f.must(f.relay.Start())
	f.exits(code)
	if d := time.Since(began); d > 5*time.Second {
		f.t.Errorf("refused after %s", d)
	}
	line := lastLines(f.relay.Log(), 1)
	f.t.Log(line)
	return line
}

var acceptGap = regexp.MustCompile("recover --accept-gap ([0-9A-F]+/[0-9A-F]+)`")

// recovers gives the command that the refusal printed; one with another LSN is refused.
func (f *fixture) recovers(name, line, mend string) bool {
	f.t.Helper()
	m := acceptGap.FindStringSubmatch(line)
	if m == nil {
		f.t.Errorf("%s: no way out is named", name)
		return false
	}
	if mend != "" {
		r := f.recover("--accept-gap", m[1])
		if r.Code != 10 && r.Code != 13 { // 13: a mapped column is hidden
			f.t.Errorf("%s: recover before it is mended: exit %d\n%s", name, r.Code, r.Stderr)
		}
		f.exec(f.name, strings.ReplaceAll(mend, "%s", f.name))
	}
	if r := f.recover("--accept-gap", "0/1"); r.Code != 10 || !strings.Contains(r.Stderr, m[1]) {
		f.t.Errorf("%s: recover with a wrong LSN: exit %d\n%s", name, r.Code, r.Stderr)
	}
	r := f.recover("--accept-gap", m[1])
	if r.Code != 0 {
		f.t.Errorf("%s: recover: exit %d\n%s", name, r.Code, r.Stderr)
		return false
	}
	return true
}
