package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/workload"
)

// breakBroker says that the test breaks the shared broker; its end mends it.
func (f *fixture) breakBroker() {
	f.t.Helper()
	broker := f.kafka.Broker(1)
	f.t.Cleanup(func() {
		broker.Proxy.Pass()
		broker.Resume()
		broker.Start(f.ctx) // an error where it runs
	})
}

// G1 G2 G5 G8: kill -9 of the broker under load, and its absence. The relay stays, says
// once what is wrong, and repeats nothing.
func TestBrokerAwayUnderLoad(t *testing.T) {
	f := newFixture(t, option{direct: true})
	f.breakBroker()
	broker := f.kafka.Broker(1)
	f.up()
	w := f.load(workload.Options{Every: 25 * time.Millisecond, Large: 30_000})
	f.pass(500 * time.Millisecond)
	f.must(broker.Kill())
	f.must(broker.Start(f.ctx))
	f.must(f.relay.AwaitReady(f.ctx))
	f.pass(500 * time.Millisecond)

	logged := strings.Count(f.relay.Log(), "\n")
	f.must(broker.Kill())
	f.await(10*time.Second, "not ready without a broker", func() bool { return f.relay.Ready(f.ctx) != nil })
	f.pass(size(4*time.Second, time.Minute))
	f.must(broker.Start(f.ctx))
	f.must(f.relay.AwaitReady(f.ctx))
	t.Logf("%+v", f.end(w))
	f.drain()
	if n := strings.Count(f.relay.Log(), "\n") - logged; n > 20 {
		t.Errorf("G8: %d log lines about one outage:\n%s", n, lastLines(f.relay.Log(), 30))
	}
	high, err := f.relay.HighWater()
	f.must(err)
	if limit := int64(16+64) << 20; high > limit {
		t.Errorf("G7: %d MiB resident while Kafka was away", high>>20)
	}
	f.stop()
	f.noRepeats()
}

// G2 G5: responses that never arrive: the brokers have the records, the relay cannot
// know. Resent batches must not land twice.
func TestLostProduceResponses(t *testing.T) {
	f := newFixture(t, option{})
	f.breakBroker()
	p := f.kafka.Broker(1).Proxy
	f.up()
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	for range size(8, 100) {
		f.pass(150 * time.Millisecond)
		const produce = 0
		p.DropResponseTo(produce)
		f.await(30*time.Second, "a response to drop", func() bool { return !p.Armed() })
	}
	f.end(w)
	f.drain()
	f.stop()
	f.noRepeats()
}

// G8 G5: links to Kafka that are cut in the middle of a frame, slow, or half-open.
func TestBadLinksToKafka(t *testing.T) {
	f := newFixture(t, option{})
	f.breakBroker()
	p := f.kafka.Broker(1).Proxy
	f.up()
	w := f.load(workload.Options{Every: 5 * time.Millisecond})
	rng := newRand(4)
	for range size(1, 10) {
		for _, fault := range []func(){
			func() { p.Set(proxy.Up, proxy.Fault{ResetAfter: 1 + rng.IntN(2000)}) },
			func() { p.Set(proxy.Down, proxy.Fault{ResetAfter: 1 + rng.IntN(100)}) },
			func() { p.Set(proxy.Both, proxy.Fault{Delay: 100 * time.Millisecond}) },
			func() { p.Set(proxy.Up, proxy.Fault{Rate: 100_000}) },
			func() { p.Refuse(true); p.Cut() },
			func() { p.Set(proxy.Down, proxy.Fault{Stall: true}) },
		} {
			fault()
			f.pass(600 * time.Millisecond)
			p.Pass()
		}
	}
	f.must(f.relay.AwaitReady(f.ctx))
	f.end(w)
	f.drain()
	f.stop()
	f.noRepeats()
}
