package relay

import (
	"context"
	"errors"
	"fmt"

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
