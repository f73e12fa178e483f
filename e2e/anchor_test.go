package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/e2e/workload"
)

func (f *fixture) anchor() pglogrepl.LSN {
	f.t.Helper()
	return f.parse(query[string](f, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", f.name+"_anchor"))
}

// G1 G5: the anchor is kept the configured distance behind, over restarts; it stands still for an
// unfinished replay, and outlives the slot.
func TestAnchor(t *testing.T) {
	const distance = 1 << 20
	f := newFixture(t, option{direct: true, args: []string{"--replay-retain", "1MiB", "--buffer-bytes", "256KiB", "--batch-bytes", "64KiB"}})
	first := f.anchor()
	f.up()
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "old-", 6000, 250))
	f.drain()
	f.stop()
	f.up() // it is looked at when a session begins
	f.await(20*time.Second, "the anchor moved", func() bool { return f.anchor() > first })
	behind := f.parse(query[string](f, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", f.name)) - f.anchor()
	if behind < distance || behind > distance*9/8 {
		t.Errorf("the anchor is %d bytes behind, want %d", behind, distance)
	}
	metrics, err := f.relay.Metrics(f.ctx)
	f.must(err)
	if metrics["walrelay_anchor_wal_bytes"] < distance || metrics["walrelay_anchor_wal_headroom_bytes"] != -1 {
		t.Errorf("metrics: %v", metrics)
	}

	at := f.anchor()
	p, err := f.relay.Beside("replay", "--from-lsn", at.String())
	f.must(err)
	f.await(time.Minute, "a part replayed", func() bool { return f.recorded(".replay") > 200 || !p.Running() })
	p.Signal(syscall.SIGKILL)
	f.must(p.Wait(f.ctx))
	if p.ExitCode() == 0 {
		t.Fatal("the replay was done before it could be killed")
	}
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "new-", 6000, 250))
	f.drain()
	f.stop()
	f.up()
	f.logged("the anchor stands still")
	if now := f.anchor(); now != at {
		t.Errorf("the anchor moved from %s to %s under an unfinished replay", at, now)
	}
	if out, _ := f.replay(0, "--abandon"); !strings.Contains(out, "abandoned") {
		t.Errorf("replay --abandon: %s", out)
	}
	f.stop()
	f.up()
	f.await(20*time.Second, "the anchor moved again", func() bool { return f.anchor() > at })
	f.stop()

	from := f.anchor()
	f.sampler.Stop()
	f.exec(f.name, "SELECT pg_drop_replication_slot($1)", f.name)
	f.must(f.relay.Start())
	f.exits(10)
	before := f.published()
	f.replay(0, "--from-lsn", from.String())
	if f.published() == before {
		t.Error("nothing was replayed without the slot")
	}
}

// Postgres 18 gives up slots that nobody touches: the anchor is touched.
func TestAnchorOutlivesTheIdleTimeout(t *testing.T) {
	if os.Getenv("WALRELAY_E2E_POSTGRES") != "18" {
		t.Skip("for Postgres 18")
	}
	f := newFixture(t, option{pg: ownPostgres(t, map[string]string{"idle_replication_slot_timeout": "4s"}), args: []string{"--replay-retain", retain}})
	f.exec(f.name, "SELECT pg_drop_replication_slot($1)", f.truth.Slot) // nobody touches it
	f.exec(f.name, "SELECT pg_create_logical_replication_slot('untouched', 'pgoutput')")
	f.up()
	for range size(12, 40) {
		f.pass(time.Second)
		f.exec(f.name, "CHECKPOINT") // looks for idle slots
		if why := query[string](f, "SELECT coalesce(invalidation_reason, '') FROM pg_replication_slots WHERE slot_name = $1", f.name+"_anchor"); why != "" {
			t.Fatalf("the anchor was given up: %s", why)
		}
	}
	if why := query[string](f, "SELECT coalesce(invalidation_reason, '') FROM pg_replication_slots WHERE slot_name = 'untouched'"); why != "idle_timeout" {
		t.Errorf("the server did not look for idle slots: %q", why)
	}
}
