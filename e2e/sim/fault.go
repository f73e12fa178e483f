package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is something that goes wrong at a moment of the run.
type Fault struct {
	At   time.Duration
	Kind string // a key of faults
	A, B int    // which and how many, if it matters
	D, E time.Duration
}

func (f Fault) String() string {
	return fmt.Sprintf("%9.4f  %s %d %d, %s, %s", f.At.Seconds(), f.Kind, f.A, f.B, f.D, f.E)
}

func newFaults(r *rand.Rand, k Knobs) []Fault {
	var all []Fault
	for range pick(r, 0, 1, 2, 4, 8, 15) {
		f := Fault{At: time.Duration(r.Int64N(int64(k.For))), Kind: kinds[r.IntN(len(kinds))], A: r.IntN(64), B: r.IntN(64),
			D: between(r, time.Millisecond, 30*time.Second), E: between(r, time.Millisecond, 5*time.Second)}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Fault) int { return int(a.At - b.At) })
	return all
}

// kinds are the faults that a plan draws from; a name that is there twice comes twice as
// often.
var kinds = []string{"kill"}

// faults is what each kind does.
var faults = map[string]func(w *world, f Fault){}
