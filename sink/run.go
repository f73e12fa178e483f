package sink

import "time"

// run is what one partition gets of a [Prepared]: its record batches, in order.
//
// Invariant: at most queue[0] is in flight. A batch leaves the queue when it is
// acknowledged; until then nothing behind it is sent.
type run struct {
	share     *share
	partition int32
	ledger    *ledger
	queue     []*batch

	flight    *flight   // carries queue[0]; nil = not in flight
	stale     bool      // the leader has to be asked for before the next attempt
	tries     int       // failed attempts of queue[0] in a row
	notBefore time.Time // no attempt before
	failing   *trouble  // why the last attempt failed; nil = it did not
}

// open returns the batch that the next event of a planning pass may join.
func (r *run) open(pass int32) *batch {
	if n := len(r.queue); n > 0 && r.queue[n-1].serial >= pass {
		return r.queue[n-1]
	}
	return nil
}

// run returns the run of a partition, which is made at its first event.
func (s *share) run(partition int32) *run {
	if s.byPart == nil {
		s.byPart = make([]*run, s.asOf.partitions)
	}
	r := s.byPart[partition]
	if r == nil {
		r = &run{share: s, partition: partition, ledger: s.ledgers[partition]}
		s.byPart[partition] = r
		s.runs = append(s.runs, r)
	}
	return r
}

// at returns the run of a partition, nil if nothing goes there.
func (s *share) at(partition int32) *run {
	if partition < 0 || int(partition) >= len(s.byPart) {
		return nil
	}
	return s.byPart[partition]
}

// wait notes that event i, and maybe others behind it, wait for the topic.
func (s *share) wait(i int) {
	if !s.waiting {
		s.waiting, s.first = true, i
	}
}

// finished reports whether everything before end is acknowledged.
func (pr *Prepared) finished() bool {
	for _, s := range pr.shares {
		if s.waiting {
			return false
		}
		for _, r := range s.runs {
			if len(r.queue) > 0 {
				return false
			}
		}
	}
	return true
}

// acked returns how many events from the front are acknowledged.
func (pr *Prepared) acked() int {
	n := pr.end
	for _, s := range pr.shares {
		if s.waiting {
			n = min(n, s.first)
		}
		for _, r := range s.runs {
			for _, b := range r.queue {
				n = min(n, b.first)
			}
		}
	}
	return n
}

// prune takes back what is behind end and was never sent.
func (p *Producer) prune(pr *Prepared) {
	for _, s := range pr.shares {
		if s.waiting && s.first >= pr.end {
			s.waiting = false
		}
		for _, r := range s.runs {
			kept := r.queue[:0]
			for _, b := range r.queue {
				switch {
				case b.sent || b.last < pr.end:
					kept = append(kept, b)
				case b.first < pr.end:
					pr.unroute(b) // what is before the end comes back by plan
				}
			}
			r.queue = kept
		}
	}
	p.plan(pr)
}

// replan plans the events of the first batch of r anew, most bytes of a batch being cut. The
// batches behind it stay behind.
func (p *Producer) replan(pr *Prepared, r *run, cut int) {
	b, rest := r.queue[0], r.queue[1:]
	if b.doubtful {
		r.ledger.spend()
	}
	pr.unroute(b)
	r.queue = nil
	before := r.share.asOf.learned
	r.share.asOf.learned = cut
	p.plan(pr)
	r.share.asOf.learned = before
	r.queue = append(r.queue, rest...)
	r.tries, r.notBefore = 0, time.Time{}
}
