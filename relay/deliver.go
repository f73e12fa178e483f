package relay

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
)

// deliver owns the batch in flight. It ends when the reader closes work; the batch
// that was begun is finished first, also when the session is lost: the producer is
// idempotent, and the next session then knows that it was delivered.
func (s *session) deliver(ctx context.Context) {
	defer close(s.delivered)
	for b := range s.work {
		if s.takeFailed() == nil {
			if err := s.produce(ctx, b); err != nil {
				s.fail(err)
			}
		}
		s.spare = b
		s.free <- struct{}{}
		s.poke()
	}
}

// produce sends one batch. Before the first byte goes out: the batch before the
// last one is saved, so that a crash repeats at most two; and the slot is known to
// be ours, so that a relay that was paused cannot write after another took over.
func (s *session) produce(ctx context.Context, b *batch) error {
	if err := s.track.durablyBehind(s.broken, 1); err != nil {
		return err
	}
	if time.Since(s.pg.Heard()) > s.silence() {
		if err := s.pg.HoldsSlot(s.broken); err != nil {
			return err
		}
	}
	s.state.flying(b.committed)
	n, err := s.cfg.Producer.Write(ctx, b.Events)
	s.state.flying(time.Time{})
	s.track.acked(b.positionAt(n))
	s.metrics.acked(b, n)
	return err
}

// silence is how long the walsender may be unheard before it has to be asked
// whether the slot is still ours.
func (s *session) silence() time.Duration {
	if t := s.pg.Server.WALSenderTimeout; t > 0 {
		return t / 2
	}
	return 30 * time.Second // it never gives up on us, but a person may end it
}

// save makes positions durable and confirms them, the latest first, until nothing
// is left after settled, or the session breaks. A store that fails is tried again:
// meanwhile at most two batches are ahead of it.
func (s *session) save(ctx context.Context) {
	defer close(s.saved)
	var (
		delay  backoff
		outage outage
	)
	for {
		pos, batches, due, changed := s.track.unsaved()
		var retry <-chan time.Time
		settled := s.settled
		if due {
			err := s.store(ctx, pos)
			if s.broken.Err() != nil {
				return // the next session knows from memory what is not saved
			}
			s.state.unsaved(err)
			if err == nil {
				delay = backoff{}
				if line, ok := outage.over(s.log.Info()); ok {
					line.Msg("positions are saved again")
				}
				s.track.markSaved(pos, batches)
				s.pg.Confirm(pos.Safe)
				continue
			}
			if errors.Is(err, checkpoint.ErrBehind) || fatal(err) {
				s.fail(err) // another relay has delivered more; or what is stored is no longer ours
				s.breakOff()
				return
			}
			outage.begin(s.log, err).Msg("position not saved; trying again")
			retry, changed, settled = time.After(delay.next()), nil, nil
		}
		select {
		case <-changed:
		case <-retry:
		case <-settled:
			return
		case <-s.broken.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) store(ctx context.Context, pos checkpoint.Position) error {
	if s.cfg.Store == nil || s.broken.Err() != nil {
		return s.broken.Err()
	}
	return s.cfg.Store.Save(ctx, pos)
}
