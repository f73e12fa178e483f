// Package simpg is a model of a Postgres primary with one outbox table and one logical
// replication slot. It speaks the wire protocol (startup, simple queries, START_REPLICATION)
// over links of [simnet], and is as forgetful, slow and mortal as the real one.
//
// What it models of the server: transactions reach a client whole, in commit order, if
// their commit lies at or above the start; the confirmed LSN of a slot is persisted late
// and falls back when the server restarts; a walsender asks for replies and gives up on a
// silent client; a fast shutdown waits until all is confirmed; a promotion or a restored
// copy of the cluster continues with other WAL.
package simpg

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// Column is a column of the outbox table.
type Column struct {
	Name string
	Type uint32 // oid
}

// Config is what does not change while a server lives.
type Config struct {
	Addr             string
	SystemID         string
	Version          int           // server_version_num
	WALSenderTimeout time.Duration // 0: never gives up
	Start            pglogrepl.LSN // where its WAL begins
	Clock            time.Duration // its clock minus ours
	CheckpointEvery  time.Duration // how often slots are persisted

	Schema, Table, Publication, Slot string
	Columns                          []Column

	// SyncedStandby has the walsender hold back what the standby has not received
	// (synchronized_standby_slots).
	SyncedStandby bool
}

// Hooks are called while the server's lock is held; they must not call back.
type Hooks struct {
	Committed func(*Txn)
	Lost      func([]*Txn) // a promotion or a restored copy does not have them
	// Status is a flush position that a client reports, before the slot takes it.
	Status  func(s Status)
	Streams func(client string) // a client has taken the slot
	Leaves  func(client string, orderly bool)
	// Row says that a row leaves on a link, as the bytes from an offset on.
	Row   func(r *Row, l *simnet.Link, offset int64)
	Down  func() // the server is down: crashed, or shut down
	Note  func(format string, args ...any)
	Fault func(format string, args ...any) // the client did what no client may do
}

// Status is a standby status update and what the server knows at this moment.
type Status struct {
	PID      int32
	Client   string // the process at the other end
	Flush    pglogrepl.LSN
	Before   pglogrepl.LSN // the slot's confirmed LSN
	AtStart  pglogrepl.LSN // the same, when the session began to stream
	Previous pglogrepl.LSN // the session's last flush position
	WALEnd   pglogrepl.LSN
}

type phase int

const (
	running  phase = iota
	stopping       // fast shutdown: waits for the walsender
	down           // nothing listens
	starting       // refuses connections
)

// Server is one cluster at one address: through crashes, promotions and restores.
type Server struct {
	cfg   Config
	hooks Hooks
	net   *simnet.Network

	mu       sync.Mutex
	cond     sync.Cond // anything below changed
	rng      *rand.Rand
	phase    phase
	boots    int // starts so far: one that is overtaken doesn't happen
	closed   bool
	sessions map[int32]*session
	nextPID  int32
	timeline int32
	switches []pglogrepl.LSN // switches[i]: where timeline i+1 ended

	wal
	catalog
	slot    slot
	standby standby
	busy    time.Time // walsenders neither send nor read before
	ticker  *time.Timer
}

// slot is a logical replication slot.
type slot struct {
	confirmed pglogrepl.LSN
	persisted pglogrepl.LSN // what a restart falls back to
	pid       int32         // who streams from it; 0: nobody
}

// catalog is what the queries of a client are answered from.
type catalog struct {
	columns     []Column // replaced, never changed: sessions and transactions keep it
	tableOID    uint32
	publication uint32
	membership  uint32 // 0: the table is not in the publication
	nextOID     uint32
}

// New starts a server.
func New(cfg Config, seed uint64, n *simnet.Network, hooks Hooks) *Server {
	s := &Server{cfg: cfg, hooks: hooks, net: n, rng: rand.New(rand.NewPCG(seed, 0x5047)), timeline: 1, nextPID: 1000,
		sessions: map[int32]*session{},
		wal:      wal{end: cfg.Start, nextXID: 700},
		catalog:  catalog{columns: cfg.Columns, tableOID: 16400, publication: 16410, membership: 16411, nextOID: 16420},
	}
	s.cond.L = &s.mu
	s.slot = slot{confirmed: cfg.Start, persisted: cfg.Start}
	s.standby.end, s.standby.confirmed = cfg.Start, cfg.Start
	n.Listen(cfg.Addr, s.serve)
	s.ticker = time.AfterFunc(s.tick(), s.checkpoint)
	return s
}

// tick jitters, so that checkpoints keep no step with anything.
func (s *Server) tick() time.Duration {
	return s.cfg.CheckpointEvery/2 + time.Duration(s.rng.Int64N(int64(s.cfg.CheckpointEvery)))
}

// checkpoint persists the slot, and lets the standby's copy of it follow.
func (s *Server) checkpoint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.phase == running {
		s.slot.persisted = s.slot.confirmed
		if !s.standby.cut {
			s.standby.confirmed = s.slot.persisted
		}
	}
	s.ticker.Reset(s.tick())
}

// Close ends every session for good.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.ticker.Stop()
	s.endSessions(nil)
}

// now is the server's clock.
func (s *Server) now() time.Time { return time.Now().Add(s.cfg.Clock) }

// Confirmed returns the slot's confirmed LSN.
func (s *Server) Confirmed() pglogrepl.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slot.confirmed
}

// WALEnd returns where the server writes next.
func (s *Server) WALEnd() pglogrepl.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Holder returns the client that holds the slot, or "".
func (s *Server) Holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss := s.sessions[s.slot.pid]; ss != nil {
		return ss.client
	}
	return ""
}

// Running says whether the server takes connections and writes.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == running
}

func (s *Server) note(format string, args ...any) { s.hooks.Note("postgres: "+format, args...) }

func (s *Server) versionString() string {
	return fmt.Sprintf("%d.%d", s.cfg.Version/10000, s.cfg.Version%10000)
}

// Sessions describes every backend, for the timeline.
func (s *Server) Sessions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, ss := range s.sessions {
		all = append(all, fmt.Sprintf("pid %d of %s, streams: %t, over: %t, sent %s, flushed %s, next %d of %d, pinged %t, done %t, label %s",
			ss.pid, ss.client, ss.pid == s.slot.pid, ss.over, ss.sent, ss.flushed, ss.next, len(s.txns), ss.pinged, ss.done, ss.conn.Link().Label()))
	}
	return all
}
