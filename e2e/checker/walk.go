package checker

// walk follows one partition in offset order. First publications must come in commit
// order; a repeat must be the start of a run without gaps up to the newest event, or up
// to the next rewind.
//
// A producer whose place another has taken may be late: what it still adds is counted by
// itself, and the walk goes on as if it were not there.
type walk struct {
	*comparison
	place        Place
	published    []bool
	last, newest int // ranks: where the reigning producer stands, and the highest

	reign   Producer
	cursors map[Producer]int // where each producer that has reigned stands

	// Of the run that the reigning producer is in.
	from    int // its first repeat, in Again
	rewinds int
}

func (c *comparison) walk(p Place, seen []publication) {
	w := &walk{comparison: c, place: p, published: make([]bool, c.ranks[p]), last: -1, newest: -1, cursors: map[Producer]int{}}
	for i, pub := range seen {
		if i == 0 || pub.Producer != w.reign {
			if w.late(pub) {
				continue
			}
			w.begin(pub.Producer)
		}
		w.step(pub)
	}
	if w.last >= w.newest {
		return
	}
	for producer, at := range w.cursors {
		if producer != w.reign && at == w.newest { // somebody else stands where he should
			w.disown()
			return
		}
	}
	c.BrokenRun.add("%s ends in a run of repeats that stops before the newest event", p)
}

// late judges a record of another producer than the reigning one. It reports true if
// the producer has reigned before and does not take its place back.
func (w *walk) late(pub publication) bool {
	rank := w.rank[pub.at]
	at, reigned := w.cursors[pub.Producer]
	switch {
	case !reigned, rank == w.last+1, !w.published[rank] && rank != w.newest+1:
		return false
	case rank == at+1 && w.last < w.newest: // it was never gone: the other one was late
		w.disown()
		w.last = at
		return false
	}
	w.tell(pub)
	w.published[rank], w.newest = true, max(w.newest, rank)
	w.cursors[pub.Producer] = max(at, rank)
	return true
}

func (w *walk) tell(pub publication) {
	e := w.truth[pub.at]
	w.Late.add("event %s, commit %s seq %d, at %s offset %d", e.ID, e.Commit, e.Seq, w.place, pub.Offset)
}

// disown takes the repeats of the run that the reigning producer is in for late ones.
func (w *walk) disown() {
	for _, spot := range w.Again[w.from:] {
		w.Late.add("%s offset %d", spot.Place, spot.Offset)
		w.Repeats--
	}
	w.Again = w.Again[:w.from]
	w.Rewinds -= w.rewinds
}

// begin starts a run.
func (w *walk) begin(p Producer) {
	w.reign, w.from, w.rewinds = p, len(w.Again), 0
}

// step takes the next record of the reigning producer.
func (w *walk) step(pub publication) {
	e, rank := w.truth[pub.at], w.rank[pub.at]
	switch {
	case !w.published[rank] && rank < w.newest:
		w.Reordered.add("event %s, commit %s seq %d, comes late on %s", e.ID, e.Commit, e.Seq, w.place)
		w.published[rank] = true // and the walk goes on from where it was
		return
	case w.published[rank] && rank > w.last+1, !w.published[rank] && w.last < w.newest && rank != w.last+1:
		w.BrokenRun.add("a run of repeats on %s skips to event %s, commit %s seq %d", w.place, e.ID, e.Commit, e.Seq)
	case rank <= w.last:
		w.begin(w.reign)
		w.Rewinds++
		w.rewinds++
	}
	if w.published[rank] {
		w.Repeats++
		w.Again = append(w.Again, Spot{w.place, pub.Offset})
	}
	w.published[rank], w.last, w.newest = true, rank, max(w.newest, rank)
	w.cursors[w.reign] = rank
}
