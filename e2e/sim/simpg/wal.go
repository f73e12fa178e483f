package simpg

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// wal is the log: where it ends, and the transactions in it, in commit order.
type wal struct {
	end     pglogrepl.LSN
	txns    []*Txn
	open    map[*Txn]struct{}
	nextXID uint32
}

// Txn is a transaction. Its fields are set before Committed is called and fixed then.
type Txn struct {
	XID       uint32
	Commit    pglogrepl.LSN // start of its commit record
	End       pglogrepl.LSN // end of it
	Time      time.Time     // of the commit, by the server's clock
	Rows      []Row
	Other     int  // rows of tables that are not published
	Published bool // the table was in the publication

	columns []Column
	copied  bool // one COPY: its rows share WAL positions
	aborted bool
}

// Row is an inserted outbox row.
type Row struct {
	Values map[string][]byte // by column; a missing one or nil is NULL
	Undone bool              // inserted behind a savepoint that was rolled back
	Tag    any               // the caller's

	lsn pglogrepl.LSN
}

// standby is a physical standby that follows the primary, and its copy of the slot.
type standby struct {
	cut       bool // it receives nothing
	end       pglogrepl.LSN
	confirmed pglogrepl.LSN
}

// record appends n bytes of WAL and returns where they begin.
func (s *Server) record(n int) pglogrepl.LSN {
	at := s.end
	s.end += pglogrepl.LSN((n + 7) &^ 7)
	return at
}

// Begin writes a transaction's rows into the WAL; it is open until Commit or Abort. It
// returns nil while the server doesn't take writes.
func (s *Server) Begin(rows []Row, other int) *Txn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != running {
		return nil
	}
	t := &Txn{XID: s.nextXID, Rows: rows, Other: other, copied: s.rng.IntN(3) == 0}
	s.nextXID++
	at := s.end
	for i := range rows {
		size := 64
		for _, v := range rows[i].Values {
			size += len(v)
		}
		if lsn := s.record(size); !t.copied || i%40 == 0 {
			at = lsn
		}
		rows[i].lsn = at
	}
	s.record(80 * other)
	if s.open == nil {
		s.open = map[*Txn]struct{}{}
	}
	s.open[t] = struct{}{}
	return t
}

// Commit ends t. It reports false if a crash has aborted it.
func (s *Server) Commit(t *Txn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.aborted || s.phase != running {
		delete(s.open, t)
		t.aborted = true
		return false
	}
	delete(s.open, t)
	t.Commit = s.record(48 + 8*s.rng.IntN(4))
	t.End = s.end
	t.Time = s.now().Truncate(time.Microsecond)
	t.Published, t.columns = s.membership != 0, s.columns
	s.txns = append(s.txns, t)
	s.hooks.Committed(t)
	s.grown()
	return true
}

// Abort rolls t back.
func (s *Server) Abort(t *Txn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, t)
	t.aborted = true
	if s.phase != running {
		return
	}
	s.record(40)
	s.grown()
}

// Write is traffic that concerns no outbox: n bytes of WAL.
func (s *Server) Write(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != running {
		return
	}
	s.record(n)
	s.grown()
}

// grown tells the walsenders that there is more WAL, and the standby, a little later.
func (s *Server) grown() {
	s.cond.Broadcast()
	end, timeline := s.end, s.timeline
	time.AfterFunc(time.Duration(s.rng.Int64N(int64(20*time.Millisecond))), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timeline == timeline && !s.closed && !s.standby.cut {
			s.standby.end = max(s.standby.end, end)
			s.cond.Broadcast()
		}
	})
}

// AddColumn changes the table; the client sees it in the next Relation message.
func (s *Server) AddColumn(c Column) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != running {
		return
	}
	s.columns = append(s.columns[:len(s.columns):len(s.columns)], c)
	s.record(200)
	s.grown()
}
