package simpg

import (
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// Crash is an immediate shutdown, or the death of the postmaster, and the start after
// it: open transactions are gone, and the slot is back where it was persisted last.
func (s *Server) Crash(downFor, startFor time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == down {
		return
	}
	s.note("crashes, the slot falls back from %s to %s", s.slot.confirmed, s.slot.persisted)
	s.stop()
	s.slot.confirmed = s.slot.persisted
	s.startLater(downFor, startFor)
}

// stop is the end of all processes.
func (s *Server) stop() {
	s.phase = down
	s.hooks.Down()
	s.net.SetReach(s.cfg.Addr, simnet.Refused)
	for t := range s.open {
		t.aborted = true
	}
	clear(s.open)
	for _, ss := range s.sessions {
		ss.end(nil)
		ss.conn.Link().Reset()
	}
	s.cond.Broadcast()
}

func (s *Server) startLater(downFor, startFor time.Duration) {
	s.boots++
	boot := s.boots
	after(s, downFor, func() {
		if s.boots != boot {
			return
		}
		s.phase = starting
		s.net.SetReach(s.cfg.Addr, simnet.Up)
		after(s, startFor, func() {
			if s.boots != boot {
				return
			}
			s.phase = running
			s.grown()
			s.note("takes connections, slot at %s, WAL end %s", s.slot.confirmed, s.end)
		})
	})
}

// after runs f under the lock, unless the server is closed by then.
func after(s *Server, d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			f()
		}
	})
}

// FastShutdown lets the walsender go only when everything is confirmed. The server
// comes back downFor later. A checkpoint at the end persists the slot, unless forgets
// (Postgres 15 was seen to).
func (s *Server) FastShutdown(downFor, startFor time.Duration, forgets bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != running {
		return
	}
	s.note("fast shutdown at %s", s.end)
	s.phase = stopping
	for t := range s.open {
		t.aborted = true
	}
	clear(s.open)
	for _, ss := range s.sessions {
		if s.slot.pid != ss.pid {
			ss.end(errTerminated)
		}
	}
	s.cond.Broadcast()
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for s.phase == stopping && len(s.sessions) > 0 && !s.closed {
			s.cond.Wait()
		}
		if s.phase != stopping || s.closed {
			return
		}
		if !forgets {
			s.slot.persisted = s.slot.confirmed
		}
		s.note("is shut down, slot confirmed %s, persisted %s", s.slot.confirmed, s.slot.persisted)
		s.stop()
		s.slot.confirmed = s.slot.persisted
		s.startLater(downFor, startFor)
	}()
}

// TerminateWalsender is pg_terminate_backend on who holds the slot.
func (s *Server) TerminateWalsender() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss := s.sessions[s.slot.pid]; ss != nil {
		s.note("pid %d is terminated", ss.pid)
		ss.end(errTerminated)
	}
}

// TerminateSide ends every session that doesn't stream.
func (s *Server) TerminateSide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if !ss.stream {
			ss.end(errTerminated)
		}
	}
}

// Occupy ends the session that holds the slot and has another one hold it for a while.
func (s *Server) Occupy(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != running {
		return
	}
	if ss := s.sessions[s.slot.pid]; ss != nil {
		ss.end(errTerminated)
	}
	const stranger = 7
	s.note("pid %d holds the slot for %s", stranger, d)
	s.slot.pid = stranger
	after(s, d, func() {
		if s.slot.pid == stranger {
			s.slot.pid = 0
		}
	})
}

// Busy keeps walsenders from sending and reading, as a large transaction of other tables does.
func (s *Server) Busy(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = time.Now().Add(d)
	s.note("the walsender is busy for %s", d)
}

// Advance moves the idle slot to the end of the WAL, as somebody with SQL could.
func (s *Server) Advance() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss := s.sessions[s.slot.pid]; ss != nil {
		ss.end(errTerminated)
	}
	s.slot.confirmed, s.slot.persisted = s.end, s.end
	s.note("somebody advances the slot to %s", s.end)
}

// LeavePublication takes the table out of the publication; what commits from now on is
// not streamed, and never will be.
func (s *Server) LeavePublication() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.membership = 0
	s.record(100)
	s.note("the table leaves the publication at %s", s.end)
	s.grown()
}

// JoinPublication puts the table back.
func (s *Server) JoinPublication() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.membership != 0 {
		return
	}
	s.membership = s.nextOID
	s.nextOID++
	s.record(100)
	s.note("the table joins the publication at %s", s.end)
	s.grown()
}

// CutStandby stops the standby from receiving WAL, and its copy of the slot from moving.
func (s *Server) CutStandby() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standby.cut = true
	s.note("the standby falls behind at %s", s.standby.end)
}

// Failover promotes the standby: what it has not received is lost. It returns where the
// timelines part.
func (s *Server) Failover(downFor, startFor time.Duration) (at pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	at = s.standby.end
	s.slot.confirmed = min(s.standby.confirmed, at)
	s.note("fails over at %s, slot %s", at, s.slot.confirmed)
	s.rewind(at)
	s.switches = append(s.switches, at)
	s.timeline++
	s.record(120)
	s.startLater(downFor, startFor)
	return at
}

// rewind gives up the WAL behind at.
func (s *Server) rewind(at pglogrepl.LSN) {
	n := len(s.txns)
	for n > 0 && s.txns[n-1].End > at {
		n--
	}
	lost := s.txns[n:]
	s.txns, s.end = s.txns[:n:n], at
	s.slot.persisted = s.slot.confirmed
	s.standby = standby{end: at, confirmed: s.slot.confirmed}
	if len(lost) > 0 {
		s.hooks.Lost(lost)
	}
}

// Copy is a file copy of the cluster.
type Copy struct {
	End       pglogrepl.LSN
	confirmed pglogrepl.LSN
	catalog   catalog
}

// Copy takes a copy that can be restored on the same timeline.
func (s *Server) Copy() Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Copy{End: s.end, confirmed: s.slot.persisted, catalog: s.catalog}
}

// Restore puts the copy in the place of the cluster: same system id, same timeline,
// and from the copy's end on another history.
func (s *Server) Restore(c Copy, downFor, startFor time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.note("a copy of the cluster is restored: WAL end %s, was %s", c.End, s.end)
	s.slot.confirmed = c.confirmed
	s.catalog = c.catalog
	s.rewind(c.End)
	s.startLater(downFor, startFor)
}
