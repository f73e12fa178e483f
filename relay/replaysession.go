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

// replaying is one session of a replay: a reader, which owns the copy's connection and
// the open batch, and a goroutine that delivers the other batch and saves.
type replaying struct {
	*Replay
	link
	resume *resume
	lastID []byte // event id of the newest chosen row that was dropped as delivered
	chosen int    // rows of the transaction in progress that the filter chose

	open *batch
	free chan *batch // holds the other one unless it is in flight
	work chan *batch // never blocks its sender
}

// session streams one copy of the anchor until the window is done (nil) or something
// ends it. What was in flight is delivered, or not, when it returns.
func (p *Replay) session(ctx context.Context) error {
	if err := p.save(); err != nil {
		return err
	}
	pg, err := replication.OpenCopy(ctx, p.cfg.Postgres)
	if err != nil {
		return err
	}
	defer closeSession(pg, p.log)
	if err := (Config{Decoder: p.cfg.Decoder}).Fits(pg.Columns); err != nil {
		return err
	}
	if p.run.RunID == "" {
		if err := p.plan(ctx, pg); err != nil {
			return err
		}
	}
	if p.run.Position.Safe >= p.run.Limit {
		return nil
	}
	s := &replaying{Replay: p, link: link{pg: pg, poked: make(chan struct{}, 1)}, open: newBatch(batchBytes(p.cfg.BufferBytes)),
		free: make(chan *batch, 1), work: make(chan *batch, 1)}
	if err := s.start(ctx); err != nil {
		return err
	}
	writing, _, release := drainLimit(ctx, s.cfg.DrainTimeout)
	defer release()
	done := make(chan struct{})
	go func() { defer close(done); s.deliver(writing) }()
	err = s.read(ctx)
	close(s.work)
	closeSession(pg, p.log) // a server that shuts down would wait for us
	<-done
	if err == nil || errors.Is(err, errStop) {
		err = errors.Join(err, s.takeFailed())
	}
	return err
}

// start has the copy stream from where the replay goes on: from the last transaction that
// it has published, which has to come by and be the one that is remembered.
func (s *replaying) start(ctx context.Context) error {
	pos := s.run.Position
	if err := s.sameWAL(pos, s.pg); err != nil {
		return err
	}
	from := pos.Trusted
	if pos.Last.Commit != 0 {
		from = pos.Last.Commit
	}
	if from < s.pg.Slot.Confirmed {
		return &ReachError{Reason: fmt.Sprintf("replay %s has to go on from %s, and the anchor was moved past that", s.run.RunID, from),
			From: s.pg.Slot.Confirmed, To: s.run.Limit, Remedy: "give it up (`walrelay replay --abandon`), and replay what can be reached"}
	}
	var err error
	if s.resume, err = newResume(pos, from); err != nil {
		return err
	}
	s.open.reset(pos)
	s.free <- newBatch(batchBytes(s.cfg.BufferBytes))
	d := s.cfg.Decoder
	d.Table = s.pg.Catalog.Table
	if s.cfg.List == nil {
		d.Marks = []decode.Header{{Key: "walrelay-replay", Value: []byte(s.run.RunID)}}
	}
	d.Start(pos.Source())
	if err := s.pg.Start(ctx, from); err != nil {
		return err
	}
	s.told().Str("run", s.run.RunID).Stringer("from", pos.Trusted).Stringer("limit", s.run.Limit).Stringer("position", pos.Safe).
		Uint64("events", s.run.Events).Msg("replaying")
	return nil
}

// read is the reader; nil when the window was read whole and handed over.
func (s *replaying) read(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.poke)()
	for {
		m, err := s.pg.Next()
		if err != nil {
			return fmt.Errorf("%w: %w", errConnection, err)
		}
		switch m.Kind {
		case replication.Data:
			err = s.data(m.WAL)
		case replication.Keepalive:
			if _, open := s.cfg.Decoder.Txn(); !open {
				err = s.passed(m.WALEnd)
			}
		default:
			if err = s.interrupted(ctx); err == nil {
				s.offer()
			}
		}
		if err == nil && s.open.Bytes() >= batchBytes(s.cfg.BufferBytes) {
			err = s.handOver(ctx)
		}
		switch {
		case errors.Is(err, errWindow):
			return s.handOver(ctx)
		case errors.Is(err, errMessage):
			return errors.Join(err, s.handOver(ctx))
		case err != nil:
			return err
		}
	}
}

var errWindow = errors.New("relay: the window was read whole") // ends read without a fault

func (s *replaying) data(wal []byte) error {
	d := s.cfg.Decoder
	kind, err := d.Decode(wal, s.open.Batch)
	if err != nil {
		return fmt.Errorf("%w: %w", errMessage, err)
	}
	t, _ := d.Txn()
	switch kind {
	case decode.Begin:
		s.chosen = 0
		if t.Commit >= s.run.Limit {
			return s.passed(t.Commit)
		}
		s.at.Store(uint64(t.Commit))
	case decode.Row:
		return s.row(d.EventType(wal))
	case decode.Commit:
		return s.commit(t)
	}
	return nil
}

// row drops the newest event again if the filter doesn't choose it, or if it was published before.
func (s *replaying) row(eventType []byte) error {
	ev := &s.open.Events[len(s.open.Events)-1]
	if !s.cfg.Filter.keeps(ev, eventType) {
		s.open.DropLast()
		return nil
	}
	s.chosen++
	v, err := s.resume.row(ev)
	if err != nil {
		return err
	}
	if v == drop {
		s.lastID = append(s.lastID[:0], ev.ID...)
		s.open.DropLast()
		return nil
	}
	if s.cfg.Topic != "" {
		ev.Topic = s.cfg.Topic
	}
	if len(s.open.Events) == 1 {
		s.open.opened = time.Now()
	}
	return nil
}

func (s *replaying) commit(t decode.Txn) error {
	if s.chosen > 0 {
		if err := s.resume.commit(t, s.lastID); err != nil {
			return err
		}
		if !s.resume.delivered(t.Commit) {
			s.open.commit(t)
		}
	}
	if t.End >= s.run.Limit {
		return s.passed(t.End)
	}
	return nil
}

// passed notes that all that commits below lsn was read, outside a transaction.
func (s *replaying) passed(lsn pglogrepl.LSN) error {
	if err := s.resume.passed(lsn); err != nil {
		return err
	}
	if lsn >= s.run.Limit {
		return errWindow
	}
	return nil
}

// offer hands the open batch over if nothing is in flight.
func (s *replaying) offer() {
	if s.open.empty() || s.pg.Bulk() && time.Since(s.open.opened) < bulkWait {
		return
	}
	select {
	case spare := <-s.free:
		s.swap(spare)
	default:
	}
}

// handOver waits until nothing is in flight, keeping the session alive meanwhile.
func (s *replaying) handOver(ctx context.Context) error {
	for !s.open.empty() {
		select {
		case spare := <-s.free:
			s.swap(spare)
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

func (s *replaying) swap(spare *batch) {
	full := s.open
	spare.reset(full.positionAt(len(full.Events)))
	s.open = spare
	s.work <- full
}
