package nemesis

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/workload"
)

// G2 G5: a relay is paused with a full batch on its way and another one behind it, and a
// second relay takes over. The worst that can come of it: the batch that was on its way
// lands late, behind what the second relay has published; nothing else ever does. The
// checker, like any consumer that compares positions, tells it from a new event.
func TestG2ZombieAddsOneBatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w := &world{ctx: ctx, plan: Plan{Brokers: 1, Relays: 2}, types: []string{"order", "payment"}}
	w.report = newReport(w.plan, t.Logf)
	defer func() {
		if t.Failed() && len(w.relays) == 2 {
			t.Logf("the paused relay:\n%s\nthe other one:\n%s", tail(w.relays[0].Log(), 10), tail(w.relays[1].Log(), 10))
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.open())
	zombie, heir, link := w.relays[0], w.relays[1], w.kafka.Broker(1).Proxy
	heir.Brokers = w.kafka.Direct() // past the link that the zombie's batch is stuck on
	must(w.startRelay(0))
	must(zombie.AwaitReady(ctx))
	must(w.startRelay(1))
	records := checker.Topics{Brokers: w.kafka.Direct(), Names: w.topics()}
	published := func(n int64) {
		t.Helper()
		for count := int64(0); count < n; {
			w.pass(100 * time.Millisecond)
			var err error
			count, err = records.Count(ctx)
			must(err)
		}
	}
	must(workload.Bulk(ctx, w.pg.Direct(name), table, w.types[0], "first-", 50, 300))
	published(50)

	// A lone event is on its way for two seconds, and a full batch forms behind it. As soon as
	// that is sent, it stays on its way; and there is more to come than the relay may hold.
	link.Set(proxy.Up, proxy.Fault{Delay: 2 * time.Second})
	must(workload.Bulk(ctx, w.pg.Direct(name), table, w.types[0], "before-", 3000, 300))
	published(51)
	w.pass(300 * time.Millisecond)
	link.Set(proxy.Up, proxy.Fault{Stall: true})
	must(zombie.Signal(syscall.SIGSTOP))
	must(heir.AwaitReady(ctx)) // wal_sender_timeout is 4 s
	published(3050)
	must(workload.Bulk(ctx, w.pg.Direct(name), table, w.types[0], "between-", 500, 300))
	published(3550)

	link.Pass() // the batch lands
	must(zombie.Signal(syscall.SIGCONT))
	load := workload.Start(ctx, workload.Options{URL: w.pg.Direct(name), Types: w.types, Seed: 1, Writers: 2, Every: 20 * time.Millisecond, Transactions: 100})
	_, err := load.Wait()
	must(err)
	w.mayRepeat() // the heir begins where the zombie's saved position stands
	w.points[0] = time.Time{}
	must(w.peace())
	r := w.report.Checked
	t.Logf("%v; %d events came late", r, r.Late.Count)
	for _, v := range w.report.Violations {
		t.Error(v)
	}
	// A row of this size is some 700 bytes in the relay's memory: so many are one batch.
	if most := batch / 400; r.Late.Count < 20 || r.Late.Count > most {
		t.Errorf("G2: %d events came late; one batch is 20 to %d", r.Late.Count, most)
	}
}
