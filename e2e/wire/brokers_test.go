package wire

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/proxy"
)

const partitions = 6

// G1 G2 G5 G8: a real cluster of three brokers under load, with everything that can
// happen to one of them. Nothing is lost, repeated or reordered, and the producer is
// back within two seconds of any other client.
func TestG8ThreeRealBrokers(t *testing.T) {
	long := os.Getenv("WALRELAY_LONG") == "1"
	rounds := 1
	if long {
		rounds = 5
	}
	r, stop := newRig(t)
	r.wait(2 * time.Second)
	var lates []time.Duration
	add := func(name string, breakIt, mendIt func(), last time.Duration) {
		if name != "preferred election" {
			r.prefer()
		}
		if late, ok := r.fault(name, breakIt, mendIt, last); ok {
			lates = append(lates, late)
		}
	}
	for round := range rounds {
		b := r.kafka.Broker(round%3 + 1)
		other := r.kafka.Broker((round+1)%3 + 1)
		add("kill -9", func() { r.must(b.Kill()) }, func() { r.must(b.Start(r.ctx)) }, 5*time.Second)
		add("lost answers", func() {
			for range 3 {
				b.Proxy.DropResponseTo(0)
				other.Proxy.DropResponseTo(0)
				r.wait(300 * time.Millisecond)
			}
		}, nil, time.Second)
		if testing.Short() {
			continue
		}
		add("controlled shutdown", func() { r.must(b.Stop(r.ctx)) }, func() { r.must(b.Start(r.ctx)) }, time.Second)
		add("preferred election", func() {
			_, err := r.admin.ElectLeaders(r.ctx, kadm.ElectPreferredReplica, nil)
			r.must(err)
		}, nil, 2*time.Second)
		add("paused broker", b.Pause, b.Resume, time.Minute)
		add("half-open link", func() { b.Proxy.Set(proxy.Both, proxy.Fault{Stall: true}) }, b.Proxy.Pass, 8*time.Second)
		add("cut in a frame", func() {
			for _, d := range []proxy.Direction{proxy.Up, proxy.Down} {
				b.Proxy.Set(d, proxy.Fault{ResetAfter: 700 + 13*round})
				r.wait(300 * time.Millisecond)
			}
		}, b.Proxy.Pass, time.Second)
		add("slow link", func() { b.Proxy.Set(proxy.Both, proxy.Fault{Delay: 300 * time.Millisecond}) }, b.Proxy.Pass, 10*time.Second)
		add("too few in-sync replicas", func() {
			r.minISR("3")
			r.must(b.Kill())
		}, func() {
			r.must(b.Start(r.ctx))
			r.minISR("2")
		}, 15*time.Second)
		add("quota", func() { r.quota(20_000) }, func() { r.quota(0) }, 15*time.Second)
	}
	stop()
	slices.Sort(lates)
	t.Logf("back after the probe: %v", lates)
	if len(lates) > 0 && lates[len(lates)-1] > 2*time.Second {
		t.Errorf("came back %v after the probe\n%s", lates[len(lates)-1], r.log.String())
	}
}

// minISR sets the topic's min.insync.replicas.
func (r *rig) minISR(n string) {
	_, err := r.admin.AlterTopicConfigs(r.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.insync.replicas", Value: &n}}, r.topic)
	r.must(err)
}

// quota limits the bytes a second of our client on each broker; 0 lifts that.
func (r *rig) quota(bytes float64) {
	name := "walrelay"
	op := kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: bytes, Remove: bytes == 0}
	_, err := r.admin.AlterClientQuotas(r.ctx, []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &name}}, Ops: []kadm.AlterClientQuotaOp{op},
	}})
	r.must(err)
}
