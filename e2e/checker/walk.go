package checker

// walk follows one partition in offset order. First publications must come in commit
// order; a repeat must be the start of a run without gaps up to the newest event, or up
// to the next rewind.
//
// A producer whose place another has taken is late: what it still adds is counted by
// itself, and the walk goes on as if it were not there; unless it goes on exactly where
// the other one stands, and so has taken its place back.
func (c *comparison) walk(p Place, seen []publication) {
	published := make([]bool, c.ranks[p])
	last, newest := -1, -1
	reign, over := Producer{ID: -1}, map[Producer]bool{}
	for _, pub := range seen {
		e, rank := c.truth[pub.at], c.rank[pub.at]
		if pub.Producer != reign {
			if over[pub.Producer] && rank != last+1 && (published[rank] || rank == newest+1) {
				c.Late.add("event %s, commit %s seq %d, at %s offset %d", e.ID, e.Commit, e.Seq, p, pub.Offset)
				published[rank], newest = true, max(newest, rank)
				continue
			}
			over[reign], reign = true, pub.Producer
			delete(over, reign)
		}
		switch {
		case !published[rank] && rank < newest:
			c.Reordered.add("event %s, commit %s seq %d, comes late on %s", e.ID, e.Commit, e.Seq, p)
			published[rank] = true // and the walk goes on from where it was
			continue
		case published[rank] && rank > last+1, !published[rank] && last < newest && rank != last+1:
			c.BrokenRun.add("a run of repeats on %s skips to event %s, commit %s seq %d", p, e.ID, e.Commit, e.Seq)
		case rank <= last:
			c.Rewinds++
		}
		if published[rank] {
			c.Repeats++
			c.Again = append(c.Again, Spot{p, pub.Offset})
		}
		published[rank], last, newest = true, rank, max(newest, rank)
	}
	if last < newest {
		c.BrokenRun.add("%s ends in a run of repeats that stops before the newest event", p)
	}
}
