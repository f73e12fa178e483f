package kafkaconsumer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walrelay/walrelay/inbox"
)

// partition is the work at one partition in one generation. It belongs to one goroutine.
type partition struct {
	*Consumer
	topic string
	id    int
	// next is the offset to read next. Everything before it is dealt with: applied, known as a duplicate, or parked.
	next int64
	done *progress
	log  *slog.Logger
	lag  prometheus.Gauge
}

func (c *Consumer) newPartition(topic string, id int, offset int64, done *progress) *partition {
	return &partition{Consumer: c, topic: topic, id: id, next: offset, done: done,
		log: c.log.With("topic", topic, "partition", id), lag: c.metrics.lagOf(topic, id)}
}

// work goes on until the generation has ended. An effect that runs then may go on for a while, and is cancelled after that: a
// member that does not come back in time would be left out, and come back into the next rebalance, for ever.
func (p *partition) work(ended context.Context) {
	defer p.metrics.forget(p.topic, p.id)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	grace := context.AfterFunc(ended, func() {
		timer := time.NewTimer(p.cfg.StopTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-ctx.Done():
		}
	})
	defer grace()

	trouble := outage{log: p.log, what: "can't read: trying on"}
	for failures := 0; ended.Err() == nil; {
		batch, err := p.fetch(ended)
		switch {
		case err == nil:
			trouble.over()
			failures = 0
		case ended.Err() == nil:
			trouble.met(err)
			failures++
			p.pause(ended, failures)
			continue
		}
		for i := range batch {
			if ended.Err() != nil || p.handle(ctx, ended, &batch[i]) != nil {
				return
			}
			p.reached(batch[i].Offset + 1)
		}
	}
}

func (p *partition) reached(offset int64) {
	p.next = offset
	p.done.reached(p.topic, p.id, offset)
}

// handle returns nil when the event is dealt with. Attempts run under ctx; between two of them the end of the generation is enough.
func (p *partition) handle(ctx, ended context.Context, m *Message) error {
	trouble := outage{log: p.log, what: "events can't be applied: trying on"}
	for attempt, waits := 1, 0; ; waits++ {
		if waits > 0 && !p.pause(ended, waits) {
			return ended.Err()
		}
		err := p.attempt(ctx, m)
		switch {
		case err == nil:
			trouble.over()
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case passes(err):
			trouble.met(err, "offset", m.Offset, "event_id", m.ID)
			continue
		case p.cfg.Attempts == Forever:
			trouble.met(err, "offset", m.Offset, "event_id", m.ID)
		case isPermanent(err) || attempt >= p.cfg.Attempts:
			return p.park(ctx, m, attempt, err)
		}
		attempt++
		p.metrics.retries.WithLabelValues(p.topic).Inc()
	}
}

// effectError is what the handler returned. broken: it left the connection closed.
type effectError struct {
	error
	broken bool
}

func (e *effectError) Unwrap() error { return e.error }

// attempt claims and applies the event once.
func (p *partition) attempt(ctx context.Context, m *Message) error {
	claim, err := p.cfg.Inbox.Once(ctx, p.cfg.DB, m.Event, func(ctx context.Context, tx pgx.Tx, claim *inbox.Claim) error {
		m.Claim = claim
		if err := p.cfg.Handle(ctx, tx, m); err != nil {
			return &effectError{err, tx.Conn().IsClosed()}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if claim.Duplicate {
		p.metrics.duplicates.WithLabelValues(p.topic).Inc()
	} else {
		p.metrics.handled.WithLabelValues(p.topic).Inc()
	}
	return nil
}

// passes says whether an error is none of the event's own: what fails for want of a server, or because of what else
// goes on there, is tried again without being counted. An outage must not park what comes by.
func passes(err error) bool {
	var effect *effectError
	isEffect := errors.As(err, &effect)
	var pg *pgconn.PgError
	switch {
	case isPermanent(err), errors.Is(err, pgx.ErrTxCommitRollback): // an error in the transaction was passed over
		return false
	case isEffect && effect.broken:
		return true
	case !errors.As(err, &pg):
		return !isEffect // no answer from the server
	}
	switch class := pg.Code[:2]; class {
	case "08", "40", "53": // connection, serialization and deadlock, resources
		return true
	case "57":
		return pg.Code != "57014" // a statement that takes too long is the event's
	case "22", "23":
		return false // claim or commit refuse the event's data
	default:
		return !isEffect // a table or a right that is missing: a person has to see to it
	}
}

// pause waits before another try; false: ctx has ended.
func (p *partition) pause(ctx context.Context, tries int) bool {
	wait := min(p.cfg.MinBackoff<<min(tries-1, 20), p.cfg.MaxBackoff)
	timer := time.NewTimer(wait/2 + rand.N(wait/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
