package relay

import (
	"context"
	"errors"
	"time"

	"github.com/walrelay/walrelay/decode"
)

// transact makes the events of a batch and the position behind them one transaction of Kafka, and
// confirms the position to Postgres once that is committed. Any error but a poison event leaves open whether it
// was: the session ends, and the next one asks the checkpoint.
//
// An event that can never be published is not in it, nor is what comes behind: they end the
// relay, or were replaced by dead letters before we see them.
func (s *session) transact(ctx context.Context, b *batch) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	events, size := b.Events, b.Bytes()
	defer func() { b.Events = events }()
	var poison *decode.PoisonError
	for n = len(events); n > 0; {
		pos := s.track.ahead(b.positionAt(n))
		key, value, err := s.cfg.Once.Record(pos)
		if err != nil {
			return 0, err
		}
		b.Events = append(events[:n], decode.Event{Topic: s.cfg.Once.Topic(), Key: key, Value: value, Timestamp: time.Now().UnixMilli()})
		events = b.Events[:n] // where it has grown
		good, err := s.cfg.Producer.Transact(ctx, b.Events)
		switch {
		case err == nil:
			s.cfg.Once.Saved(pos)
			s.track.committed(pos, size)
			s.pg.Confirm(pos.Safe)
			if poison != nil {
				return n, poison
			}
			return n, nil
		case errors.As(err, &poison) && good < n:
			n = good
		default:
			return 0, err
		}
	}
	return 0, poison
}
