package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
)

// deliver owns the batch in flight. It ends when the reader closes work; the batch
// that was begun is finished first, also when the session is lost: the producer is
// idempotent, and the next session then knows that it was delivered.
//
// Invariant: the token of free is only given back for a batch that is acknowledged
// whole. Else the reader would take the sink for idle, and a WAL position past
// events that never arrived for one that may be confirmed.
func (s *session) deliver(ctx context.Context) {
	defer close(s.delivered)
	for b := range s.work {
		if err := s.produce(ctx, b); err != nil {
			s.fail(err)
			return
		}
		b.reset(checkpoint.Position{})
		s.spare = b
		s.free <- struct{}{}
		s.poke()
	}
}

// produce sends one batch. Before the first byte goes out: with this one, what is not
// saved makes no more than two full batches, so that a crash repeats no more; and the
// slot is known to be ours, so that a relay that was paused cannot write after another
// took over.
//
// Counted in batches instead of bytes, small ones would be sent at the pace of the
// disk: one for each two fsync calls of the checkpoint.
func (s *session) produce(ctx context.Context, b *batch) error {
	size := b.Bytes()
	if err := s.track.durablyBehind(s.broken, 2*s.batchBytes()-size); err != nil {
		return err
	}
	if err := s.stillOurs(s.broken); err != nil {
		return err
	}
	n, err := s.write(ctx, b)
	s.metrics.acked(b, n)
	if err == nil {
		s.state.flying(time.Time{})
	}
	return err
}

// write moves the delivered position behind what is acknowledged of b. Exactly once, that is
// saved by then as well.
func (s *session) write(ctx context.Context, b *batch) (n int, err error) {
	if s.cfg.Once != nil && len(b.Events) > 0 {
		return s.transact(ctx, b)
	}
	n, err = s.cfg.Producer.Write(ctx, b.Events)
	s.track.acked(b.positionAt(n), b.Bytes())
	return n, err
}

// stillOurs asks who holds the slot if the walsender was not heard for so long that
// it may have given up on us. What cannot be shown to be ours is lost.
func (s *session) stillOurs(ctx context.Context) error {
	silence := 30 * time.Second // a server without a timeout doesn't give up, but a person may end it
	if t := s.pg.Server.WALSenderTimeout; t > 0 {
		silence = t / 2
	}
	if time.Since(s.pg.Heard()) <= silence {
		return nil
	}
	if err := s.pg.HoldsSlot(ctx); err != nil {
		return fmt.Errorf("%w: %w", errConnection, err)
	}
	return nil
}

// save makes positions durable and confirms them, the latest first, until nothing
// is left after settled, or the session breaks. A store that fails is tried again:
// meanwhile at most two full batches are ahead of it.
//
// Between two saves is a rest. Each costs two fsync calls, and without the rest a
// steady trickle kept the disk, which Postgres commits to, busy with little else: at
// 1,000 events a second half of all that the relay used.
func (s *session) save(ctx context.Context) {
	defer close(s.saved)
	var (
		delay  backoff
		faults outage
		retry  <-chan time.Time
	)
	settled := s.settled
	for {
		s.writing.Lock()
		pos, bytes, due, changed := s.track.unsaved()
		var err error
		if due {
			if err = s.store(ctx, pos); err == nil {
				s.track.markSaved(pos, bytes)
			}
		}
		s.writing.Unlock()
		if due {
			if s.broken.Err() != nil {
				return // the next session knows from memory what is not saved
			}
			s.state.unsaved(err)
			if err == nil {
				delay = backoff{}
				faults.over(s.log).Msg("positions are saved again")
				s.pg.Confirm(pos.Safe)
				if settled != nil {
					s.rest()
				}
				continue
			}
			if errors.Is(err, checkpoint.ErrBehind) || errors.Is(err, checkpoint.ErrLost) || fatal(err) {
				s.fail(err) // another relay has delivered more; or what is stored is no longer ours
				s.breakOff()
				return
			}
			faults.begin(s.log, err).Msg("position not saved; trying again")
			retry, changed = time.After(delay.next()), nil
		} else if settled == nil {
			return // nothing came after the position that was final
		}
		select {
		case <-changed:
		case <-retry:
		case <-settled:
			settled = nil // look once more: the last change may have come with it
		case <-s.broken.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// rest waits saveEvery, or until the sink wants to go on, or there is no more to come.
func (s *session) rest() {
	select {
	case <-time.After(saveEvery):
	case <-s.track.pressed:
	case <-s.settled:
	case <-s.broken.Done():
	}
}

const saveEvery = 20 * time.Millisecond

func (s *session) store(ctx context.Context, pos checkpoint.Position) error {
	if s.cfg.Store == nil || s.broken.Err() != nil {
		return s.broken.Err()
	}
	slow := time.AfterFunc(saveSlow, func() { s.state.unsaved(errSaveSlow) })
	defer slow.Stop()
	return s.cfg.Store.Save(ctx, pos)
}

// saveSlow is when a save that waits, for Kafka or a lock, makes the relay unready.
const saveSlow = 5 * time.Second

var errSaveSlow = errors.New("relay: the checkpoint has been waiting for some seconds to be written")
