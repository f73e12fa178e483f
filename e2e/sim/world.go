package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/e2e/sim/simkafka"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/e2e/sim/simpg"
)

const (
	pgHost      = "10.0.0.1"
	schema      = "public"
	table       = "outbox_event"
	publication = "walrelay"
	slot        = "walrelay"
)

// world is everything of one run.
type world struct {
	plan  Plan
	net   *simnet.Network
	pg    *simpg.Server
	kafka *simkafka.Cluster
	truth *truth
	timeline
	path string // of the checkpoint file

	// The main goroutine's.
	live   []*process
	past   []*process // dead or ended, maybe with goroutines that don't know it yet
	lives  int
	agenda []entry // in the order of time
	exits  chan *process
	calm   bool // faults are over and outlived

	switched pglogrepl.LSN // where other WAL may begin than the relay saw; 0: nowhere

	mu      sync.Mutex
	rng     *rand.Rand
	failure *Failure
	failed  chan struct{} // closed with failure
	noSpace time.Time     // until then
}

// Failure is a guarantee that was broken.
type Failure struct {
	Rule string // G1 to G8
	Text string
	Time time.Duration // since the beginning
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s (at %s)", f.Rule, f.Text, f.Time) }

// newWorld builds everything but the relay. It runs in the bubble.
func newWorld(plan Plan, path string) *world {
	w := &world{plan: plan, path: path, failed: make(chan struct{}), exits: make(chan *process, 100), rng: stream(plan.Seed, 4)}
	w.began = time.Now()
	w.net = simnet.New(plan.Seed, simnet.Profile{Latency: plan.Latency, Jitter: plan.Jitter, Fragment: plan.Fragment, Window: plan.Window})
	w.truth = newTruth(plan.Partitions, w.fail)
	var topics []string
	for i := range plan.Topics {
		topics = append(topics, topicName(i))
	}
	w.kafka = simkafka.New(simkafka.Config{
		Brokers: plan.Brokers, Replication: plan.Replication, MinISR: plan.MinISR, Partitions: plan.Partitions,
		Topics: topics, MaxBytes: plan.MaxBytes, Old: plan.OldKafka, Delay: plan.Replicate,
	}, plan.Seed, w.net, simkafka.Hooks{
		Committed: w.truth.published, Acked: w.truth.acked, Dropped: w.truth.dropped,
		Note: w.note, Fault: func(format string, args ...any) { w.fail("protocol", format, args...) },
	})
	w.pg = simpg.New(simpg.Config{
		Addr: pgHost + ":5432", SystemID: "7400000000000000001", Version: plan.Version, WALSenderTimeout: plan.WALSenderTimeout,
		Start: pglogrepl.LSN(plan.Start), Clock: plan.Clock, CheckpointEvery: plan.CheckpointEvery,
		Schema: schema, Table: table, Publication: publication, Slot: slot, Columns: columns, SyncedStandby: plan.SyncedStandby,
	}, plan.Seed, w.net, simpg.Hooks{
		Committed: w.truth.committedTxn, Lost: w.truth.lostTxns, Streams: w.truth.streams, Leaves: w.truth.leaves,
		Row: w.truth.sent, Down: w.truth.down,
		Status: func(s simpg.Status) { w.truth.status(s, !plan.NoCheckpoint) },
		Note:   w.note, Fault: func(format string, args ...any) { w.fail("protocol", format, args...) },
	})
	return w
}

// fail notes the first guarantee that is broken, and ends the run.
func (w *world) fail(rule, format string, args ...any) {
	w.note("!! "+rule+": "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = &Failure{rule, fmt.Sprintf(format, args...), time.Since(w.began)}
		close(w.failed)
	}
}

func (w *world) broken() *Failure {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

func (w *world) diskFull() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.noSpace)
}

// saveDelay is how long the next step of saving takes.
func (w *world) saveDelay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plan.Save == 0 || w.rng.IntN(3) == 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(w.plan.Save)))
}

// sleep waits until a moment of the run, a failure, or the end of a relay, which puts more
// on the agenda. It reports whether the moment has come, and whether the run goes on.
func (w *world) sleep(until time.Duration) (come, goesOn bool) {
	t := time.NewTimer(time.Until(w.began.Add(until)))
	defer t.Stop()
	select {
	case <-t.C:
		return true, w.broken() == nil
	case <-w.failed:
		return false, false
	case p := <-w.exits:
		return false, w.exited(p)
	}
}

// bury takes a process off the living.
func (w *world) bury(p *process) {
	w.live = slices.DeleteFunc(w.live, func(x *process) bool { return x == p })
	w.past = append(w.past, p)
}

// close ends everything that is left.
func (w *world) close() {
	for len(w.live) > 0 {
		p := w.live[0]
		p.kill(false)
		w.bury(p)
	}
	w.pg.Close()
	w.kafka.Close()
	w.net.Close()
	late := time.NewTimer(5 * time.Minute)
	defer late.Stop()
	for _, p := range w.past {
		select {
		case <-p.ended:
		case <-late.C:
			w.fail("G8", "%s does not end after it was told to", p.name)
			return
		}
	}
	time.Sleep(time.Minute) // what the driver closes in the background is given 15 s
}
