package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

// onceFixture is a world with a relay that delivers exactly once; what it is held to is
// what a read_committed consumer sees.
func onceFixture(t *testing.T, o option) *fixture {
	o.positions = "positions" // shared by all slots of the cluster
	o.args = append(o.args, "--delivery", "exactly-once")
	f := newFixture(t, o)
	f.once = true
	return f
}

// rival is a second relay for the same slot.
func (f *fixture) rival() *harness.Relay {
	f.t.Helper()
	r, err := harness.New(f.relay.Config)
	f.must(err)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("last of the rival's log:\n%s", lastLines(r.Log(), 30))
		}
		r.Close()
	})
	return r
}

// ended checks that what was delivered is exact: nothing lost, twice, or out of order.
func (f *fixture) ended() {
	f.t.Helper()
	f.drain()
	f.stop()
	f.noRepeats()
}

// G1 G2 G5: kill -9 at random moments, from before the first request to in the middle of large transactions.
func TestOnceUnderKills(t *testing.T) {
	f := onceFixture(t, option{direct: true})
	w := f.load(workload.Options{Every: 2 * time.Millisecond, Large: 20_000})
	rng := newRand(41)
	for i := range size(5, 200) {
		if i%4 == 1 {
			f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], fmt.Sprintf("bulk-%d-", i), 5000, 300))
		}
		f.must(f.relay.Start())
		f.pass(time.Duration(100+rng.IntN(900)) * time.Millisecond)
		f.must(f.relay.Kill(f.ctx))
	}
	f.up()
	t.Logf("%+v", f.end(w))
	f.ended()
}

// G1 G2 G5: a relay that is stopped, loses the slot to a second one, and wakes up: it writes nothing that
// anybody sees, and waits.
func TestOnceZombie(t *testing.T) {
	f := onceFixture(t, option{direct: true})
	other := f.rival()
	f.up()
	w := f.load(workload.Options{Every: 2 * time.Millisecond, Large: 20_000})
	rng := newRand(42)
	active, waiting := f.relay, other
	f.must(waiting.Start())
	for range size(2, 60) {
		f.pass(time.Duration(200+rng.IntN(600)) * time.Millisecond)
		f.must(active.Signal(syscall.SIGSTOP))
		f.terminateWalsender()
		f.must(waiting.AwaitReady(f.ctx))
		f.pass(time.Duration(rng.IntN(500)) * time.Millisecond)
		f.must(active.Signal(syscall.SIGCONT))
		f.await(20*time.Second, "the woken relay steps back", func() bool { return active.Ready(f.ctx) != nil })
		active, waiting = waiting, active
	}
	f.end(w)
	f.drain()
	for _, r := range []*harness.Relay{waiting, active} {
		if code, err := r.Stop(f.ctx); code != 0 || err != nil {
			t.Errorf("SIGTERM: %d, %v", code, err)
		}
	}
	f.noRepeats()
}

// The requests of a transaction.
const (
	apiProduce       = 0
	apiInitProducer  = 22
	apiAddPartitions = 24
	apiEndTxn        = 26
)

// G1 G2 G5 G8: answers to every kind of request that never come, or late: the brokers have done what they
// were asked, and the relay cannot know.
func TestOnceLostAnswers(t *testing.T) {
	f := onceFixture(t, option{})
	f.breakBroker()
	p := f.kafka.Broker(1).Proxy
	f.up()
	w := f.load(workload.Options{Every: 3 * time.Millisecond})
	rng := newRand(43)
	for i := range size(2, 60) {
		for _, api := range []int16{apiProduce, apiAddPartitions, apiEndTxn} {
			f.pass(time.Duration(50+rng.IntN(200)) * time.Millisecond)
			p.DropResponseTo(api)
			f.await(30*time.Second, "a response to drop", func() bool { return !p.Armed() })
		}
		// And the start over, which asks for the producer once more.
		p.DropResponseTo(apiEndTxn)
		f.await(30*time.Second, "a response to drop", func() bool { return !p.Armed() })
		p.DropResponseTo(apiInitProducer)
		f.await(30*time.Second, "a response to drop", func() bool { return !p.Armed() })
		p.Set(proxy.Down, proxy.Fault{Delay: time.Duration(50+100*(i%4)) * time.Millisecond})
		f.pass(700 * time.Millisecond)
		p.Set(proxy.Up, proxy.Fault{ResetAfter: 1 + rng.IntN(3000)})
		f.pass(300 * time.Millisecond)
		p.Pass()
	}
	f.end(w)
	f.ended()
}

// G1 G2 G5 G8: Postgres is restarted the hard way, and the broker is killed, under load.
func TestOnceServersRestart(t *testing.T) {
	pg, err := startPostgres(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close() })
	f := onceFixture(t, option{direct: true, pg: pg})
	f.breakBroker()
	broker := f.kafka.Broker(1)
	f.up()
	w := f.load(workload.Options{Every: 3 * time.Millisecond})
	for range size(1, 20) {
		f.pass(500 * time.Millisecond)
		f.must(pg.Stop(f.ctx, stack.Immediate))
		f.must(pg.Start(f.ctx))
		f.pass(500 * time.Millisecond)
		f.must(broker.Kill())
		f.pass(300 * time.Millisecond)
		f.must(broker.Start(f.ctx))
		f.must(f.relay.AwaitReady(f.ctx))
	}
	f.end(w)
	f.ended()
}

