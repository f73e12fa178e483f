package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
)

// Result is what a run brought.
type Result struct {
	Plan     Plan
	Failure  *Failure // nil: every guarantee held
	Timeline *timeline
	Took     time.Duration // virtual
	Events   int
	Repeats  int
}

// settle is how long the relay has to deliver everything when all faults are over.
const settle = 3 * time.Minute

// Run carries a plan out in a bubble of its own.
func Run(t *testing.T, plan Plan) (res *Result) {
	res = &Result{Plan: plan, Timeline: &timeline{}}
	dir, err := os.MkdirTemp(scratch(), "walrelay-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer func() {
		if r := recover(); r != nil { // a goroutine is left over, or everything waits for nothing
			res.Failure = &Failure{Rule: "leak", Text: fmt.Sprintf("%v\n%s", r, stacks())}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
		w := newWorld(plan, filepath.Join(dir, "checkpoint"))
		res.Timeline = &w.timeline
		w.run()
		w.close()
		if w.broken() == nil {
			res.Repeats = w.analyse()
		}
		res.Failure, res.Took, res.Events = w.broken(), time.Since(w.began), len(w.truth.order)
	})
	return res
}

// stacks are those of all goroutines in bubbles.
func stacks() string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return !strings.Contains(s, "synctest bubble") }), "\n\n")
}

// scratch is a folder in memory where there is one: the checkpoint is saved for real.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// entry is something that the main goroutine does at a moment of the run.
type entry struct {
	at time.Duration
	do func()
}

// later puts something on the agenda.
func (w *world) later(d time.Duration, do func()) { w.at(time.Since(w.began)+d, do) }

func (w *world) at(at time.Duration, do func()) {
	i, _ := slices.BinarySearchFunc(w.agenda, at, func(e entry, at time.Duration) int {
		if e.at <= at {
			return -1
		}
		return 1
	})
	w.agenda = slices.Insert(w.agenda, i, entry{at, do})
}

// run is the main goroutine's.
func (w *world) run() {
	w.relay = w.start()
	for _, op := range w.plan.Ops {
		w.at(op.At, func() { w.do(op) })
	}
	for _, f := range w.plan.Faults {
		w.at(f.At, func() {
			w.note("fault: %s", f)
			faultNamed(f.Kind).do(w, f)
		})
	}
	w.at(w.plan.For, func() {})
	for len(w.agenda) > 0 {
		next := w.agenda[0]
		w.agenda = w.agenda[1:]
		if !w.sleep(next.at) {
			return
		}
		next.do()
	}
	if w.heal() {
		w.goodbye()
	}
}

// heal ends all faults and waits until everything is delivered and confirmed (G1, G8).
func (w *world) heal() bool {
	w.note("faults are over")
	w.kafka.Heal()
	w.mu.Lock()
	w.noSpace = time.Time{}
	w.mu.Unlock()
	for _, l := range w.net.Links(func(*simnet.Link) bool { return true }) {
		l.Bury()
	}
	last := time.Since(w.began) + settle
	for at := time.Since(w.began); ; at += 100 * time.Millisecond {
		if !w.sleep(at) {
			return false
		}
		if w.relay == nil {
			continue
		}
		ready, why := w.relay.relay.Ready()
		first := w.truth.pendingWork()
		confirmed, end := w.pg.Confirmed(), w.pg.WALEnd()
		switch done := first == nil && confirmed >= end; {
		case done && ready:
			w.note("all is delivered and confirmed")
			return true
		case at < last:
			continue
		}
		for _, s := range w.pg.Sessions() {
			w.note("postgres: %s", s)
		}
		switch {
		case first != nil:
			w.fail("G1", "event %s (commit %s seq %d) is not delivered %s after the last fault; ready: %t %s", first.id, first.commit, first.seq, settle, ready, why)
		case confirmed < end:
			w.fail("G8", "the slot stands at %s, the WAL ends at %s, %s after the last fault; ready: %t %s", confirmed, end, settle, ready, why)
		default:
			w.fail("G8", "not ready %s after the last fault: %s", settle, why)
		}
	}
}

// goodbye stops the relay in good order, and starts it once more: nothing may be
// published twice (G5).
func (w *world) goodbye() {
	w.do(Op{Rows: 3, Seed: w.plan.Seed ^ 0x6f6f6d, Large: 200})
	if !w.sleep(time.Since(w.began)+50*time.Millisecond) || !w.finish() {
		return
	}
	w.relay = w.start()
	w.sleep(time.Since(w.began) + 3*time.Second)
}

// tolerable says whether a stop in the middle of faults may end so.
func tolerable(err error) bool { return errors.Is(err, relay.ErrDrainTimeout) }

// finish stops the relay in good order. It reports whether that worked.
func (w *world) finish() bool {
	p := w.relay
	w.note("%s is asked to stop", p.name)
	p.stop()
	late := time.NewTimer(2 * drainTimeout)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-late.C:
		w.fail("G8", "%s does not stop", p.name)
		return false
	}
	if p.err != nil {
		w.fail("G8", "%s did not stop in good order: %v", p.name, p.err)
		return false
	}
	w.past, w.relay = append(w.past, p), nil
	return true
}

// exited judges the end of a relay that nobody asked for. It reports whether the run goes
// on.
func (w *world) exited() bool {
	p := w.relay
	w.past, w.relay = append(w.past, p), nil
	w.mu.Lock()
	why := w.diverged
	w.mu.Unlock()
	var gap *replication.ContinuityError
	switch {
	case errors.As(p.err, &gap) && why != "":
		w.note("%s has refused to go on, rightly: %s", p.name, why)
		return false
	default:
		w.fail("G8", "%s ended by itself: %v", p.name, p.err)
	}
	return false
}
