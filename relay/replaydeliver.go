package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/decode"
)

// deliver owns the batch in flight. Its position is saved before the next one is sent, so that
// a kill has at most one batch published twice.
func (s *replaying) deliver(ctx context.Context) {
	for b := range s.work {
		n, err := s.write(ctx, b.Events)
		s.run.Position = b.positionAt(n)
		s.run.Events += uint64(n)
		s.events.Store(s.run.Events)
		s.unsaved = true
		if err = errors.Join(err, s.save()); err != nil {
			s.fail(err)
			return
		}
		s.free <- b
		s.poke()
	}
}

// errGaveUp marks that Kafka did not take a batch within the timeout.
var errGaveUp = errors.New("relay: replay: gave up")

func (s *replaying) write(ctx context.Context, events []decode.Event) (int, error) {
	if s.cfg.List != nil {
		s.cfg.List(events)
		return len(events), nil
	}
	if s.cfg.Timeout == 0 {
		return s.cfg.Producer.Write(ctx, events)
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	n, err := s.cfg.Producer.Write(within, events)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		_, reason := s.cfg.Producer.Healthy()
		err = fmt.Errorf("%w after --timeout %s: %s: %w", errGaveUp, s.cfg.Timeout, reason, err)
	}
	return n, err
}

// interrupted says whether somebody wants the reader to end.
func (s *replaying) interrupted(ctx context.Context) error {
	if err := s.takeFailed(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errStop
	}
	return nil
}

func (s *replaying) fail(err error) {
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	s.poke()
}

func (s *replaying) takeFailed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// poke makes the reader look up, wherever it waits.
func (s *replaying) poke() {
	select {
	case s.poked <- struct{}{}:
	default:
	}
	s.pg.Wake()
}

// drainLimit returns a context that ends DrainTimeout after ctx.
func (s *replaying) drainLimit(ctx context.Context) (context.Context, func()) {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if s.cfg.DrainTimeout > 0 {
			t := time.AfterFunc(s.cfg.DrainTimeout, cancel)
			context.AfterFunc(writing, func() { t.Stop() })
		}
	})
	return writing, func() { stop(); cancel() }
}
