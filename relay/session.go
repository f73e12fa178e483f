package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// session is one connection's worth of relaying. Its goroutines and what
// each of them owns are told in the package comment.
type session struct {
	*Relay
	link

	open   *batch        // owned by the reader
	spare  *batch        // owned by whoever holds the token of free
	free   chan struct{} // one token: the sink is idle and spare is empty
	work   chan *batch   // one batch: handed over, never blocks its sender
	resume *resume       // owned by the reader
	lastID []byte        // owned by the reader: event id of the newest row that was dropped as delivered
	goal   goal          // owned by the reader

	idle idle // the newest idle position that was seen

	broken    context.Context // ends when nothing more may be handed to the sink or saved
	breakOff  context.CancelFunc
	delivered chan struct{} // closed when the deliver goroutine has ended
	settled   chan struct{} // closed when the delivered position is final
	saved     chan struct{} // closed when the save goroutine has ended

	writing sync.Mutex // exactly once: held from the choice of a position until it is saved
}

// session opens the stream, relays until something ends it, and leaves nothing
// running. A nil error means that ctx ended or the goal was reached, and that all
// that was handed over is acknowledged, saved and confirmed.
func (r *Relay) session(ctx context.Context) error {
	if err := r.backfill(ctx); err != nil {
		return err
	}
	pg, err := replication.Open(ctx, r.cfg.Postgres)
	if err != nil {
		return err
	}
	s := &session{Relay: r, link: link{pg: pg, poked: make(chan struct{}, 1)},
		open: newBatch(r.batchBytes()), spare: newBatch(r.batchBytes()),
		free: make(chan struct{}, 1), work: make(chan *batch, 1),
		idle: idle{now: make(chan struct{}, 1)}, delivered: make(chan struct{}), settled: make(chan struct{}), saved: make(chan struct{}),
	}
	s.free <- struct{}{}
	s.broken, s.breakOff = context.WithCancel(context.WithoutCancel(ctx))
	defer s.breakOff()
	if err := s.begin(ctx); err != nil {
		s.close()
		return err
	}
	drained, limit, release := drainLimit(ctx, s.cfg.DrainTimeout)
	defer release()
	defer context.AfterFunc(drained, s.breakOff)()
	var pipe, side sync.WaitGroup
	watching, stopWatching := context.WithCancel(s.broken)
	defer stopWatching()
	pipe.Go(func() { s.deliver(drained) })
	pipe.Go(func() { s.save(drained) })
	side.Go(func() { s.watch(watching) })
	side.Go(func() { s.probe(watching) })
	side.Go(func() { s.keepAnchor(watching) })

	began, before := time.Now(), s.track.count()
	err = s.read(ctx)
	if s.lived(began, before) {
		s.outage = outage{} // the next one is a new one
	}

	// The end: finish the batch in flight, save and confirm it, take leave.
	if fatal(err) {
		limit()
	}
	close(s.work)
	switch {
	case errors.Is(err, errConnection), errors.As(err, new(*replication.ContinuityError)):
		// Another relay may hold the slot, or rows may be missing: nothing more is
		// saved or confirmed. The batch in flight may wait for Kafka for long, and
		// a server that shuts down waits for us: leave at once.
		s.breakOff()
		s.state.lost(err)
		s.outage.begin(s.log, err).Msg("not streaming; the batch in flight is finished first")
		side.Wait()
		s.close()
		<-s.delivered
	default:
		s.await(s.delivered)
		stopWatching()
		side.Wait()
		if failed := s.takeFailed(); !errors.Is(err, failed) {
			err = errors.Join(err, failed)
		}
		if err == nil && s.goal.reached {
			err = s.confirmGoal(drained)
		}
		if errors.Is(err, errConnection) || errors.As(err, new(*replication.ContinuityError)) {
			s.breakOff() // it came while we waited
		}
		close(s.settled)
		s.await(s.saved)
		if s.broken.Err() != nil && err == nil {
			err = errConnection // the last position was not confirmed
		}
		s.reached = err == nil && s.goal.reached
		defer s.close()
	}
	pipe.Wait()
	if drained.Err() != nil && !fatal(err) {
		err = ErrDrainTimeout
		if s.takeFailed() == nil {
			err = ErrUnsaved
		}
	}
	return err
}

