package e2e

import (
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/workload"
)

// G1 G2 G3 G4 G5 G6: mixed traffic, nothing broken: everything once, in order, exact.
func TestMixedTraffic(t *testing.T) {
	f := newFixture(t, option{})
	f.up()
	w := f.load(workload.Options{Transactions: size(120, 3000)})
	stats, err := w.Wait()
	f.must(err)
	t.Logf("%+v", stats)
	f.drain()
	f.stop()
	f.noRepeats()
}

// G1 G3: a backlog from before the relay's first start, ended by --until now: exit 0
// when all of it is delivered and confirmed.
func TestUntilNow(t *testing.T) {
	f := newFixture(t, option{direct: true})
	_, err := f.load(workload.Options{Transactions: size(60, 1000)}).Wait()
	f.must(err)
	mark := query[string](f, "SELECT pg_current_wal_lsn()::text")
	f.must(f.relay.Start("--until", "now"))
	f.exits(0)
	if !query[bool](f, confirmedPast, f.name, mark) {
		t.Error("--until now ended before what was committed is confirmed")
	}
	f.noRepeats()
}

// G1 G2 G6: a partitioned outbox is one table to its consumers.
func TestPartitionedOutbox(t *testing.T) {
	f := newFixture(t, option{unprepared: true})
	f.exec(f.name, `CREATE TABLE outbox_event (event_id text DEFAULT gen_random_uuid()::text, aggregate_type text, aggregate_id text,
			event_type text, payload jsonb, topic text, headers jsonb, correlation_id text, idempotency_key text,
			created_at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (event_id, aggregate_type)) PARTITION BY LIST (aggregate_type);
		CREATE TABLE outbox_orders PARTITION OF outbox_event FOR VALUES IN ('`+f.types[0]+`');
		CREATE TABLE outbox_others PARTITION OF outbox_event DEFAULT`)
	f.setup()
	f.watch()
	f.up()
	_, err := f.load(workload.Options{Transactions: size(40, 500)}).Wait()
	f.must(err)
	f.exec(f.name, "ALTER TABLE outbox_event DETACH PARTITION outbox_orders")
	f.exec(f.name, "CREATE TABLE outbox_orders_too PARTITION OF outbox_event FOR VALUES IN ('"+f.types[0]+"')")
	_, err = workload.Start(f.ctx, workload.Options{URL: f.url(), Types: f.types, Seed: seed() + 1, Transactions: 20}).Wait()
	f.must(err)
	f.drain()
	f.stop()
	f.noRepeats()
}

// G1 G2 G5: the rows of one COPY share WAL positions; the relay is killed in its middle,
// then the broker.
func TestCopyKilledInTheMiddle(t *testing.T) {
	f := newFixture(t, option{direct: true})
	rows := size(60_000, 400_000)
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], "copy-a-", rows, 100))
	f.must(f.relay.Start())
	f.await(time.Minute, "a third published", func() bool { return f.published() > int64(rows/3) })
	f.must(f.relay.Kill(f.ctx))
	if n := f.published(); n >= int64(rows) {
		t.Logf("the kill came late: %d of %d rows were published", n, rows)
	}
	f.up()
	f.drain()

	before := f.published()
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[1], "copy-b-", rows, 100))
	f.await(time.Minute, "some published", func() bool { return f.published() > before+int64(rows/10) })
	broker := f.kafka.Broker(1)
	f.must(broker.Kill())
	f.must(broker.Start(f.ctx))
	f.drain()
	f.stop()
	r := f.check()
	// At most two record batches of a mebibyte on each partition, of rows over 150 bytes.
	if limit := 3 * 2 * (1 << 20) / 150; r.Repeats > limit {
		t.Errorf("G5: %d repeats after one crash, at most %d are two batches", r.Repeats, limit)
	}
}

// G1 G2 G4: kill -9 of the relay at random moments under load, also while it starts.
func TestKilledUnderLoad(t *testing.T) {
	f := newFixture(t, option{direct: true})
	kills := size(20, 200)
	w := f.load(workload.Options{Every: 8 * time.Millisecond})
	rng := newRand(1)
	for n := range kills {
		f.must(f.relay.Start())
		if n%4 != 0 {
			f.must(f.relay.AwaitReady(f.ctx))
		}
		f.pass(time.Duration(20+rng.IntN(330)) * time.Millisecond)
		f.must(f.relay.Kill(f.ctx))
	}
	f.up()
	t.Logf("%+v", f.end(w))
	f.drain()
	f.stop()
	r := f.check()
	if limit := kills * 3 * len(f.topics()); r.Rewinds > limit {
		t.Errorf("G5: %d rewinds after %d kills", r.Rewinds, kills)
	}
}

// G5: a graceful stop under load repeats nothing.
func TestGracefulStopRepeatsNothing(t *testing.T) {
	f := newFixture(t, option{direct: true})
	w := f.load(workload.Options{Every: 4 * time.Millisecond})
	rng := newRand(2)
	for range size(10, 100) {
		f.up()
		f.pass(time.Duration(50+rng.IntN(400)) * time.Millisecond)
		f.stop()
	}
	f.up()
	t.Logf("%+v", f.end(w))
	f.drain()
	f.stop()
	f.noRepeats()
}

// G7 G2: one transaction far larger than the buffer, in bounded memory.
func TestHugeTransaction(t *testing.T) {
	f := newFixture(t, option{direct: true})
	rows := size(100_000, 1_000_000)
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "bulk-", rows, 250))
	f.up()
	f.drain()
	high, err := f.relay.HighWater()
	f.must(err)
	t.Logf("resident at most: %d MiB", high>>20)
	if limit := int64(16+64) << 20; high > limit {
		t.Errorf("G7: %d MiB resident, at most %d are buffer and constant", high>>20, limit>>20)
	}
	f.stop()
	f.noRepeats()
}
