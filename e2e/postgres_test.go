package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

// ownPostgres is a server that a test may break.
func ownPostgres(t *testing.T, config map[string]string) *stack.Postgres {
	t.Helper()
	pg, err := startPostgres(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
	return pg
}

// G1 G2 G5 G8: the relay outlives everything that ends its session with Postgres, and
// repeats nothing.
func TestPostgresRestartsUnderLoad(t *testing.T) {
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.up()
	pid := f.relay.Pid()
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	rng := newRand(3)
	for range size(1, 10) {
		for _, fault := range []func(){
			func() { f.restart(stack.Immediate) },
			func() { f.restart(stack.Fast) },
			func() { f.must(f.pg.Kill()); f.must(f.pg.Start(f.ctx)) },
			f.terminateWalsender,
			f.terminateWalsender,
			f.pg.Proxy.Cut,
		} {
			f.pass(time.Duration(200+rng.IntN(500)) * time.Millisecond)
			fault()
		}
	}
	f.must(f.relay.AwaitReady(f.ctx))
	t.Logf("%+v", f.end(w))
	f.drain()
	if f.relay.Pid() != pid || !f.relay.Running() {
		t.Error("G8: the relay is another process")
	}
	f.stop()
	f.noRepeats()
}

// restart stops and starts the server; it must not wait for the relay for long.
func (f *fixture) restart(mode stack.Mode) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, 40*time.Second)
	defer cancel()
	begin := time.Now()
	if err := f.pg.Stop(ctx, mode); err != nil {
		f.t.Fatalf("G8: the server's shutdown hangs: %v\n%s", err, lastLines(f.relay.Log(), 15))
	}
	f.t.Logf("stopped after %s", time.Since(begin).Round(time.Millisecond))
	f.must(f.pg.Start(f.ctx))
}

func (f *fixture) terminateWalsender() {
	f.t.Helper()
	f.exec("postgres", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", f.name)
}

// G8: a fast shutdown waits for walsenders, and those for a confirmation that cannot
// come while Kafka is away: the relay has to let go.
func TestFastShutdownWhileKafkaIsAway(t *testing.T) {
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.up()
	defer f.kafka.Broker(1).Proxy.Pass()
	f.kafka.Broker(1).Proxy.Set(proxy.Both, proxy.Fault{Stall: true})
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "stuck-", 2000, 100))
	f.pass(time.Second)
	f.restart(stack.Fast)
	f.kafka.Broker(1).Proxy.Pass()
	f.must(f.relay.AwaitReady(f.ctx))
	f.drain()
	f.stop()
	f.noRepeats()
}

// G8 G5: the link to Postgres dies without a word.
func TestHalfOpenPostgres(t *testing.T) {
	f := newFixture(t, option{pg: ownPostgres(t, map[string]string{"wal_sender_timeout": "6s"})})
	f.up()
	w := f.load(workload.Options{Every: 10 * time.Millisecond})
	f.pass(300 * time.Millisecond)
	f.pg.Proxy.Set(proxy.Both, proxy.Fault{Stall: true})
	f.await(30*time.Second, "not ready behind a dead link", func() bool { return f.relay.Ready(f.ctx) != nil })
	f.pass(2 * time.Second)
	f.pg.Proxy.Cut() // what the kernel would find out some minutes later
	f.pg.Proxy.Pass()
	f.must(f.relay.AwaitReady(f.ctx))
	f.end(w)
	f.drain()
	f.stop()
	f.noRepeats()
}

// G1: an idle outbox must not hold WAL back while other tables are busy.
func TestIdleOutboxLetsWALGo(t *testing.T) {
	f := newFixture(t, option{})
	f.up()
	f.insert("first")
	f.drain()
	f.exec(f.name, "CREATE TABLE busy (n int, text text)")
	for range size(6, 60) {
		f.exec(f.name, "INSERT INTO busy SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 10000) i")
		f.exec(f.name, "CHECKPOINT")
	}
	// Confirmed: at once in effect. Retained: up to the next record of running transactions.
	mark := query[string](f, "SELECT pg_current_wal_lsn()::text")
	f.await(20*time.Second, "the slot confirms what other tables wrote", func() bool { return query[bool](f, confirmedPast, f.name, mark) })
	f.await(40*time.Second, "the slot lets WAL go", func() bool {
		f.exec(f.name, "CHECKPOINT")
		return query[bool](f, "SELECT pg_current_wal_lsn() - restart_lsn < 4 << 20 FROM pg_replication_slots WHERE slot_name = $1", f.name)
	})
	f.insert("last")
	f.drain()
	f.stop()
	f.noRepeats()
}

// G1: a file copy of the cluster, taken before the checkpoint, whose WAL has meanwhile
// grown past it: same system id, same timeline, other rows. Only a refusal is right.
func TestRestoredFileCopyIsRefused(t *testing.T) {
	f := newFixture(t, option{pg: ownPostgres(t, nil)})
	f.up()
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], "before-", 50, 100))
	f.drain()
	f.stop()
	f.sampler.Stop()
	copied := f.copyCluster()
	f.up()
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], "gone-", 50, 100))
	f.drain()
	passed := query[string](f, "SELECT pg_current_wal_lsn()::text")
	f.stop()
	f.restoreCluster(copied)

	for !query[bool](f, "SELECT pg_current_wal_lsn() > $1::pg_lsn + 1000000", passed) {
		f.must(workload.Copy(f.ctx, f.url(), table, f.types[0], query[string](f, "SELECT 'after-' || pg_current_wal_lsn()"), 2000, 200))
	}
	confirmed := query[string](f, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", f.name)
	published := f.published()
	f.must(f.relay.Start())
	f.exits(10)
	t.Log(lastLines(f.relay.Log(), 1))
	if now := query[string](f, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", f.name); now != confirmed {
		t.Errorf("G3: the refusal moved the slot from %s to %s", confirmed, now)
	}
	if f.published() != published {
		t.Error("the refusal published something")
	}
}