// batchBytes is when a batch is full. Two batches exist in a session, and the sink
// holds a third in its encoded form. Small ones cost the broker and the checkpoint
// more for each event; large ones fall out of the processor's cache, and take memory.
func batchBytes(buffer int) int { return min(max(buffer/4, 64<<10), 3<<20) }

func (r *Relay) batchBytes() int { return batchBytes(r.cfg.BufferBytes) }

// begin is the start path, which is also the recovery path: the slot is ours by
// now; find the position, prove that it belongs to this WAL, and let the stream
// show the rest.
func (s *session) begin(ctx context.Context) error {
	pos, err := s.find(ctx)
	if err != nil {
		return err
	}
	if err := s.cfg.Fits(s.pg.Columns); err != nil {
		return err
	}
	if err := s.replayFirst(ctx, pos); err != nil {
		return err
	}
	if s.resume, err = newResume(pos, s.pg.Slot.Confirmed); err != nil {
		return err
	}
	if s.cfg.UntilNow && s.until == 0 {
		if s.until, err = s.pg.Marker(ctx); err != nil {
			return err
		}
	}
	pos.Timeline, pos.Catalog = s.pg.Server.Timeline, checkpoint.Catalog(s.pg.Catalog)
	s.goal.until = s.until
	pos.Verified = pos.Safe
	s.track.start(pos)
	s.known = true
	s.open.reset(pos)
	s.cfg.Decoder.Table = s.pg.Catalog.Table
	s.cfg.Decoder.Start(pos.Source())
	s.state.up()
	for _, text := range s.pg.Warnings {
		if !slices.Contains(s.warned, text) {
			s.warned = append(s.warned, text)
			s.log.Warn().Msg(text)
		}
	}
	s.outage.length(s.log.Info()).Stringer("confirmed_lsn", s.pg.Slot.Confirmed).Stringer("position", pos.Safe).
		Str("system_id", pos.SystemID).Int32("timeline", pos.Timeline).Str("slot", pos.Slot).Msg("streaming")
	return nil
}

// find is position, which may have to wait for Kafka: the session with Postgres is kept
// alive meanwhile.
func (s *session) find(ctx context.Context) (pos checkpoint.Position, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.stillOurs(ctx); err != nil {
		return pos, err
	}
	found := make(chan struct{})
	go func() {
		defer close(found)
		pos, err = s.position(ctx, s.pg)
	}()
	lost := s.pg.Hold(found)
	cancel()
	<-found
	if lost != nil {
		return pos, fmt.Errorf("%w: %w", errConnection, lost)
	}
	return pos, err
}

// Fits says by a *[decode.MappingError] whether the published columns fit the mapping.
func (c Config) Fits(published []replication.Column) error {
	return c.Decoder.Check(columns(published))
}

// columns are the table's, as the decoder takes them.
func columns(published []replication.Column) []decode.Column {
	cols := make([]decode.Column, len(published))
	for i, c := range published {
		cols[i] = decode.Column{Name: c.Name, Type: c.Type}
	}
	return cols
}

// await waits until done is closed and keeps the session alive meanwhile.
func (s *session) await(done <-chan struct{}) {
	if s.pg.Hold(done) != nil {
		s.breakOff()
	}
	<-done
}

func (s *session) close() { closeSession(s.pg, s.log) }

// closeSession takes leave of the server with a last status; a server that doesn't answer
// is left all the same.
func closeSession(pg *replication.Session, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := pg.Close(ctx); err != nil {
		log.Debug().Err(err).Msg("closing the session")
	}
}
