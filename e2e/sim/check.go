package sim

import (
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/e2e/sim/simpg"
)

// status checks what a relay reports to Postgres (G3): nothing that is not acknowledged
// and saved may be confirmed, nor what the server has not written.
func (t *truth) status(s simpg.Status, checkpointed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.confirmed = max(t.confirmed, s.Flush) }()
	switch first := t.undelivered(); {
	case s.Flush == 0 || s.Flush <= s.AtStart:
	case s.Flush < s.Previous:
		t.fail("G3", "%s confirms %s after %s", s.Client, s.Flush, s.Previous)
	case s.Flush > s.WALEnd:
		t.fail("G3", "%s confirms %s, beyond the WAL's end %s", s.Client, s.Flush, s.WALEnd)
	case first != nil && first.commit < s.Flush:
		t.fail("G3", "%s confirms %s, but event %s (commit %s seq %d) is not acknowledged", s.Client, s.Flush, first.id, first.commit, first.seq)
	case checkpointed && s.Flush > t.saved:
		t.fail("G3", "%s confirms %s, but only %s is saved", s.Client, s.Flush, t.saved)
	}
}

// saving checks a position that is about to be saved (G3): all that it claims is acknowledged.
func (t *truth) saving(who string, p checkpoint.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.diverged {
		return // it may still be a position in other WAL; what is confirmed is checked all the same
	}
	if first := t.undelivered(); first != nil && deliveredBy(p, first) {
		t.fail("G3", "%s saves %s + %d rows of %s, but event %s (commit %s seq %d) is not acknowledged",
			who, p.Safe, p.Open.Rows, p.Open.Commit, first.id, first.commit, first.seq)
		return
	}
	if p.Open.Commit == 0 {
		return
	}
	for _, e := range t.order { // rows of the transaction in progress beyond the first that is missing
		if e.commit == p.Open.Commit && e.seq < p.Open.Rows && !e.acked && e.fate == committed {
			t.fail("G3", "%s saves %d rows of %s, but seq %d is not acknowledged", who, p.Open.Rows, p.Open.Commit, e.seq)
		}
		if e.commit == p.Open.Commit && e.seq == p.Open.Rows-1 && e.id != p.Open.EventID {
			t.fail("G3", "%s saves %q as row %d of %s, which is event %s", who, p.Open.EventID, p.Open.Rows-1, p.Open.Commit, e.id)
		}
	}
}

// isSaved notes that a position is durable.
func (t *truth) isSaved(who string, p checkpoint.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.Compare(p) > 0 {
		t.fail("G3", "%s replaced the saved position %s + %d rows of %s by %s + %d rows of %s",
			who, t.last.Safe, t.last.Open.Rows, t.last.Open.Commit, p.Safe, p.Open.Rows, p.Open.Commit)
	}
	t.last, t.saved = p, max(t.saved, p.Safe)
}

// pendingWork says whether a committed event is not acknowledged yet.
func (t *truth) pendingWork() *event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.undelivered()
}

// progress grows while events are delivered.
func (t *truth) progress() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acks
}

// hasSaved says whether a position was ever saved.
func (t *truth) hasSaved() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.saved != 0
}

// sent notes on which link, and where on it, a row leaves Postgres.
func (t *truth) sent(row *simpg.Row, l *simnet.Link, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := row.Tag.(*event)
	e.link, e.offset = l, offset
}

// readBuffer is what the relay may have read off the socket beyond what it has taken in.
const readBuffer = 1 << 20

// held checks how much of the stream a relay has taken in and not got rid of (G7), again
// and again: one that takes leave reads the rest without keeping it.
func (t *truth) held(buffer int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.undelivered()
	if e == nil || e.link == nil {
		t.heldSince = time.Time{}
		return
	}
	n := e.link.Read() - e.offset
	switch {
	case n <= int64(buffer+2*t.largest+readBuffer):
		t.heldSince = time.Time{}
	case t.heldSince.IsZero():
		t.heldSince = time.Now()
	case time.Since(t.heldSince) > takesLeave:
		t.fail("G7", "%s holds %d bytes of the stream behind event %s, the buffer being %d", e.link.From, n, e.id, buffer)
	}
}

// takesLeave is how long a relay may take to end a session.
const takesLeave = 6 * time.Second

// down notes that Postgres is down.
func (t *truth) down() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.downs = append(t.downs, time.Now())
}
