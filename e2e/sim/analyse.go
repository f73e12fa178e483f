package sim

import (
	"slices"
	"time"
)

// analyse checks order and repeats of every partition (G2, G5). It returns how many
// publications were repeats.
func (w *world) analyse() (repeats int) {
	t := w.truth
	t.mu.Lock()
	defer t.mu.Unlock()
	logs := slices.Clone(t.old)
	for _, l := range t.logs {
		logs = append(logs, l)
	}
	seen := map[*event]place{}
	for _, l := range logs {
		for _, c := range l.records {
			seen[c.event] = l.place
		}
	}
	ranks, next := map[*event]int{}, map[place]int{}
	for _, e := range t.order {
		if p, ok := seen[e]; ok {
			ranks[e] = next[p]
			next[p]++
		}
	}
	again, by := map[int]map[*event]bool{}, map[*event]int{}
	newest := map[place]int{} // also of logs that were deleted since
	for _, l := range logs {
		n, ok := newest[l.place]
		if !ok {
			n = -1
		}
		a := &walk{world: w, plog: l, ranks: ranks, again: again, by: by, places: seen, newest: n, renewed: ok}
		a.records()
		newest[l.place] = a.newest
	}
	for i, events := range again {
		repeats += len(events)
		w.checkRepeats(i, events)
	}
	return repeats
}

// checkRepeats bounds what a reign repeats: two batches were not saved when the one before
// ended, and a third one may have landed after a takeover.
func (w *world) checkRepeats(reign int, events map[*event]bool) {
	sum, largest := 0, 0
	for e := range events {
		sum += e.bytes()
		largest = max(largest, e.bytes())
	}
	if limit := 3 * w.plan.relayBatch(); !w.plan.NoCheckpoint && sum > limit+3*largest {
		w.fail("G5", "%s repeats %d events of at least %d bytes, more than three batches of %d", w.truth.reigns[reign].client, len(events), sum, w.plan.relayBatch())
	}
}

// walk follows one partition in the order of its offsets. The log goes on with the next
// event of the partition, or from an earlier one where a new reign begins to write after
// one that did not end well.
type walk struct {
	*world
	*plog
	ranks     map[*event]int
	before    *copied // the record before
	newest    int     // highest rank so far
	late      *copied // of a reign that is over
	lateBytes int
	again     map[int]map[*event]bool // by reign: what it repeated
	by        map[*event]int          // who has published an event last
	places    map[*event]place
	renewed   bool // the topic was created anew
}

func (a *walk) records() {
	for _, c := range a.plog.records {
		if c.fate == lost { // by Postgres: it has no place in the order
			continue
		}
		if a.before == nil || a.follows(c) {
			if a.ranks[c.event] <= a.newest {
				if a.again[c.reign] == nil {
					a.again[c.reign] = map[*event]bool{}
				}
				a.again[c.reign][c.event] = true
			}
			a.by[c.event] = c.reign
			a.before, a.newest = c, max(a.newest, a.ranks[c.event])
		}
		if a.broken() != nil {
			return
		}
	}
}

// follows judges a record by the one before. It reports false if the walk goes on as if it
// were not there.
func (a *walk) follows(c *copied) bool {
	at, last := a.ranks[c.event], a.ranks[a.before.event]
	if c.reign < a.before.reign {
		a.zombie(c)
		return false
	}
	by, published := a.by[c.event]
	switch {
	case c.reign == a.before.reign && at > last+1 && !a.behind(last, at), at > a.newest+1:
		a.fail("G2", "%s offset %d: event %s (%s seq %d) comes after %s (%s seq %d), %d events are left out",
			a.place, c.offset, c.id, c.commit, c.seq, a.before.id, a.before.commit, a.before.seq, at-last-1)
	case at > a.newest:
	case !published:
		a.fail("G2", "%s offset %d: event %s (%s seq %d) comes late, after %s (%s seq %d)",
			a.place, c.offset, c.id, c.commit, c.seq, a.before.id, a.before.commit, a.before.seq)
	case c.reign == a.before.reign && at != last+1 && !a.expiredBetween(a.before, c):
		a.fail("G5", "%s offset %d: %s publishes event %s (%s seq %d) again", a.place, c.offset, c.client, c.id, c.commit, c.seq)
	case c.reign != by && a.clean(by, c.reign) && !(a.plan.NoCheckpoint && !c.alone): // a slot can't say how far a transaction is delivered
		a.fail("G5", "%s offset %d: %s publishes event %s (%s seq %d) again after stops in good order", a.place, c.offset, c.client, c.id, c.commit, c.seq)
	}
	if r := a.truth.reigns[c.reign]; at <= a.newest && r.resume != nil && deliveredBy(*r.resume, c.event) {
		a.fail("G5", "%s offset %d: %s publishes event %s (%s seq %d) again, which is delivered by the position that it found",
			a.place, c.offset, c.client, c.id, c.commit, c.seq)
	}
	return true
}

// behind: all that lies between two ranks is published: by the other process, which saved it
// only after this one had taken over, so that its next session begins there; or to a topic
// that was deleted.
func (a *walk) behind(last, at int) bool {
	n := 0
	for e := range a.by {
		if a.ranks[e] > last && a.ranks[e] < at && a.places[e] == a.place {
			n++
		}
	}
	return (a.plan.Standby || a.renewed) && n == at-last-1
}

// zombie is a record of a process whose reign is over: it may finish the batch that it had
// begun, of so many bytes of memory.
func (a *walk) zombie(c *copied) {
	if a.late == nil || a.late.reign != c.reign {
		a.lateBytes = 0
	}
	a.late = c
	a.by[c.event] = c.reign
	a.newest = max(a.newest, a.ranks[c.event])
	a.lateBytes += c.bytes()
	if limit := a.plan.relayBatch(); a.lateBytes > limit+c.bytes() {
		a.fail("G2", "%s offset %d: %s adds more than a batch of %d bytes after its reign was over", a.place, c.offset, c.client, limit)
	}
}

// clean: every reign after from, up to to, began after a stop in good order.
func (a *walk) clean(from, to int) bool {
	if a.plan.NoCheckpoint && len(a.truth.downs) > 0 {
		return false // the slot may have fallen back
	}
	for _, r := range a.truth.reigns[from+1 : to+1] {
		if !r.clean {
			return false
		}
	}
	return true
}

// expiredBetween: the brokers had forgotten the producer's numbers.
func (a *walk) expiredBetween(before, c *copied) bool {
	return slices.ContainsFunc(a.truth.expired, func(at time.Time) bool { return !at.Before(before.at) && !at.After(c.at) })
}
