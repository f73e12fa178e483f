package simpg

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// session is one backend process. Its fields are guarded by Server.mu.
type session struct {
	server  *Server
	conn    *simnet.Conn
	backend *pgproto3.Backend
	pid     int32
	client  string
	stream  bool // replication=database

	over bool   // it has to end
	last *fatal // and say this first
	torn bool   // a message was cut short: nothing may follow it
	walsender
}

// fatal is an error that ends a session.
type fatal struct{ code, message string }

var (
	errTerminated = &fatal{"57P01", "terminating connection due to administrator command"}
	errStopping   = &fatal{"57P03", "the database system is shutting down"}
	errStarting   = &fatal{"57P03", "the database system is starting up"}
)

// serve is the life of a connection.
func (s *Server) serve(conn *simnet.Conn) {
	ss := &session{server: s, conn: conn, backend: pgproto3.NewBackend(conn, conn), client: conn.Link().From}
	defer ss.exit()
	if !ss.startup() {
		return
	}
	for {
		m, err := ss.backend.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			if !ss.query(m.String) {
				return
			}
		case *pgproto3.Terminate:
			return
		default:
			s.hooks.Fault("postgres: unexpected message %T", m)
			return
		}
	}
}

func (ss *session) startup() bool {
	s := ss.server
	m, err := ss.backend.ReceiveStartupMessage()
	if err != nil {
		return false
	}
	start, ok := m.(*pgproto3.StartupMessage)
	if !ok {
		if _, cancel := m.(*pgproto3.CancelRequest); !cancel {
			s.hooks.Fault("postgres: unexpected startup message %T", m)
		}
		return false
	}
	ss.stream = start.Parameters["replication"] == "database"
	s.mu.Lock()
	defer s.mu.Unlock()
	var refusal *fatal
	switch {
	case s.closed, s.phase == down:
		return false
	case s.phase == stopping:
		refusal = errStopping
	case s.phase == starting:
		refusal = errStarting
	}
	if refusal != nil {
		ss.say(refusal)
		return false
	}
	s.nextPID += int32(1 + s.rng.IntN(5))
	ss.pid = s.nextPID
	s.sessions[ss.pid] = ss
	if ss.stream {
		ss.conn.Link().SetLabel("stream")
	} else {
		ss.conn.Link().SetLabel("side")
	}
	ss.backend.Send(&pgproto3.AuthenticationOk{})
	ss.backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: s.versionString()})
	ss.backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	ss.backend.Send(&pgproto3.BackendKeyData{ProcessID: uint32(ss.pid), SecretKey: []byte{1, 2, 3, 4}})
	ss.backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return ss.flush()
}

// flush sends without the lock, which its caller holds. It reports whether the session
// may go on.
func (ss *session) flush() bool {
	ss.server.mu.Unlock()
	err := ss.backend.Flush()
	ss.server.mu.Lock()
	return err == nil && !ss.over
}

func (ss *session) say(f *fatal) {
	ss.backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: f.code, Message: f.message})
	ss.flush()
}

// exit is the end of the backend: it frees what it held.
func (ss *session) exit() {
	s := ss.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss.last != nil && !ss.torn {
		ss.conn.SetWriteDeadline(time.Now().Add(time.Second))
		ss.say(ss.last)
	}
	delete(s.sessions, ss.pid)
	if ss.pid != 0 && s.slot.pid == ss.pid {
		s.slot.pid = 0
		s.note("pid %d has freed the slot, confirmed %s", ss.pid, s.slot.confirmed)
	}
	s.cond.Broadcast()
}

// endSessions makes every session end, and say why if there is a reason.
func (s *Server) endSessions(why *fatal) {
	for _, ss := range s.sessions {
		ss.end(why)
	}
	s.cond.Broadcast()
}

// end makes the session end: at once if it waits for its client.
func (ss *session) end(why *fatal) {
	ss.over = true
	ss.last = why
	ss.conn.SetReadDeadline(time.Unix(1, 0))
	ss.conn.SetWriteDeadline(time.Unix(1, 0))
	ss.server.cond.Broadcast()
}

var startReplication = regexp.MustCompile(`^START_REPLICATION SLOT "?(\w+)"? LOGICAL (\S+) \((.*)\)$`)

// query answers one simple query. It reports whether the session goes on.
func (ss *session) query(sql string) bool {
	s := ss.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sql = strings.TrimSuffix(strings.TrimSpace(sql), ";")
	if m := startReplication.FindStringSubmatch(sql); m != nil && ss.stream {
		from, err := pglogrepl.ParseLSN(m[2])
		if err != nil || m[1] != s.cfg.Slot {
			s.hooks.Fault("postgres: %s", sql)
			return false
		}
		return ss.replicate(from)
	}
	columns, row, errResponse := s.answer(ss, sql)
	switch {
	case errResponse != nil:
		ss.backend.Send(errResponse)
	case columns == nil:
		s.hooks.Fault("postgres: unknown query: %s", sql)
		return false
	default:
		ss.backend.Send(describe(columns))
		tag := "SELECT 0"
		if row != nil {
			ss.backend.Send(&pgproto3.DataRow{Values: row})
			tag = "SELECT 1"
		}
		ss.backend.Send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
	}
	ss.backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return ss.flush()
}

func describe(columns []string) *pgproto3.RowDescription {
	d := &pgproto3.RowDescription{}
	for _, name := range columns {
		d.Fields = append(d.Fields, pgproto3.FieldDescription{Name: []byte(name), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1})
	}
	return d
}

func sqlError(code, routine, format string, args ...any) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Routine: routine, Message: fmt.Sprintf(format, args...)}
}
