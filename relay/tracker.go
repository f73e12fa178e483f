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
	t.signal()
}

// acked moves the delivered position behind a batch.
func (t *tracker) acked(p checkpoint.Position, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered = t.merge(p)
	t.batches++
	t.bytes += int64(bytes)
	t.signal()
}

// merge adds to p what was proven since the batch was begun: an idle position, the catalog.
func (t *tracker) merge(p checkpoint.Position) checkpoint.Position {
	p.Safe = max(p.Safe, t.delivered.Safe)
	p.Verified = t.delivered.Verified
	return p
}

// committed is acked and markSaved at once: p is delivered and saved.
func (t *tracker) committed(p checkpoint.Position, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivered, t.saved = t.merge(p), p
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
