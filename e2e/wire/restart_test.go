package wire

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// G1 G2 G5 G8: the brokers are restarted one after the other under load, as an upgrade does it,
// twice: each is shut down in order, started again, and the next one waits until all replicas are in sync.
func TestG8RollingRestart(t *testing.T) {
	if os.Getenv("WALRELAY_LONG") != "1" {
		t.Skip("six restarts: WALRELAY_LONG=1")
	}
	r, stop := newRig(t)
	r.wait(2 * time.Second)
	var lates []time.Duration
	for range 2 {
		for id := 1; id <= 3; id++ {
			r.prefer()
			b := r.kafka.Broker(id)
			late, ok := r.fault(fmt.Sprintf("restart of broker %d", id), func() { r.must(b.Stop(r.ctx)) }, func() { r.must(b.Start(r.ctx)) }, 0)
			if ok {
				lates = append(lates, late)
			}
		}
	}
	stop()
	slices.Sort(lates)
	t.Logf("back after the probe: %v", lates)
	if len(lates) > 0 && lates[len(lates)-1] > 2*time.Second {
		t.Errorf("came back %v after the probe\n%s", lates[len(lates)-1], r.log.String())
	}
}
