package relay

import (
	"context"
	"sync"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
)

// tracker holds what is delivered and what of it is saved. It outlives sessions:
// an event that was acknowledged while the session was already lost is known to
// the next one.
//
// Invariant: saved ≤ delivered, and what is confirmed to Postgres is saved.Safe.
type tracker struct {
	mu        sync.Mutex
	delivered checkpoint.Position // acknowledged by the brokers
	saved     checkpoint.Position // durable in the checkpoint; what may be confirmed
	batches   uint64              // batches acknowledged
	bytes     int64               // of the events in them
	durable   int64               // of those whose position is saved
	changed   chan struct{}       // closed and renewed at every change
	pressed   chan struct{}       // one token: what is not saved will soon hold up the sink

	unproven unproven // snapshots that the safe LSN has not reached
	unrooted unproven // and those that no delivered commit is behind yet
}

func newTracker() *tracker {
	return &tracker{changed: make(chan struct{}), pressed: make(chan struct{}, 1)}
}

func (t *tracker) signal() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// count is how many batches were acknowledged so far.
func (t *tracker) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.batches
}

// start sets the position that a session begins with; it is saved already, or the
// slot's own.
func (t *tracker) start(p checkpoint.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered, t.saved, t.durable = p, p, t.bytes
	t.unproven, t.unrooted = unproven{}, unproven{} // of another server, perhaps
	t.signal()
}

// acked moves the delivered position behind a batch.
func (t *tracker) acked(p checkpoint.Position, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered = t.merge(p)
	t.ripen()
	t.batches++
	t.bytes += int64(bytes)
	t.signal()
}

// merge adds to p what was proven since the batch was begun: an idle position, the catalog, snapshots.
func (t *tracker) merge(p checkpoint.Position) checkpoint.Position {
	p.Safe = max(p.Safe, t.delivered.Safe)
	p.Verified, p.Snapshot, p.Rooted = t.delivered.Verified, t.delivered.Snapshot, t.delivered.Rooted
	return p
}

// committed is acked and markSaved at once: p is delivered and saved.
func (t *tracker) committed(p checkpoint.Position, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered, t.saved = t.merge(p), p
	t.ripen()
	t.batches++
	t.bytes += int64(bytes)
	t.durable = t.bytes
	t.signal()
}

// verified notes up to where everything was delivered when the catalog was last seen to
// publish the outbox; and moves the safe LSN to lsn, over WAL that holds no undelivered row.
func (t *tracker) verified(delivered, lsn pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered.Verified = max(delivered, lsn)
	t.delivered.Safe = max(t.delivered.Safe, lsn)
	t.ripen()
	t.signal()
}

// durablyBehind waits until no more than n bytes of events are acknowledged without
// their position being saved.
func (t *tracker) durablyBehind(ctx context.Context, n int) error {
	for {
		t.mu.Lock()
		unsaved, changed := t.bytes-t.durable, t.changed
		t.mu.Unlock()
		if 2*unsaved > int64(n) {
			select {
			case t.pressed <- struct{}{}:
			default:
			}
		}
		if unsaved <= int64(max(n, 0)) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unsaved returns the newest delivered position when it is not saved yet.
func (t *tracker) unsaved() (p checkpoint.Position, bytes int64, ok bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.delivered.Compare(t.saved) > 0 || t.delivered.Safe > t.saved.Safe || t.delivered.Verified > t.saved.Verified
	return t.delivered, t.bytes, due, t.changed
}

// ahead is the delivered position as it will be when a batch that ends at p is acknowledged.
func (t *tracker) ahead(p checkpoint.Position) checkpoint.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.merge(p)
}

func (t *tracker) markSaved(p checkpoint.Position, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.saved, t.durable = p, bytes
	t.signal()
}

// positions returns what is delivered and what of it is saved.
func (t *tracker) positions() (delivered, saved checkpoint.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.delivered, t.saved
}

// snapshot takes one; it is saved with the position when that has passed it.
func (t *tracker) snapshot(s checkpoint.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unproven.add(s)
	t.unrooted.add(s)
	t.ripen()
}

// ripen makes snapshots that are passed part of the position. Under mu.
func (t *tracker) ripen() {
	if s, ok := t.unproven.passed(t.delivered.Safe); ok {
		t.delivered.Snapshot = s
	}
	if s, ok := t.unrooted.passed(t.delivered.Last.Commit); ok {
		t.delivered.Rooted = s
	}
}

// unproven are snapshots that something has to pass: the oldest, so that one is passed at last
// however far behind it is, and the newest, because it says more if it is passed too.
type unproven struct{ oldest, newest checkpoint.Snapshot }

func (u *unproven) add(s checkpoint.Snapshot) {
	if u.oldest.Xmin == 0 {
		u.oldest = s
	}
	u.newest = s
}

// passed returns the newest of them that lies at or below lsn, and forgets it.
func (u *unproven) passed(lsn pglogrepl.LSN) (s checkpoint.Snapshot, ok bool) {
	switch {
	case u.oldest.Xmin == 0 || u.oldest.LSN > lsn:
		return s, false
	case u.newest.LSN > lsn:
		s, u.oldest = u.oldest, u.newest
	default:
		s, *u = u.newest, unproven{}
	}
	return s, true
}
