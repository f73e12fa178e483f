package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrelay/walrelay/checkpoint"
)

var errReplaying = errors.New("relay: replaying, before the live stream goes on")

// replayFirst does what `run --from-lsn` asks for, once: the slot is ours, so that nothing is
// published live meanwhile; the window ends where the live stream goes on. The session is kept
// alive; when it is lost the replay stops, and goes on in the next one.
func (s *session) replayFirst(ctx context.Context, pos checkpoint.Position) error {
	if s.cfg.ReplayFirst == nil || s.replayed {
		return nil
	}
	s.state.lost(errReplaying)
	cfg := *s.cfg.ReplayFirst
	cfg.live = &pos
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	var err error
	go func() { defer close(done); err = NewReplay(cfg).Run(ctx) }()
	if lost := s.pg.Hold(done); lost != nil {
		stop()
		<-done
		return fmt.Errorf("%w: %w", errConnection, lost)
	}
	s.replayed = err == nil
	return err
}
