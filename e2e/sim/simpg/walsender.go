package simpg

import (
	"sort"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
)

// walsender is the part of a session that streams. The session's own goroutine reads
// what the client says; another one sends.
type walsender struct {
	next    int           // index in wal.txns of the next transaction to look at
	sent    pglogrepl.LSN // everything below is behind us
	atStart pglogrepl.LSN // the slot's confirmed LSN when the stream began
	flushed pglogrepl.LSN // what the client reported last

	heard   time.Time // when the client last said something
	pinged  bool      // it was asked to since
	askedAt time.Time // in the middle of a transaction
	asked   bool      // it asked us
	spoke   bool      // it said something that the sender has not looked at
	told    pglogrepl.LSN
	done    bool     // CopyDone came: no new transaction is begun
	columns []Column // of the last Relation message
	buf     []byte
	written int64 // bytes on the connection
	perSend int   // rows that leave in one write
	waker   *time.Timer
}

// replicate is START_REPLICATION and the stream. The caller holds the lock. It reports
// whether the session goes on with queries.
func (ss *session) replicate(from pglogrepl.LSN) bool {
	s := ss.server
	if s.slot.pid != 0 && s.slot.pid != ss.pid {
		ss.backend.Send(sqlError("55006", "ReplicationSlotAcquire", "replication slot %q is active for PID %d", s.cfg.Slot, s.slot.pid))
		ss.backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		return ss.flush()
	}
	s.slot.pid = ss.pid
	from = max(from, s.slot.confirmed) // Postgres: a start below it is moved up in silence
	ss.walsender = walsender{sent: from, atStart: s.slot.confirmed, heard: time.Now(), perSend: 1 + s.rng.IntN(60)}
	ss.written = ss.conn.Link().Written()
	ss.next = sort.Search(len(s.txns), func(i int) bool { return s.txns[i].Commit >= from })
	s.note("pid %d streams to %s from %s", ss.pid, ss.client, from)
	s.hooks.Streams(ss.client)
	ss.backend.Send(&pgproto3.CopyBothResponse{})
	if !ss.flush() {
		return false
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.mu.Lock()
		defer s.mu.Unlock()
		ss.send()
	}()
	s.mu.Unlock()
	goesOn := ss.listen()
	s.mu.Lock()
	if !goesOn {
		ss.over = true
		ss.conn.SetWriteDeadline(time.Unix(1, 0))
		s.cond.Broadcast()
	}
	s.mu.Unlock()
	<-ended
	s.mu.Lock()
	s.hooks.Leaves(ss.client, goesOn && !ss.over)
	if !goesOn || ss.over {
		return false // exit frees the slot, after the last word
	}
	s.slot.pid = 0
	ss.backend.Send(&pgproto3.CopyDone{})
	ss.backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("COPY 0")})
	ss.backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return ss.flush()
}

// listen takes what the client says until it ends the stream, in which case it returns
// true, or the session is over.
func (ss *session) listen() bool {
	s := ss.server
	for {
		m, err := ss.backend.Receive()
		if err != nil {
			return false
		}
		s.mu.Lock()
		for time.Now().Before(s.busy) && !ss.over {
			ss.wakeAt(s.busy)
			s.cond.Wait()
		}
		switch m := m.(type) {
		case *pgproto3.CopyData:
			ss.status(m.Data)
		case *pgproto3.CopyDone:
			ss.done = true
			s.cond.Broadcast()
			s.mu.Unlock()
			return true
		case *pgproto3.Terminate:
			s.mu.Unlock()
			return false
		default:
			s.hooks.Fault("postgres: unexpected message %T in the stream", m)
		}
		over := ss.over
		s.mu.Unlock()
		if over {
			return false
		}
	}
}

// status takes a standby status update.
func (ss *session) status(b []byte) {
	s := ss.server
	if len(b) != 34 || b[0] != 'r' {
		s.hooks.Fault("postgres: malformed status update of %d bytes", len(b))
		return
	}
	flush := pglogrepl.LSN(be.Uint64(b[9:]))
	s.hooks.Status(Status{PID: ss.pid, Client: ss.client, Flush: flush, Before: s.slot.confirmed, AtStart: ss.atStart, Previous: ss.flushed, WALEnd: s.end})
	if flush != 0 {
		ss.flushed = flush
		s.slot.confirmed = max(s.slot.confirmed, flush)
	}
	ss.heard, ss.pinged, ss.spoke = time.Now(), false, true
	ss.asked = ss.asked || b[33] != 0
	if t := s.cfg.WALSenderTimeout; t > 0 && !ss.over {
		ss.conn.SetWriteDeadline(ss.heard.Add(t))
	}
	s.cond.Broadcast()
}

