package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// status runs the command; r is what it printed.
func (f *fixture) status(args ...string) (r statusReport) {
	f.t.Helper()
	res, err := f.relay.Command(f.ctx, "status", append([]string{"--json"}, args...)...)
	f.must(err)
	if res.Code != 0 {
		f.t.Fatalf("status: exit %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	f.must(json.Unmarshal([]byte(res.Stdout), &r))
	return r
}

type statusReport struct {
	State     string
	Source    string
	Delivered *string `json:"delivered_lsn"`
	Slot      *struct {
		Confirmed string `json:"confirmed_lsn"`
		Status    string `json:"wal_status"`
		Headroom  *int64 `json:"headroom_bytes"`
	}
	Holder *struct {
		PID         int
		Application string
		User        string
	}
	Checkpoint *struct {
		Safe  *string `json:"safe_lsn"`
		Error string
	}
	Lag struct {
		Bytes   *int64
		Events  *int64
		Exact   bool `json:"events_exact"`
		Seconds *float64
		Oldest  *string `json:"oldest_event_id"`
		Unknown string  `json:"events_unknown"`
	}
	Relay *struct {
		Ready bool
		Fault string `json:"last_error"`
	}
	RelayError string `json:"relay_error"`
}

// Status tells each state of a relay as it is, and looking disturbs nothing.
func TestStatusTellsWhatIs(t *testing.T) {
	f := newFixture(t, option{direct: true})
	r := f.status()
	if r.State != "stopped" || r.Holder != nil || r.Relay != nil || r.RelayError == "" || r.Checkpoint.Safe != nil {
		t.Errorf("after setup: %+v", r)
	}
	for _, id := range []string{"first", "second", "third"} {
		f.insert(id)
	}
	r = f.status()
	if r.Lag.Events == nil || *r.Lag.Events != 3 || r.Lag.Oldest == nil || *r.Lag.Oldest != "first" || r.Lag.Seconds == nil || *r.Lag.Seconds <= 0 || *r.Lag.Bytes <= 0 {
		t.Errorf("three rows before the first run: %+v", r.Lag)
	}

	f.up()
	f.drain()
	f.await(10*time.Second, "everything delivered", func() bool {
		r = f.status()
		return r.Lag.Exact && *r.Lag.Events == 0 && *r.Lag.Seconds == 0
	})
	if r.State != "streaming" || r.Holder == nil || r.Holder.Application != "walrelay" || r.Relay == nil || !r.Relay.Ready ||
		r.Checkpoint.Safe == nil || len(r.Source) != 8 || *r.Delivered < r.Slot.Confirmed {
		t.Errorf("while running: %+v", r)
	}
	f.stop()

	f.insert("fourth")
	if r = f.status(); r.Lag.Events == nil || *r.Lag.Events != 1 || *r.Lag.Oldest != "fourth" {
		t.Errorf("a row while it is stopped: %+v", r.Lag)
	}
	if r = f.status("--checkpoint", "none"); r.Checkpoint != nil || r.Lag.Events == nil || *r.Lag.Events < 1 {
		t.Errorf("without a checkpoint: %+v", r)
	}

	// A role that may do nothing but stream sees the positions, and is told why not the events.
	f.exec("postgres", `DO $$ BEGIN CREATE ROLE status_only LOGIN REPLICATION PASSWORD 'x'; EXCEPTION WHEN duplicate_object THEN NULL; END $$`)
	full := f.relay.Postgres
	f.relay.Postgres = strings.Replace(full, "postgres:postgres@", "status_only:x@", 1)
	if r = f.status(); r.Lag.Events != nil || !strings.Contains(r.Lag.Unknown, "GRANT SELECT") || *r.Lag.Bytes <= 0 {
		t.Errorf("without SELECT: %+v", r.Lag)
	}
	f.relay.Postgres = full

	if r = f.status("--slot", "nobodys"); r.State != "missing" || r.Slot != nil || r.Lag.Bytes != nil {
		t.Errorf("no slot: %+v", r)
	}
	res, err := f.relay.Command(f.ctx, "status", "--timeout", "1s", "--postgres-url", "postgres://127.0.0.1:1/x")
	f.must(err)
	if res.Code != 1 || !strings.Contains(res.Stderr, "gave up after --timeout 1s") {
		t.Errorf("no server: exit %d %s", res.Code, res.Stderr)
	}
	f.up()
	f.drain()
	f.stop()
	f.noRepeats()
}
