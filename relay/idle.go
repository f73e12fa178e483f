package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

const (
	idleEvery    = time.Second     // idle positions are proven, saved and confirmed at most this often
	catalogEvery = 5 * time.Second // the catalog is looked at at least this often
	kafkaEvery   = 3 * time.Second // and the brokers
)

// idle is the newest LSN that the stream passed while nothing was unacknowledged.
//
// It is not a position yet: a table that has left the publication looks exactly like
// one that nobody writes to. Only a look at the catalog that began after the LSN was
// seen makes it one.
type idle struct {
	mu  sync.Mutex
	lsn pglogrepl.LSN
	now chan struct{} // one token: do not wait for the next tick
}

func (i *idle) see(lsn pglogrepl.LSN) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lsn = max(i.lsn, lsn)
}

func (i *idle) hurry() {
	select {
	case i.now <- struct{}{}:
	default:
	}
}

func (i *idle) seen() pglogrepl.LSN {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lsn
}

// watch looks at the catalog: to prove idle positions, and while events flow.
func (s *session) watch(ctx context.Context) {
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	var (
		looked time.Time
		proven time.Time // the last idle position
		faults outage
	)
	for {
		hurry := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.idle.now:
			hurry = true
		}
		lsn := s.idle.seen()
		switch delivered, _ := s.track.positions(); {
		case lsn > delivered.Safe && (hurry || time.Since(proven) >= s.cfg.IdleEvery):
			proven = time.Now()
		case time.Since(looked) < catalogEvery:
			continue
		default:
			lsn = min(lsn, delivered.Safe) // the catalog alone
		}
		looked = time.Now()
		err := s.prove(ctx, lsn)
		switch {
		case errors.As(err, new(*replication.ContinuityError)):
			s.fail(err)
			return
		case errors.Is(err, replication.ErrShutdown), errors.Is(err, errConnection): // while the pipe is full, nothing else tells
			s.fail(fmt.Errorf("%w: %w", errConnection, err))
			return
		}
		if err == nil {
			err = s.measure(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.state.note(err)
			faults.begin(s.log, err).Msg("the catalog cannot be looked at: idle positions are not confirmed; trying again")
		} else {
			faults.over(s.log).Msg("the catalog can be looked at again")
		}
	}
}

// probe asks the brokers at the start and every few seconds, which keeps readiness
// true to life also while nothing is written.
func (s *session) probe(ctx context.Context) {
	tick := time.NewTicker(kafkaEvery)
	defer tick.Stop()
	for {
		if err := s.checkKafka(ctx); err != nil {
			s.fail(err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkKafka returns what ends the session: topics that are weak when the process starts, and
// credentials that are refused for longer than a rotation takes.
func (s *session) checkKafka(ctx context.Context) error {
	err := s.cfg.Producer.Check(ctx)
	if ctx.Err() == nil {
		s.state.note(err)
	}
	weak := errors.As(err, new(*sink.WeakTopicError))
	if weak && !s.kafkaSeen || s.kafkaRefused.ended(errors.As(err, new(*sink.AuthError))) {
		return err
	}
	s.kafkaSeen = s.kafkaSeen || err == nil
	return nil
}

// prove makes lsn the safe position if the catalog still publishes the outbox.
func (s *session) prove(ctx context.Context, lsn pglogrepl.LSN) error {
	before, _ := s.track.positions()
	err := s.stillOurs(ctx)
	if err == nil {
		err = s.pg.Verify(ctx)
	}
	var gap *replication.ContinuityError
	if errors.As(err, &gap) {
		// What was confirmed since the last look may have passed rows that were not streamed.
		// By the saved position: recover has to find the same lower end.
		now, saved := s.track.positions()
		gap.From, gap.To = saved.Verified, max(now.Safe, lsn)
	}
	if err != nil {
		return err
	}
	s.track.verified(before.Safe, lsn)
	return nil
}

// measure looks at what the stream itself cannot tell: how far the server's WAL has
// grown, and how much of it the slot may still hold back.
func (s *session) measure(ctx context.Context) error {
	end, err := s.pg.WALPosition(ctx)
	if err != nil {
		return err
	}
	s.metrics.walEnd.Store(uint64(end))
	left, limited, err := s.pg.Headroom(ctx)
	if !limited {
		left = -1
	}
	s.metrics.headroom.Store(left)
	if err != nil {
		return err
	}
	xmin, at, err := s.pg.Snapshot(ctx)
	if err == nil {
		s.track.snapshot(checkpoint.Snapshot{Xmin: xmin, LSN: at})
	}
	return err
}

// goal is the LSN at which a run with --until ends.
type goal struct {
	until   pglogrepl.LSN // 0: never
	reached bool          // all that commits below until was read
	idle    pglogrepl.LSN // and nothing of ours is undelivered below this, once the sink is done
}

func (g *goal) pass(lsn pglogrepl.LSN) {
	if g.until != 0 && !g.reached && lsn >= g.until {
		g.reached, g.idle = true, lsn
	}
}

// confirmGoal brings the slot up to the goal after everything before it was delivered.
func (s *session) confirmGoal(ctx context.Context) error {
	var delay backoff
	for {
		err := s.prove(ctx, s.goal.idle)
		if err == nil || errors.As(err, new(*replication.ContinuityError)) || ctx.Err() != nil || s.broken.Err() != nil {
			return err
		}
		wait := make(chan struct{})
		t := time.AfterFunc(delay.next(), func() { close(wait) })
		defer t.Stop()
		s.await(wait)
	}
}