// send is the sender's life. The caller holds the lock, which is given up while bytes
// are written and while there is nothing to do.
func (ss *session) send() {
	s := ss.server
	for !ss.over {
		now := time.Now()
		timeout := s.cfg.WALSenderTimeout
		switch {
		case now.Before(s.busy):
			ss.wakeAt(s.busy)
			s.cond.Wait()
			continue
		case timeout > 0 && now.Sub(ss.heard) >= timeout:
			s.note("pid %d: terminating walsender process due to replication timeout", ss.pid)
			ss.end(nil)
			return
		case timeout > 0 && now.Sub(ss.heard) >= timeout/2 && !ss.pinged:
			ss.ping()
			continue
		case ss.done:
			return
		case ss.asked:
			ss.asked = false
			ss.keepalive(false)
			continue
		case ss.next < len(s.txns) && s.txns[ss.next].End <= s.visible():
			ss.next++
			ss.transaction(s.txns[ss.next-1])
			continue
		}
		if ss.sent < s.visible() {
			ss.sent = s.visible()
		}
		switch {
		case s.phase == stopping && (ss.flushed >= ss.sent || s.slot.confirmed >= ss.sent):
			ss.backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("COPY 0")})
			ss.flush()
			ss.end(nil)
			return
		case s.phase == stopping && !ss.pinged: // each answer brings the next question
			ss.ping()
			continue
		case ss.flushed < ss.sent && (ss.told < ss.sent || ss.spoke) && !ss.pinged:
			ss.spoke = false
			ss.told = ss.sent
			ss.keepalive(false)
			continue
		}
		if timeout > 0 {
			at := ss.heard.Add(timeout)
			if !ss.pinged {
				at = ss.heard.Add(timeout / 2)
			}
			ss.wakeAt(at)
		}
		s.cond.Wait()
	}
}

// visible is how far a walsender may send.
func (s *Server) visible() pglogrepl.LSN {
	if s.cfg.SyncedStandby {
		return min(s.end, s.standby.end)
	}
	return s.end
}

// wakeAt has the server's condition signalled at a moment.
func (ss *session) wakeAt(at time.Time) {
	d := time.Until(at)
	if ss.waker == nil {
		ss.waker = time.AfterFunc(d, func() {
			ss.server.mu.Lock()
			defer ss.server.mu.Unlock()
			ss.server.cond.Broadcast()
		})
		return
	}
	ss.waker.Reset(d)
}

func (ss *session) ping() {
	ss.pinged = true
	ss.keepalive(true)
}

func (ss *session) keepalive(reply bool) {
	ss.buf = keepalive(ss.buf, ss.sent, ss.server.now(), reply)
	ss.write()
}

// write sends what is in buf.
func (ss *session) write() {
	s := ss.server
	buf := ss.buf
	ss.buf = nil
	s.mu.Unlock()
	n, err := ss.conn.Write(buf)
	s.mu.Lock()
	ss.written += int64(n)
	ss.buf = buf[:0]
	ss.torn = ss.torn || err != nil
	if err != nil && !ss.over {
		ss.end(nil)
	}
}

// transaction sends t. It can be cut short only by the end of the session.
func (ss *session) transaction(t *Txn) {
	s := ss.server
	rows := 0
	for i := range t.Rows {
		if !t.Rows[i].Undone {
			rows++
		}
	}
	if rows == 0 || !t.Published {
		if s.cfg.Version < 150000 { // later versions leave an empty transaction out
			ss.message(t.Commit, beginMessage(t))
			ss.message(t.End, commitMessage(t))
			ss.write()
		}
		ss.sent = t.End
		return
	}
	ss.sent = t.Commit
	ss.message(t.Commit, beginMessage(t))
	n := 0
	for i := range t.Rows {
		row := &t.Rows[i]
		if row.Undone {
			continue
		}
		if !sameColumns(ss.columns, t.columns) {
			ss.columns = t.columns
			ss.message(0, relationMessage(s.tableOID, s.cfg.Schema, s.cfg.Table, t.columns))
		}
		s.hooks.Row(row, ss.conn.Link(), ss.written+int64(len(ss.buf)))
		ss.message(row.lsn, insertMessage(s.tableOID, t.columns, row))
		if n++; n%ss.perSend == 0 {
			ss.write()
			if s.rng.IntN(8) == 0 && !ss.over {
				ss.inside()
			}
		}
		if ss.over {
			return
		}
	}
	ss.message(t.End, commitMessage(t))
	ss.write()
	ss.sent = t.End
	if s.rng.IntN(16) == 0 && s.cfg.Version >= 180000 {
		ss.message(t.End, func(b []byte) []byte { return append(b, 'A', 0, 0, 0, 1, 0, 0, 0, 1) }) // of a transaction that nobody knows
		ss.write()
	}
}

// inside sends a keepalive in the middle of a transaction. It asks for a reply as seldom
// as one that was silent for long would.
func (ss *session) inside() {
	if ask := !ss.pinged && ss.server.rng.IntN(3) == 0 && time.Since(ss.askedAt) > 2*time.Second; ask {
		ss.askedAt = time.Now()
		ss.ping()
		return
	}
	ss.keepalive(false)
}

func (ss *session) message(lsn pglogrepl.LSN, f func([]byte) []byte) {
	ss.buf = xlogData(ss.buf, lsn, ss.server.now(), f)
}

func sameColumns(a, b []Column) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
