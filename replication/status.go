package replication

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
)

// The conversation beside the data. The server must hear from us well within
// wal_sender_timeout, whatever the pipe is doing, and learns by the same message
// what it may forget. We must notice when it is gone, which a half-open link
// doesn't tell.
const (
	statusEvery  = time.Second            // when nothing is new
	confirmEvery = 100 * time.Millisecond // when the confirmed LSN has moved
	replyEvery   = 50 * time.Millisecond  // when the server asked: each answer of ours can provoke its next question
	writeTimeout = 5 * time.Second

	probeAfter = 5 * time.Second // of silence, or half of wal_sender_timeout: ask for a sign of life
	probeFor   = 5 * time.Second // then look at the walsender from the side connection
	listenGap  = time.Second

	// A server that shuts down asks again after every answer until all is
	// confirmed, for ever if need be. Some questions in a row, and it gets a bounded
	// time to see the rest confirmed, then its wish.
	floodAsks  = 8
	floodGap   = time.Second
	floodDrain = 2 * time.Second
)

// Confirm lets the next status update carry lsn as written, flushed and applied.
// It is monotone: an lsn below one confirmed before is ignored. Any goroutine.
func (s *Session) Confirm(lsn pglogrepl.LSN) {
	if !raise(&s.confirmed, uint64(lsn)) || s.unsent.Swap(true) {
		return // nothing new, or the owner knows that a status is due
	}
	select {
	case s.nudge <- struct{}{}:
	default:
	}
	s.sock.SetReadDeadline(past)
}

// raise sets v to at least x and reports whether that changed it.
func raise(v *atomic.Uint64, x uint64) bool {
	for {
		old := v.Load()
		if x <= old {
			return false
		}
		if v.CompareAndSwap(old, x) {
			return true
		}
	}
}

// due is when the next status update has to go out.
func (s *Session) due() time.Time {
	switch {
	case s.replyDue:
		return s.sent.Add(replyEvery)
	case s.unsent.Load():
		return s.sent.Add(confirmEvery)
	}
	return s.sent.Add(s.every)
}

// tend sends the status update that is due at now, and gives up on a server that
// is gone (only if listening: without reading, silence says nothing) or that
// wants us to be.
func (s *Session) tend(now time.Time, listening bool) error {
	if listening && now.Sub(s.askedAt) > s.floodGap {
		s.flood = time.Time{}
	}
	if !s.flood.IsZero() && now.Sub(s.flood) > floodDrain {
		return fmt.Errorf("replication: read the stream: %w: it asks for the confirmation of what isn't delivered yet", ErrShutdown)
	}
	if now.Before(s.due()) {
		return nil
	}
	ask := false
	if listening {
		switch {
		case s.probed.IsZero():
			if ask = now.Sub(s.silent) >= s.probeAfter; ask {
				s.probed = now
			}
		case now.Sub(s.probed) >= probeFor:
			if err := s.walsender(); err != nil {
				return err
			}
			now = time.Now()
			ask, s.probed = true, now
		}
	}
	return s.status(now, ask)
}

// status sends the confirmed LSN in all three fields. Never 0: the server would
// take the written position for a flushed one (pglogrepl fills it in so).
func (s *Session) status(now time.Time, ask bool) error {
	s.unsent.Store(false) // before the load: what is confirmed in between is sent twice rather than not
	lsn := pglogrepl.LSN(s.confirmed.Load())
	if err := s.conn.Conn().SetWriteDeadline(now.Add(writeTimeout)); err != nil {
		return fmt.Errorf("replication: send the status: %w", err)
	}
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: lsn, WALFlushPosition: lsn, WALApplyPosition: lsn, ClientTime: now, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("replication: send the status: %w", err)
	}
	s.sent, s.replyDue = now, false
	return nil
}

// asked notes that the server asked for a status.
func (s *Session) asked() {
	s.replyDue = true
	now := s.sock.readAt
	if now.Sub(s.askedAt) > s.floodGap {
		s.asks, s.firstAsk = 0, now
	}
	s.askedAt = now
	if s.asks++; s.asks >= floodAsks {
		s.flood = s.firstAsk
	}
}

// walsender tells a dead link from a walsender that is too busy to answer: it
// doesn't look at what we send while it works through a large transaction of
// which nothing is published, and that can take minutes. Giving up on it then
// would start the same work over, for ever.
func (s *Session) walsender() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	const dead = "replication: read the stream: the server is silent"
	got, err := s.side.row(ctx, fmt.Sprintf(`/* walrelay: walsender */ SELECT coalesce(wait_event_type, '') FROM pg_stat_activity WHERE pid = %d`, s.PID))
	switch {
	case err != nil:
		return fmt.Errorf(dead+": %w", err)
	case got == nil:
		return errors.New(dead + ": its walsender has ended")
	}
	switch string(got[0]) {
	case "Activity", "Client": // waits for WAL, for us, or for the socket: it would have answered
		return errors.New(dead + ": the link is dead")
	}
	return nil
}

// Heard returns when the server sent the newest message that was read: its own
// timestamp, moved to our clock. The arrival would prove nothing: what a process
// that was stopped for a while finds in its socket is old. Any goroutine.
func (s *Session) Heard() time.Time {
	return started.Add(time.Duration(s.heard.Load()) * time.Microsecond)
}

// now is our clock, in µs since the process started. It is the monotonic one: a wall
// clock that is set back would make a session that was lost long ago look fresh.
func now() int64 { return time.Since(started).Microseconds() }

var started = time.Now()

func (s *Session) publishHeard() {
	s.heard.Store(min(s.serverTime+s.offset.Load(), now()))
}
