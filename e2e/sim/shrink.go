package sim

import (
	"slices"
	"testing"
)

// Shrink returns the smallest plan that it finds to fail by the same rule, leaving away
// operations and faults. A run doesn't always end alike: a part is needed if the plan held
// without it in every one of tries runs.
func Shrink(t *testing.T, res *Result, tries int) *Result {
	s := &shrinker{t: t, best: res, tries: tries}
	s.faults()
	s.ops()
	s.faults()
	return s.best
}

type shrinker struct {
	t     *testing.T
	best  *Result
	tries int
}

// fails runs a plan; if it fails like the best one, it is the best one now.
func (s *shrinker) fails(p Plan) bool {
	for range s.tries {
		if res := Run(s.t, p); res.Failure != nil && res.Failure.Rule == s.best.Failure.Rule {
			s.best = res
			return true
		}
	}
	return false
}

func (s *shrinker) faults() {
	shrinkList(len(s.best.Plan.Faults), func(from, to int) bool {
		p := s.best.Plan
		p.Faults = slices.Delete(slices.Clone(p.Faults), from, to)
		return s.fails(p)
	})
}

func (s *shrinker) ops() {
	shrinkList(len(s.best.Plan.Ops), func(from, to int) bool {
		p := s.best.Plan
		p.Ops = slices.Delete(slices.Clone(p.Ops), from, to)
		return s.fails(p)
	})
}

// shrinkList calls without for parts of a list of n, large ones first; it says whether
// the part could be left away.
func shrinkList(n int, without func(from, to int) bool) {
	for size := (n + 1) / 2; size > 0; size /= 2 {
		for from := 0; from < n; {
			to := min(from+size, n)
			if without(from, to) {
				n -= to - from
			} else {
				from = to
			}
		}
	}
}
