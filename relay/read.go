package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// bulkWait is how long a batch that is not full waits for more while a backlog is
// read: big batches are what makes relay, broker and walsender cheap at once.
const bulkWait = 20 * time.Millisecond

// read is the reader: it owns the connection, the decoder and the open batch.
//
// Batching is natural: while one batch is produced the next one fills; it is handed
// over when the sink is free and there is nothing more to read, or when it is full.
func (s *session) read(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.poke)()
	for {
		m, err := s.pg.Next()
		if err != nil {
			return fmt.Errorf("%w: %w", errConnection, err)
		}
		switch m.Kind {
		case replication.Data:
			err = s.data(m)
		case replication.Keepalive:
			err = s.keepalive(m)
		default: // Drained, Woken
			if err = s.interrupted(ctx); err == nil {
				s.offer()
			}
		}
		if err == nil && s.open.Bytes() >= s.batchBytes() {
			err = s.handOver(ctx)
		}
		switch {
		case err == nil && !s.goal.reached: // first: what follows costs more than a row
		case errors.Is(err, errStop):
			return nil
		case errors.Is(err, errMessage):
			return errors.Join(err, s.handOver(ctx)) // what came before it is delivered
		case err != nil:
			return err
		case s.goal.reached:
			return s.handOver(ctx)
		}
	}
}

var (
	errStop    = errors.New("relay: stop")                    // ends read without a fault: ctx is done
	errMessage = errors.New("relay: a message of the stream") // marks what the decoder could not take
)

// data takes one pgoutput message.
func (s *session) data(m replication.Message) error {
	kind, err := s.cfg.Decoder.Decode(m.WAL, s.open.Batch)
	if err != nil {
		return fmt.Errorf("%w: %w", errMessage, err)
	}
	switch kind {
	case decode.Begin:
		t, _ := s.cfg.Decoder.Txn()
		s.reach(t.Commit)
	case decode.Row:
		return s.row()
	case decode.Commit:
		t, _ := s.cfg.Decoder.Txn()
		return s.commit(t)
	}
	return nil
}

// row drops the newest event again if it was delivered before.
func (s *session) row() error {
	ev := &s.open.Events[len(s.open.Events)-1]
	v, err := s.resume.row(ev)
	if err != nil {
		return err
	}
	if v == drop {
		s.lastID = append(s.lastID[:0], ev.ID...)
		s.open.DropLast()
		return nil
	}
	if len(s.open.Events) == 1 {
		t, _ := s.cfg.Decoder.Txn()
		s.open.opened, s.open.committed = time.Now(), t.Time
	}
	return nil
}

func (s *session) commit(t decode.Txn) error {
	if t.Rows == 0 { // other tables' rows only: no more than an idle position
		return s.passed(t.End)
	}
	if err := s.resume.commit(t, s.lastID); err != nil {
		return err
	}
	if !s.resume.delivered(t.Commit) {
		s.open.commit(t)
	}
	s.reach(t.End)
	return nil
}

// keepalive takes the server's WAL end. Everything that it sent before is read by
// now; outside a transaction nothing below the WAL end is still to come.
func (s *session) keepalive(m replication.Message) error {
	if _, open := s.cfg.Decoder.Txn(); open {
		return nil
	}
	if err := s.passed(m.WALEnd); err != nil {
		return err
	}
	if m.ReplyRequested {
		s.idle.hurry()
	}
	return nil
}

// passed notes that the stream has gone by lsn, outside a transaction. It becomes an
// idle position if nothing is unacknowledged at this moment.
func (s *session) passed(lsn pglogrepl.LSN) error {
	if err := s.resume.passed(lsn); err != nil {
		return err
	}
	s.reach(lsn)
	if s.resume.pending() || !s.open.empty() || !s.sinkIdle() {
		return nil
	}
	if _, saved := s.track.positions(); saved.Safe <= lsn {
		s.pg.Confirm(saved.Safe) // a slot that fell back behind what it was told before
	}
	s.idle.see(lsn)
	return nil
}

// reach notes that all that commits below lsn was read.
func (s *session) reach(lsn pglogrepl.LSN) {
	if !s.resume.pending() {
		s.goal.pass(lsn)
	}
}

func (s *session) sinkIdle() bool { return len(s.free) > 0 }

// offer hands the open batch over if the sink is free.
func (s *session) offer() {
	if s.open.empty() || s.pg.Bulk() && time.Since(s.open.opened) < bulkWait {
		return
	}
	select {
	case <-s.free:
		s.swap()
	default:
	}
}

// handOver waits for the sink, keeping the session with Postgres alive meanwhile.
func (s *session) handOver(ctx context.Context) error {
	for !s.open.empty() {
		select {
		case <-s.free:
			s.swap()
			return nil
		default:
		}
		if err := s.interrupted(ctx); err != nil {
			return err
		}
		if err := s.hold(s.poked); err != nil {
			return err
		}
	}
	return nil
}

// swap gives the open batch to the sink; the caller holds the token.
func (s *session) swap() {
	full := s.open
	s.open = s.spare
	s.open.reset(full.positionAt(len(full.Events)))
	if len(full.Events) > 0 {
		s.state.flying(full.committed)
	}
	s.work <- full
	s.metrics.dropped.Store(s.cfg.Decoder.DroppedHeaders)
	for _, name := range s.cfg.Decoder.DroppedNames() {
		s.log.Warn().Str("header", name).Msg("rows set a header that is not theirs to set; it is left out")
	}
}
