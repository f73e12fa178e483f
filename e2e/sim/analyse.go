package sim

// analyse checks order and repeats of every partition (G2, G5). It returns how many
// publications were repeats.
func (w *world) analyse() (repeats int) {
	t := w.truth
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[*event]place{}
	for _, l := range t.logs {
		for _, c := range l.records {
			seen[c.event] = l.place
		}
	}
	rank, next := map[*event]int{}, map[place]int{}
	for _, e := range t.order {
		if p, ok := seen[e]; ok {
			rank[e] = next[p]
			next[p]++
		}
	}
	for _, l := range t.logs {
		repeats += w.walk(l, rank)
	}
	return repeats
}

// walk follows one partition in the order of its offsets. From a record the log goes on
// with the next event of the partition, or, only where another life of the relay begins
// to write after a crash, from an earlier one.
func (w *world) walk(l *plog, rank map[*event]int) (repeats int) {
	newest := -1
	for i, c := range l.records {
		at := rank[c.event]
		if i == 0 {
			newest = at
			continue
		}
		before := l.records[i-1]
		last := rank[before.event]
		switch {
		case at == last+1:
		case at > last+1:
			w.fail("G2", "%s offset %d: event %s (%s seq %d) comes after %s (%s seq %d), %d events are left out",
				l.place, c.offset, c.id, c.commit, c.seq, before.id, before.commit, before.seq, at-last-1)
			return
		case c.client == before.client:
			w.fail("G5", "%s offset %d: %s publishes event %s (%s seq %d) again", l.place, c.offset, c.client, c.id, c.commit, c.seq)
			return
		}
		if at <= newest {
			repeats++
		}
		newest = max(newest, at)
	}
	return repeats
}