// G1 G2 G5 G8: three brokers, killed and restarted in turn; relays are killed beside that.
func TestOnceOnThreeBrokers(t *testing.T) {
	if !long {
		t.Skip("long")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	kafka, err := stack.StartKafka(ctx, stack.KafkaOptions{Brokers: 3, Proxy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kafka.Close() })
	f := onceFixture(t, option{kafka: kafka})
	f.up()
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	rng := newRand(44)
	for i := range 12 {
		f.pass(2 * time.Second)
		broker := kafka.Broker(1 + i%3)
		if i%2 == 0 {
			f.must(broker.Kill())
		} else {
			f.must(broker.Stop(f.ctx))
		}
		f.pass(time.Duration(rng.IntN(3000)) * time.Millisecond)
		if i%4 == 3 {
			f.must(f.relay.Kill(f.ctx))
			f.must(f.relay.Start())
		}
		f.must(broker.Start(f.ctx))
		f.must(f.relay.AwaitReady(f.ctx))
	}
	f.end(w)
	f.ended()
}

// A transaction that hangs because its relay was killed and does not come back ends by
// the coordinator's timeout: consumers wait for it no longer than that and its sweep.
func TestOnceHangingTransaction(t *testing.T) {
	if !long {
		t.Skip("long")
	}
	f := onceFixture(t, option{direct: true})
	w := f.load(workload.Options{Every: time.Millisecond})
	hangs := func() bool {
		behind, err := f.records().Behind(f.ctx)
		f.must(err)
		return behind > 0
	}
	rng := newRand(46)
	var killed time.Time
	for hung := false; !hung; {
		f.up()
		f.pass(time.Duration(rng.IntN(300)) * time.Millisecond)
		f.must(f.relay.Kill(f.ctx))
		killed = time.Now()
		hung = hangs()
		for hung && time.Since(killed) < 2*time.Second { // or its end was on its way
			hung = hangs()
		}
	}
	f.end(w)
	f.await(60*time.Second, "the last stable offset moves", func() bool { return !hangs() })
	t.Logf("the transaction hung for %s after the kill", time.Since(killed).Round(time.Millisecond))
	if took := time.Since(killed); took > 50*time.Second {
		t.Errorf("the transaction hung for %s, more than its timeout of 40 s and the sweep of 10 s", took)
	}
	f.up()
	f.ended()
}

// G5: at least once with the checkpoint in Kafka is what standbys on several hosts share: nothing is
// repeated after a stop, and nothing lost after kills on either.
func TestCheckpointInKafka(t *testing.T) {
	f := newFixture(t, option{direct: true, positions: "positions"})
	other := f.rival()
	f.up()
	w := f.load(workload.Options{Every: 3 * time.Millisecond, Large: 20_000})
	f.pass(500 * time.Millisecond)
	f.stop()
	f.up()
	repeats := func() int { return strings.Count(f.relay.Log(), "no saved position") }
	if n := repeats(); n != 1 {
		t.Errorf("the position was not found again: the slot was trusted %d times", n)
	}
	f.must(other.Start())
	rng := rand.New(rand.NewPCG(seed(), 45))
	active, waiting := f.relay, other
	for range size(2, 40) {
		f.pass(time.Duration(200+rng.IntN(500)) * time.Millisecond)
		f.must(active.Kill(f.ctx))
		f.must(waiting.AwaitReady(f.ctx))
		f.must(active.Start())
		active, waiting = waiting, active
	}
	f.end(w)
	f.drain()
	for _, r := range []*harness.Relay{waiting, active} {
		if code, err := r.Stop(f.ctx); code != 0 || err != nil {
			t.Errorf("SIGTERM: %d, %v", code, err)
		}
	}
	f.check()
}

// G1 G5: from the file to exactly once and back, on a live slot, with a kill on the way: nothing is lost or twice,
// and the store that was left behind says where the position is.
func TestMovingBetweenModes(t *testing.T) {
	f := newFixture(t, option{direct: true})
	f.once = true
	f.up()
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	f.pass(300 * time.Millisecond)
	f.stop()

	f.relay.Topic, f.relay.Args = "positions", []string{"--delivery", "exactly-once"}
	f.up()
	f.pass(300 * time.Millisecond)
	f.must(f.relay.Kill(f.ctx))
	f.up()
	f.pass(300 * time.Millisecond)
	f.stop()

	f.relay.Topic, f.relay.Args = "", nil
	f.must(f.relay.Start())
	f.exits(10)
	says(t, f.relay.Log(), "moved to kafka:positions")
	f.must(f.relay.Start("--checkpoint-from", "kafka:positions"))
	f.must(f.relay.AwaitReady(f.ctx))
	f.pass(300 * time.Millisecond)
	f.end(w)
	f.ended()

	f.relay.Topic = "positions"
	f.must(f.relay.Start("--checkpoint-from", "file:"+f.relay.Dir()+"/other"))
	f.exits(10)
	says(t, f.relay.Log(), "moved to file:")
}
