// Package nemesis breaks a real Postgres, a real Kafka and the real relay in all the ways
// that it knows, by a schedule that a seed makes, and has the checker judge what is left.
//
// Three lanes of faults run beside each other: against the relays, against Postgres and
// against Kafka. The seed fixes which faults come, when and how long; what the servers do
// meanwhile is theirs.
package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is a run, laid out before it begins.
type Plan struct {
	Seed     uint64
	For      time.Duration // how long faults go on
	Postgres string        // major version; "": any
	Brokers  int           // 1 or 3
	Relays   int           // 2: one waits for the slot
	Disks    bool          // small disks that can be filled
	Steps    []Step
}

// Step is one fault: it begins at At, or when the one before it in its lane is over.
type Step struct {
	At   time.Duration
	Hold time.Duration
	Kind string // a name in faults
	A, B int    // which one, or how much
}

func (s Step) String() string {
	return fmt.Sprintf("%8.3f  %s for %s (%d, %d)", s.At.Seconds(), s.Kind, s.Hold.Round(time.Millisecond), s.A, s.B)
}

// NewPlan fills in the steps. What the machine cannot do is left out.
func NewPlan(p Plan) Plan {
	p.Steps = nil
	for i, lane := range []lane{relays, postgres, kafka} {
		rng := rand.New(rand.NewPCG(p.Seed, uint64(i)))
		var bag []fault
		for _, f := range faults {
			if f.lane != lane || f.disk && !p.Disks || f.three && p.Brokers < 3 {
				continue
			}
			for range f.weight {
				bag = append(bag, f)
			}
		}
		for at := span(rng, 500*time.Millisecond, 3*time.Second); at < p.For; {
			f := bag[rng.IntN(len(bag))]
			s := Step{At: at, Hold: span(rng, f.least, f.most), Kind: f.name, A: rng.IntN(64), B: rng.IntN(64)}
			p.Steps = append(p.Steps, s)
			at += s.Hold + span(rng, 200*time.Millisecond, 4*time.Second)
		}
	}
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return int(a.At - b.At) })
	return p
}

// span is evenly distributed over the orders of magnitude.
func span(r *rand.Rand, least, most time.Duration) time.Duration {
	d := least
	for d > 0 && d*3 < most && r.IntN(2) == 0 {
		d *= 3
	}
	return d + time.Duration(r.Int64N(int64(min(2*d, most-d))+1))
}

// again is the command that repeats the run.
func (p Plan) again() string {
	return fmt.Sprintf("make nemesis NEMESIS=%d SEED=%d POSTGRES=%s BROKERS=%d RELAYS=%d", int(p.For.Seconds()), p.Seed, p.Postgres, p.Brokers, p.Relays)
}

// lane is what a fault is directed against.
type lane int

const (
	relays lane = iota
	postgres
	kafka
)

// fault is a kind of fault. What begins it returns what ends it, nil: it ends by itself.
type fault struct {
	name        string
	lane        lane
	weight      int
	least, most time.Duration // that it is held
	do          func(w *world, s Step) (end func() error, err error)

	disk  bool // needs small disks
	three bool // needs three brokers
	// A relay may have to publish again what it had not saved: two batches at most (G5).
	repeats bool
}

// faults are all kinds, in a fixed order.
var faults = slices.Concat(relayFaults, postgresFaults, kafkaFaults)

func faultNamed(name string) fault {
	return faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == name })]
}

// Skipped says what is left out, and why.
func (p Plan) Skipped() []string {
	skipped := []string{"clock steps: setting the clock would hit the whole machine; the simulation gives each server a clock of its own"}
	if !p.Disks {
		var names []string
		for _, f := range faults {
			if f.disk {
				names = append(names, f.name)
			}
		}
		skipped = append(skipped, strings.Join(names, ", ")+": only root may mount the small disks that are filled")
	}
	return skipped
}
