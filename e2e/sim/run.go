package sim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

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

// crash is the end of a process that was not asked for.
type crash struct {
	at   time.Time
	name string
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
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
		w := newWorld(plan, filepath.Join(dir, "checkpoint"))
		w.run()
		w.close()
		if w.broken() == nil {
			res.Repeats = w.analyse()
		}
		res.Failure, res.Timeline, res.Took, res.Events = w.broken(), &w.timeline, time.Since(w.began), len(w.truth.order)
	})
	return res
}

// scratch is a folder in memory where there is one: the checkpoint is saved for real.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// run is the main goroutine's.
func (w *world) run() {
	w.relay = w.start()
	ops, list := w.plan.Ops, w.plan.Faults
	for len(ops)+len(list) > 0 {
		if len(list) == 0 || len(ops) > 0 && ops[0].At <= list[0].At {
			if !w.sleep(ops[0].At) {
				return
			}
			w.do(ops[0])
			ops = ops[1:]
			continue
		}
		if !w.sleep(list[0].At) {
			return
		}
		w.note("fault: %s", list[0])
		faults[list[0].Kind](w, list[0])
		list = list[1:]
	}
	if w.sleep(w.plan.For) && w.heal() {
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
		case first != nil:
			w.fail("G1", "event %s (commit %s seq %d) is not delivered %s after the last fault; ready: %t %s", first.id, first.commit, first.seq, settle, ready, why)
		case !done:
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
