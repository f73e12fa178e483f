package sink

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// What waits says why in run.failing and share.failing: the newest thing that went wrong with what it waits for, be
// that its own request, a look at the cluster, or a producer id.

// linkTrouble describes what the connection layer could not do.
func linkTrouble(where string, err error) *trouble {
	t := &trouble{key: where, where: where, what: err.Error()}
	var refused *AuthError
	if errors.As(err, &refused) {
		t.key += " refused" // told also where another trouble with the same broker was told before
		t.what, t.remedy, t.urgent = refused.Broker+": "+refused.Reason, refused.Remedy, true
	}
	return t
}

func brokerTrouble(node int32) string { return "broker " + strconv.Itoa(int(node)) }

// unseen is for a look that failed with t: the shares and partitions that wait for it wait because of that.
func (d *delivery) unseen(s *share, t *trouble) {
	if s.waiting {
		s.failing = t
	}
	for _, r := range s.runs {
		if r.stale && r.flight == nil && len(r.queue) > 0 {
			r.failing = t
		}
	}
}

// unnamed is for a producer id that was not to be had.
func (d *delivery) unnamed(t *trouble) {
	d.tell(t, d.begun)
	for _, s := range d.pr.shares {
		for _, r := range s.runs {
			if r.ledger.id == noIdentity && !r.stale && len(r.queue) > 0 {
				r.failing = t
			}
		}
	}
}

// tell passes a trouble on to the log, unless it is our own leaving.
func (d *delivery) tell(t *trouble, since time.Time) {
	if d.ctx.Err() == nil && !d.leaving {
		d.p.outage.tell(t, since)
	}
}

// calm ends the outage when nothing fails any more.
func (d *delivery) calm() {
	for _, s := range d.pr.shares {
		if s.failing != nil {
			return
		}
		for _, r := range s.runs {
			if r.failing != nil && len(r.queue) > 0 {
				return
			}
		}
	}
	d.p.outage.over()
}

// waitingSince is since when something that goes to the topic waits.
func (d *delivery) waitingSince(s *share) time.Time {
	d.p.mu.Lock()
	since := s.target.since
	d.p.mu.Unlock()
	for _, r := range s.runs {
		if len(r.queue) > 0 {
			since = earlierOf(since, r.ledger.since)
		}
	}
	return since
}

// report tells Healthy what waits the longest, and why.
func (d *delivery) report() {
	var since time.Time
	var why *trouble
	note := func(at time.Time, t *trouble) {
		if !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since, why = at, t
		}
	}
	now := time.Now()
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	for _, s := range d.pr.shares {
		switch {
		case s.waiting:
			note(s.target.since, s.failing)
		case s.target != nil:
			s.target.since = time.Time{}
		}
		for _, r := range s.runs {
			if len(r.queue) == 0 {
				r.ledger.since = time.Time{}
			} else {
				note(r.ledger.since, r.why(now))
			}
		}
	}
	d.p.stuckSince, d.p.stuckBy = since, why
}

// why is what r waits for: an answer that has been due for a while is newer than what went wrong before.
func (r *run) why(now time.Time) *trouble {
	if f := r.flight; f != nil && now.Sub(f.sent) > stuckAfter && (r.failing == nil || r.failing.where != brokerTrouble(f.leader)) {
		return &trouble{what: fmt.Sprintf("%s has not answered since %s", brokerTrouble(f.leader), f.sent.UTC().Format(time.TimeOnly))}
	}
	if r.failing == nil {
		return r.share.failing
	}
	return r.failing
}
