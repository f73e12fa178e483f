package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/walrelay/walrelay/replication"
)

// errConnection marks an error of the connection itself: the slot may be another
// relay's by now.
var errConnection = errors.New("relay: the session with postgres is lost")

// link is a session's stream, and how the goroutines beside the reader, which owns it,
// wake the reader and end the session.
type link struct {
	pg    *replication.Session
	poked chan struct{} // wakes the reader out of hold

	mu     sync.Mutex
	failed error // why one of the other goroutines wants the session to end
}

func (l *link) hold(ready <-chan struct{}) error {
	if err := l.pg.Hold(ready); err != nil {
		return fmt.Errorf("%w: %w", errConnection, err)
	}
	return nil
}

// interrupted says whether somebody wants the reader to end.
func (l *link) interrupted(ctx context.Context) error {
	if err := l.takeFailed(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errStop
	}
	return nil
}

// fail ends the session from another goroutine than the reader's.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.failed == nil {
		l.failed = err
	}
	l.mu.Unlock()
	l.poke()
}

func (l *link) takeFailed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// poke makes the reader look up, wherever it waits.
func (l *link) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
	l.pg.Wake()
}

// drainLimit returns a context that ends when what is in flight was waited for long
// enough: timeout after ctx ended, or after limit was called; never where timeout is 0.
func drainLimit(ctx context.Context, timeout time.Duration) (drained context.Context, limit, release func()) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	limit = func() {
		if timeout > 0 {
			t := time.AfterFunc(timeout, cancel)
			context.AfterFunc(drained, func() { t.Stop() })
		}
	}
	stop := context.AfterFunc(ctx, limit)
	return drained, limit, func() { stop(); cancel() }
}
