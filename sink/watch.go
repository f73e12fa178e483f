package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// watch looks at the topics in want, and at those whose leader is silent: it may have lost the
// partition while its connection is still there. It returns when to come back.
func (d *delivery) watch(ctx context.Context, now time.Time, want []*share) (wake time.Time) {
	if d.looking {
		return time.Time{}
	}
	if d.lookAt.After(now) {
		wake, want = d.lookAt, nil
	}
	silent, next := d.silent(now)
	if len(want) == 0 && len(silent) == 0 {
		return earlierOf(wake, next)
	}
	d.watchAt = now.Add(silence)
	var names, due []string
	seen := make(map[*share]bool)
	d.p.mu.Lock()
	for _, s := range append(want, silent...) {
		if seen[s] {
			continue
		}
		seen[s] = true
		names = append(names, s.name)
		if s == d.pr.doubt || time.Since(s.target.config.read) > configAge {
			due = append(due, s.name)
		}
	}
	d.p.mu.Unlock()
	if len(silent) > 0 || d.lookTries > 0 {
		d.p.cluster.Refresh(names...)
	}
	d.looking = true
	d.start(func() func() {
		s, err := d.p.look(ctx, names, due)
		return func() { d.looked(s, err) }
	})
	return time.Time{}
}

// silent returns the topics of requests that have waited for their answer for a
// while, and when the next request will have.
func (d *delivery) silent(now time.Time) (list []*share, next time.Time) {
	if d.watchAt.After(now) {
		return nil, d.watchAt
	}
	for _, f := range d.flights {
		if at := f.sent.Add(silence); at.After(now) {
			next = earlierOf(next, at)
			continue
		}
		for _, r := range f.runs {
			list = append(list, r.share)
		}
	}
	return list, next
}

// looked acts on what a look brought: topics that were waited for are planned,
// partitions whose leader is known go on, requests to brokers that lead no longer are given up.
func (d *delivery) looked(s sight, err error) {
	d.looking = false
	d.p.apply(s)
	var blind *trouble
	if err != nil {
		blind = d.linkFailed("cluster", err)
		d.tell(blind, d.begun)
	}
	settled := err == nil
	for _, sh := range d.pr.shares {
		t, ok := s.topics[sh.name]
		if !ok {
			settled = settled && !sh.waiting
			if blind != nil {
				d.unseen(sh, blind)
			}
			continue
		}
		if !d.revise(sh, codeOf(t.Err), s.refused, blind) {
			settled = false
		}
	}
	for _, f := range d.flights {
		for _, r := range f.runs {
			if l := d.leader(r); l >= 0 && l != f.leader {
				f.moved = true
			}
		}
		if f.moved {
			f.end()
		}
	}
	if settled {
		d.lookTries, d.lookAt = 0, time.Time{}
		return
	}
	d.lookAt = time.Now().Add(backoff(d.lookTries))
	d.lookTries++
}

func (d *delivery) leader(r *run) int32 {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	return r.share.target.leader(r.partition)
}

// revise brings a share up to date with its topic; blind is why its configuration could not be read. It
// reports whether nothing has to be asked again.
func (d *delivery) revise(s *share, number int16, refusals map[string]refused, blind *trouble) bool {
	d.p.mu.Lock()
	now, ledgers := s.target.shape(), s.target.ledgers
	read := !s.target.config.read.IsZero()
	d.p.mu.Unlock()
	if number == int16(kafka.InvalidTopic) {
		now.illegal, number = true, 0
	}
	if number != 0 {
		s.failing = d.p.topicTrouble(s.name, number, refusals)
		d.tell(s.failing, d.waitingSince(s))
		return false
	}
	s.failing = nil
	switch {
	case !now.illegal && now.partitions < s.asOf.partitions:
		s.shrunk = true // routed anew when nothing is in flight
	case s.waiting:
		// Without its configuration a topic is only used after some tries; what is
		// in doubt stays there until it can be known.
		if !now.illegal && blind != nil && !read && (s == d.pr.doubt || d.lookTries < 2) {
			s.failing = blind
			return false
		}
		d.admit(s, now, ledgers)
	}
	ok := true
	for _, r := range s.runs {
		if !r.stale {
			continue
		}
		if r.stale = d.leader(r) < 0; r.stale {
			ok = false
			r.failing = d.p.codeTrouble(lookup(int16(kafka.LeaderNotAvailable)), s.name, fmt.Sprintf("partition %d", r.partition))
			d.tell(r.failing, r.ledger.since)
		}
	}
	return ok
}

// admit plans the events that waited for the topic.
func (d *delivery) admit(s *share, now shape, ledgers []*ledger) {
	s.asOf, s.ledgers, s.sure, s.waiting = now, ledgers, true, false
	for len(s.byPart) < int(now.partitions) && s.byPart != nil {
		s.byPart = append(s.byPart, nil)
	}
	if d.pr.doubt == s {
		d.pr.doubt, d.pr.end = nil, len(d.pr.events)
	}
	d.p.plan(d.pr)
	if d.pr.poison != nil {
		d.p.prune(d.pr)
	}
}

// reroute plans all events of a topic that has lost partitions again: it was created
// anew, so that there is no order with what it held before.
func (d *delivery) reroute(s *share) {
	for _, r := range s.runs {
		if r.flight != nil {
			return
		}
	}
	for _, r := range s.runs {
		for _, b := range r.queue {
			if b.doubtful {
				r.ledger.spend()
			}
			d.pr.unroute(b)
		}
	}
	s.byPart, s.runs, s.shrunk = nil, nil, false
	d.p.mu.Lock()
	s.asOf, s.ledgers = s.target.shape(), s.target.ledgers
	d.p.mu.Unlock()
	s.sure = true
	d.p.plan(d.pr)
	if d.pr.poison != nil {
		d.p.prune(d.pr)
	}
}

// earlierOf is the earlier of two times, a zero one being none.
func earlierOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
