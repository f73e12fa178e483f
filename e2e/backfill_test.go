package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/workload"
)

// older is a fixture with a table that has rows, and no slot.
func older(t *testing.T, rows int) *fixture {
	f := newFixture(t, option{unprepared: true})
	f.setup()
	f.exec(f.name, "SELECT pg_drop_replication_slot($1)", f.name)
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], "old-", rows, 200))
	return f
}

// retain sets how long the topics keep what they have.
func (f *fixture) retain(d time.Duration) {
	f.t.Helper()
	client, err := f.kafka.Client()
	f.must(err)
	defer client.Close()
	ms := fmt.Sprint(d.Milliseconds())
	for _, kind := range f.types {
		_, err := kadm.NewClient(client).AlterTopicConfigs(f.ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &ms}}, "outbox.event."+kind)
		f.must(err)
	}
}

// each counts events that are not delivered, and those that came more than once.
func (f *fixture) each() (missing, repeats int) {
	f.t.Helper()
	ids := f.ids()
	for _, id := range query[[]string](f, "SELECT array_agg(event_id) FROM outbox_event") {
		if ids[id] == 0 {
			missing++
		}
		repeats += max(ids[id]-1, 0)
	}
	return missing, repeats
}

// G1 G5: rows from before the slot are published, those after it streamed, and the cut is exact,
// also while others write.
func TestG1Backfill(t *testing.T) {
	f := older(t, 2000)
	f.exec(f.name, "UPDATE outbox_event SET created_at = '2001-01-01' WHERE event_id = (SELECT min(event_id) FROM outbox_event)")
	f.retain(7 * 24 * time.Hour)
	w := f.load(workload.Options{Every: 3 * time.Millisecond})
	f.must(f.relay.Start("--backfill"))
	f.must(f.relay.AwaitReady(f.ctx))
	f.pass(300 * time.Millisecond)
	f.end(w)
	f.drain()
	f.stop()
	says(t, f.relay.Log(), `"published":[0-9]+,"overlap":0.*backfill done`)
	says(t, f.relay.Log(), "older than what the topic keeps")
	if missing, repeats := f.each(); missing+repeats > 0 {
		t.Errorf("%d events are missing, %d came twice", missing, repeats)
	}
	f.up("--backfill")
	says(t, f.relay.Log(), "no backfill: there is a saved position")
	f.stop()
}

// G1: one that is killed starts over with a new slot, and says so where it is not asked to.
func TestG1BackfillInterrupted(t *testing.T) {
	f := older(t, size(20000, 500000))
	f.must(f.relay.Start("--backfill", "--buffer-bytes", "1MiB"))
	f.await(30*time.Second, "events arrive", func() bool { return f.published() > 0 })
	f.must(f.relay.Kill(f.ctx))
	if strings.Contains(f.relay.Log(), "backfill done") {
		t.Skip("it was done before it could be killed")
	}
	f.insert("meanwhile")
	says(t, f.refused(10), "run --backfill")
	f.up("--backfill")
	f.insert("after")
	f.drain()
	f.stop()
	says(t, f.relay.Log(), `"overlap":[1-9][0-9]*.*backfill done`)
	if missing, repeats := f.each(); missing > 0 || repeats == 0 {
		t.Errorf("%d events are missing, %d came twice", missing, repeats)
	} else {
		t.Log(fmt.Sprint(repeats, " came twice"))
	}
}
