package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/workload"
)

func longOnly(t *testing.T) {
	t.Helper()
	if !long {
		t.Skip("in a long run only: WALRELAY_LONG=1")
	}
}

// recoversFromTable gives `recover --from-table`, after which nothing is missing.
func (f *fixture) recoversFromTable() {
	f.t.Helper()
	r := f.recover("--from-table")
	if r.Code != 0 {
		f.t.Fatalf("recover --from-table: exit %d\n%s", r.Code, r.Stderr)
	}
	f.t.Log(lastLines(r.Stderr, 1))
	f.up()
	f.insert("after")
	f.drain()
	f.stop()
	if missing, _ := f.each(); missing > 0 {
		f.t.Errorf("G1: %d events of the table are missing", missing)
	}
}

// G1: the server gives the slot up (max_slot_wal_keep_size); what was written meanwhile
// comes from the table.
func TestG1SlotLost(t *testing.T) {
	longOnly(t)
	f := newFixture(t, option{pg: ownPostgres(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})})
	f.sampler.Stop()
	f.exec("postgres", "SELECT pg_drop_replication_slot($1)", f.truth.Slot)
	f.up()
	f.insert("before")
	f.drain()
	f.stop()
	f.insert("gap")
	for range 4 {
		f.exec(f.name, "SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
		f.exec(f.name, "CHECKPOINT")
	}
	says(t, f.refused(10), "was invalidated.*--from-table")
	f.recoversFromTable()
}

// G1: a restored file copy has other rows behind the same LSNs and transaction ids: the
// whole table is published.
func TestG1RestoredFromTable(t *testing.T) {
	longOnly(t)
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.sampler.Stop()
	f.up()
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], "before-", 200, 50))
	f.drain()
	f.stop()
	copied := f.copyCluster()
	f.up()
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "gone-", 500, 5))
	f.drain()
	passed := query[string](f, "SELECT pg_current_wal_lsn()::text")
	f.stop()
	f.restoreCluster(copied)
	for !query[bool](f, "SELECT pg_current_wal_lsn() > $1::pg_lsn + 100000", passed) {
		f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], query[string](f, "SELECT 'new-' || pg_current_wal_lsn()"), 500, 100))
	}
	says(t, f.refused(10), "--from-table")
	f.recoversFromTable()
}

// G1: a base backup has no logical slots. The server that is made of it may be older than what was
// delivered, on the same timeline, with its WAL grown past it: ids and LSNs are others'.
func TestG1SlotGoneWithARestore(t *testing.T) {
	longOnly(t)
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.sampler.Stop()
	f.exec("postgres", "SELECT pg_drop_replication_slot($1)", f.truth.Slot)
	f.up()
	f.insert("before")
	f.drain()
	f.stop()
	copied := f.copyCluster()
	f.must(os.RemoveAll(filepath.Join(copied, "pg_replslot", f.name)))
	f.up()
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "gone-", 300, 1))
	f.drain()
	f.stop()
	f.restoreCluster(copied)
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "new-", 1000, 1))
	says(t, f.refused(10), "does not exist|restored")
	f.recoversFromTable()
}

// G1: pg_upgrade gives another system id, and keeps table oid, transaction ids and, from 17 on, the
// slot. What it does to a slot is to create it at the new cluster's first WAL.
func TestG1Adopt(t *testing.T) {
	longOnly(t)
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.sampler.Stop()
	f.exec("postgres", "SELECT pg_drop_replication_slot($1)", f.truth.Slot)
	f.up()
	f.insert("before")
	f.drain()
	f.stop()
	// The saved position as one of another cluster: the same as a cluster with another id.
	foreign, err := os.ReadFile(f.relay.Checkpoint())
	f.must(err)
	f.must(os.WriteFile(f.relay.Checkpoint(), resigned(foreign), 0o600))
	f.exec(f.name, "SELECT pg_drop_replication_slot($1)", f.name)
	if r := f.recover("--adopt"); r.Code != 10 || !strings.Contains(r.Stderr, "has not kept the slot") {
		t.Errorf("--adopt without a slot: exit %d\n%s", r.Code, r.Stderr)
	}
	f.exec(f.name, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", f.name)
	f.insert("on the new cluster")
	says(t, f.refused(10), "recover --adopt")
	if r := f.recover("--adopt"); r.Code != 0 {
		t.Fatalf("--adopt: exit %d\n%s", r.Code, r.Stderr)
	}
	f.up()
	f.drain()
	f.stop()
	if missing, repeats := f.each(); missing+repeats > 0 {
		t.Errorf("%d events are missing, %d came twice", missing, repeats)
	}
}

// G1: while it streams, each change that hides rows ends the run within two looks at the catalog.
func TestG1BrokenWhileStreaming(t *testing.T) {
	longOnly(t)
	for _, sql := range []string{
		"ALTER PUBLICATION %s DROP TABLE outbox_event",
		"DROP PUBLICATION %s",
		"ALTER PUBLICATION %s SET TABLE outbox_event WHERE (event_type = 'none')",
		"DROP TABLE outbox_event",
	} {
		f := newFixture(t, option{})
		f.sampler.Stop()
		f.up()
		f.insert("before")
		f.drain()
		began := time.Now()
		f.exec(f.name, strings.ReplaceAll(sql, "%s", f.name))
		f.exits(10)
		if d := time.Since(began); d > 11*time.Second {
			t.Errorf("%s: noticed after %s", sql, d)
		}
		line := lastLines(f.relay.Log(), 1)
		says(t, line, "in doubt: .*recover --accept-gap")
		if !strings.HasPrefix(sql, "DROP TABLE") {
			says(t, line, "the outbox holds 1 rows")
		}
		t.Log(line)
	}
}

// G1: ordinary restarts of either side are no reason to refuse.
func TestG1NoFalseAlarms(t *testing.T) {
	longOnly(t)
	f := newFixture(t, option{})
	rng := newRand(11)
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	for i := range 100 {
		f.up()
		f.pass(time.Duration(rng.IntN(500)) * time.Millisecond)
		if rng.IntN(2) == 0 {
			f.stop()
		} else {
			f.must(f.relay.Kill(f.ctx))
		}
		if strings.Contains(f.relay.Log(), `"exit":10`) {
			t.Fatalf("restart %d was refused: %s", i, lastLines(f.relay.Log(), 1))
		}
	}
	f.up()
	f.end(w)
	f.drain()
	f.stop()
	t.Log(fmt.Sprint(f.check()))
}
