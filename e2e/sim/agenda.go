package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/replication"
)

// settle is how long the relay may go without any progress when all faults are over.
const settle = 2 * time.Minute

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

// run is the main goroutine's: operations and faults, then peace, then a last farewell.
func (w *world) run() {
	w.start()
	if w.plan.Standby {
		w.start()
	}
	for _, op := range w.plan.Ops {
		w.at(op.At, func() { w.do(op) })
	}
	for _, f := range w.plan.Faults {
		w.at(f.At, func() {
			w.note("fault: %s", f)
			faultNamed(f.Kind).do(w, f)
		})
	}
	for at := time.Second; at <= w.plan.For; at += time.Second {
		w.at(at, func() {}) // a look around
	}
	if !w.work() {
		return
	}
	if e := w.truth.pendingWork(); w.plan.ByItself && e != nil {
		w.fail("G8", "event %s (commit %s seq %d) is still not delivered", e.id, e.commit, e.seq)
		return
	}
	if w.heal() {
		w.goodbye()
	}
}

// work does what is on the agenda. It reports whether the run goes on.
func (w *world) work() bool {
	for len(w.agenda) > 0 {
		next := w.agenda[0]
		come, goesOn := w.sleep(next.at)
		switch {
		case !goesOn:
			return false
		case come:
			w.agenda = w.agenda[1:]
			w.truth.held(w.plan.BufferBytes)
			next.do()
		}
	}
	return true
}

// heal ends all faults and waits until everything is delivered and confirmed (G1, G8).
func (w *world) heal() bool {
	w.note("faults are over")
	w.kafka.Heal()
	w.net.Heal()
	w.mu.Lock()
	w.noSpace = time.Time{}
	w.mu.Unlock()
	for _, l := range w.net.Links(func(*simnet.Link) bool { return true }) {
		l.Bury()
	}
	moved, progress := time.Since(w.began), w.truth.progress()
	for at := moved; ; at += 100 * time.Millisecond {
		w.at(at, func() {})
		switch {
		case !w.work():
			return false
		case w.allWell():
			w.note("all is delivered and confirmed")
			return true
		case w.truth.progress() > progress:
			moved, progress = at, w.truth.progress()
		case at >= moved+settle:
			w.lament()
			return false
		}
	}
}

func (w *world) allWell() bool {
	ready := slices.ContainsFunc(w.live, func(p *process) bool { ok, _ := p.relay.Ready(); return ok })
	return ready && w.truth.pendingWork() == nil && w.pg.Confirmed() >= w.pg.WALEnd()
}

// lament says what is not well.
func (w *world) lament() {
	for _, s := range w.pg.Sessions() {
		w.note("postgres: %s", s)
	}
	why := ""
	for _, p := range w.live {
		_, reason := p.relay.Ready()
		why += "; " + p.name + " says: " + reason
	}
	if e := w.truth.pendingWork(); e != nil {
		w.fail("G1", "event %s (commit %s seq %d) is not delivered, and there was no progress for %s%s", e.id, e.commit, e.seq, settle, why)
		return
	}
	w.fail("G8", "the slot stands at %s, the WAL ends at %s, and there was no progress for %s%s", w.pg.Confirmed(), w.pg.WALEnd(), settle, why)
}

// goodbye stops the relay in good order, and starts it once more: nothing may be
// published twice (G5).
func (w *world) goodbye() {
	if must := w.truth.mustRefuse(); must != "" && !w.plan.NoCheckpoint {
		w.later(10*time.Second, func() { w.fail("G1", "the relay went on although %s", must) }) // the catalog is looked at every few seconds
		w.work()
		return
	}
	w.calm = true
	w.do(Op{Rows: 3, Seed: w.plan.Seed ^ 0x6f6f6d, Large: 200})
	w.later(50*time.Millisecond, func() {
		for _, p := range w.live {
			p.stop(0)
		}
	})
	if w.work() {
		w.later(5*time.Second, func() {})
		w.work()
	}
}

// saysRepeats: a stop in the middle of faults may leave something unsaved, if it says so.
func saysRepeats(err error) bool {
	return strings.Contains(err.Error(), "published again at the next start")
}

// exited judges the end of a relay. It reports whether the run goes on.
func (w *world) exited(p *process) bool {
	w.bury(p)
	var gap *replication.ContinuityError
	switch {
	case p.stopped && (p.err == nil || !(w.calm && p.holds) && saysRepeats(p.err)):
		if p.again >= 0 {
			w.later(p.again, w.start)
		}
		return true
	case errors.As(p.err, new(*decode.PoisonError)):
		if e := w.truth.pendingWork(); w.plan.DeadLetters || e == nil || !e.poison {
			w.fail("G8", "%s ended by itself: %v", p.name, p.err)
		}
		return false
	case errors.As(p.err, new(*checkpoint.StateError)) && w.truth.mayRefuse(0) != "":
		return false
	case errors.As(p.err, &gap):
		if why := w.truth.mayRefuse(w.switched); why != "" {
			w.note("%s has refused to go on, rightly: %s", p.name, why)
			w.truth.named(gap.From, gap.To)
			return false
		}
		fallthrough
	default:
		w.fail("G8", "%s ended by itself: %v", p.name, p.err)
	}
	return false
}
