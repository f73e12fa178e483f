package sim

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
)

// reign is the time in which one process held the slot, over any number of sessions.
// What it may publish again hangs on how the one before it ended.
type reign struct {
	client string
	began  time.Time
	clean  bool                 // the one before, if there was one, had stopped in good order
	looked bool                 // for a saved position
	resume *checkpoint.Position // what it found; nil: nothing
}

// streams notes who has taken the slot.
func (t *truth) streams(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clean := true
	if n := len(t.reigns); n > 0 {
		if t.reigns[n-1].client == client {
			return
		}
		clean = t.overs[t.reigns[n-1].client]
	}
	t.reigns = append(t.reigns, &reign{client: client, began: time.Now(), clean: clean})
}

// leaves notes the end of a session: orderly if the client took leave.
func (t *truth) leaves(client string, orderly bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.orderly[client] = orderly
}

// over notes the end of a process. One that had lost its session before it was told to
// stop can't save any more what was acknowledged since: that comes again.
func (t *truth) over(client string, clean bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overs[client] = clean && t.orderly[client]
}

// loaded notes what the process that holds the slot has found saved.
func (t *truth) loaded(client string, p *checkpoint.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.reigns); n > 0 && t.reigns[n-1].client == client && !t.reigns[n-1].looked {
		t.reigns[n-1].looked, t.reigns[n-1].resume = true, p
	}
}

// reignOf returns the index of a client's reign at a moment.
func (t *truth) reignOf(client string, at time.Time) int {
	found := -1
	for i, r := range t.reigns {
		if r.client == client && (found < 0 || !r.began.After(at)) {
			found = i
		}
	}
	return found
}

// excuse notes what entitles the relay to refuse to go on.
func (t *truth) excuse(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
}

// mayRefuse says what entitles the relay to say that continuity can't be proven; "" =
// nothing.
func (t *truth) mayRefuse(switched pglogrepl.LSN) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.why != "":
		return t.why
	case t.lostOnes > 0:
		return fmt.Sprintf("Postgres has lost %d events", t.lostOnes)
	case switched != 0 && t.saved > switched:
		return fmt.Sprintf("the WAL is another one from %s on, and %s is saved", switched, t.saved)
	}
	return ""
}

// mustRefuse says what the relay may not pass over in silence; "" = nothing.
func (t *truth) mustRefuse() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byID {
		switch {
		case e.fate == hidden && e.claimed && e.commit < t.confirmed:
			return fmt.Sprintf("event %s (commit %s) was never streamed", e.id, e.commit)
		case e.fate == lost && e.claimed:
			return fmt.Sprintf("event %s (commit %s) was published, saved, and lost by Postgres", e.id, e.commit)
		}
	}
	return t.must
}

// named checks the gap that a refusal names: what was confirmed and never streamed lies in it.
func (t *truth) named(from, to pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.order {
		if e.fate == hidden && e.commit < t.confirmed && from != 0 && (e.commit < from || e.commit > to) {
			t.fail("G1", "the refusal names the gap (%s, %s], and event %s at %s was never streamed", from, to, e.id, e.commit)
		}
	}
}

// diverge notes that Postgres goes back and continues with other WAL.
func (t *truth) diverge() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.diverged = true
}

// forget notes that the brokers can't recognise from here on what was appended before.
func (t *truth) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expired = append(t.expired, time.Now())
}
