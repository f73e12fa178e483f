package replication

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walrelay/walrelay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server is a scripted Postgres: it speaks the protocol, and answers our
// statements, by the name in their comment, from a table that a test changes.
type server struct {
	t       *testing.T
	streams chan *stream // one for each START_REPLICATION
	mute    atomic.Bool  // requests for a sign of life stay unanswered

	mu      sync.Mutex
	answers map[string]answer // under "side NAME" what only the side connection gets
	asked   []string          // names of the statements, and replication commands
	sides   int               // ordinary connections that were opened
	conns   []net.Conn
	done    sync.WaitGroup
}

// answer is a row (nil values are NULL), no row (nil), an error, or none at all.
type answer struct {
	row    []any
	err    *pgproto3.ErrorResponse
	silent bool
}

const walsenderPID = 4711

func newServer(t *testing.T) *server {
	s := &server{t: t, streams: make(chan *stream, 8), answers: map[string]answer{
		"server":    {row: []any{"150018", "f", "logical", "10", "60000", fmt.Sprint(walsenderPID), "appdb", clockNow}},
		"slot":      {row: []any{"pgoutput", "logical", "appdb", "f", "reserved", "", "0/1000000", "0/1000100", nil, "", ""}},
		"catalog":   {row: []any{"16400", "t", "f", "16390", "r", "p", "16401", "t", nil, `["id","payload"]`, columnsJSON, "f", clockNow, "700"}},
		"holder":    {row: []any{fmt.Sprint(walsenderPID), clockNow}},
		"walsender": {row: []any{"Activity"}},
		"position":  {row: []any{"0/2000000"}},
		"marker":    {row: []any{"0/2000040"}},
		"headroom":  {row: []any{"123456"}},
		"snapshot":  {row: []any{"4294967301", "0/2000000"}},
		"anchor":    {row: []any{"0/1000000", "8388608", "-1", "7", "-1", "0"}},
		"copy":      {row: []any{"0/1000000"}},
		"advance":   {row: []any{"0/1000100"}},
		"patience":  {},
		"IDENTIFY":  {row: []any{"7000000000000000001", "1", "0/1800000", "appdb"}},
		"START":     {},
	}}
	t.Cleanup(s.close)
	return s
}

const columnsJSON = `[{"name":"id","type":25,"typename":"text","generated":false},{"name":"payload","type":3802,"typename":"jsonb","generated":false}]`

// clockNow stands for the server's clock at the time of the answer.
const clockNow = "\x00clock"

// set replaces an answer's row from column at on.
func (s *server) set(name string, at int, values ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answers[name]
	a.row = append([]any(nil), a.row...)
	copy(a.row[at:], values)
	s.answers[name] = a
}

func (s *server) setAnswer(name string, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = a
}

func (s *server) close() {
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

// config dials the server over memory, under a name that is no unix socket.
func (s *server) config() Config {
	return Config{
		URL:   "postgres://relay:secret@127.0.0.1:5432/appdb?sslmode=disable",
		Table: Table{"public", "outbox_event"}, Publication: "walrelay", Slot: "walrelay",
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			client, server := newPipe()
			s.accept(server)
			return client, nil
		},
	}
}

func (s *server) accept(c net.Conn) {
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.mu.Unlock()
	s.done.Go(func() {
		defer c.Close()
		s.serve(c)
	})
}

func (s *server) serve(c net.Conn) {
	back := pgproto3.NewBackend(c, c)
	msg, err := back.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := msg.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	s.mu.Lock()
	if startup.Parameters["replication"] == "" {
		s.sides++
	}
	deny := s.answers["startup"].err
	s.mu.Unlock()
	if deny != nil {
		back.Send(deny)
		back.Flush()
		return
	}
	back.Send(&pgproto3.AuthenticationOk{})
	back.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.18"})
	back.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	back.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for back.Flush() == nil {
		msg, err := back.Receive()
		if err != nil {
			return
		}
		q, ok := msg.(*pgproto3.Query)
		if !ok {
			return
		}
		if s.answer(back, q.String, startup.Parameters["replication"] == "") {
			s.stream(c, back, q.String)
			return
		}
	}
}

// answer reports whether the statement began a stream.
func (s *server) answer(back *pgproto3.Backend, sql string, side bool) (started bool) {
	name := strings.Fields(sql)[0]
	if rest, ok := strings.CutPrefix(sql, "/* walrelay: "); ok {
		name, _, _ = strings.Cut(rest, " ")
	}
	name, _, _ = strings.Cut(name, "_")
	s.mu.Lock()
	s.asked = append(s.asked, name)
	a, known := s.answers[name]
	if other, ok := s.answers["side "+name]; ok && side {
		a = other
	}
	s.mu.Unlock()
	switch {
	case !known:
		back.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42601", Message: "unscripted: " + sql})
	case a.silent:
		return false
	case a.err != nil:
		back.Send(a.err)
	case name == "START":
		back.Send(&pgproto3.CopyBothResponse{})
		back.Flush()
		return true
	default:
		fields := make([]pgproto3.FieldDescription, len(a.row))
		values := make([][]byte, len(a.row))
		for i, v := range a.row {
			fields[i] = pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: 25, TypeModifier: -1}
			if v == clockNow {
				v = fmt.Sprint(time.Now().UnixMicro())
			}
			if v != nil {
				values[i] = []byte(v.(string))
			}
		}
		back.Send(&pgproto3.RowDescription{Fields: fields})
		if a.row != nil {
			back.Send(&pgproto3.DataRow{Values: values})
		}
		back.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	}
	back.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return false
}

// stream is the server's side of a started replication.
type stream struct {
	conn   net.Conn
	start  string // the command
	status chan status
	ended  chan struct{} // closed when the client has said goodbye or is gone
}

// status is a standby status update.
type status struct {
	write, flush, apply pglogrepl.LSN
	ask                 bool
	at                  time.Time
}

func (s *server) stream(c net.Conn, back *pgproto3.Backend, start string) {
	st := &stream{conn: c, start: start, status: make(chan status, 100000), ended: make(chan struct{})}
	defer close(st.ended)
	s.streams <- st
	for {
		msg, err := back.Receive()
		if err != nil {
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			if len(msg.Data) != 34 || msg.Data[0] != 'r' {
				s.t.Errorf("unexpected message %x", msg.Data)
				return
			}
			lsn := func(i int) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(msg.Data[i:])) }
			u := status{lsn(1), lsn(9), lsn(17), msg.Data[33] == 1, time.Now()}
			st.status <- u
			if u.ask && !s.mute.Load() {
				st.keepalive(0x1000200, false)
			}
		case *pgproto3.CopyDone:
			for _, m := range []pgproto3.BackendMessage{
				&pgproto3.CopyDone{}, &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
			} {
				st.send(m)
			}
			return
		case *pgproto3.Terminate:
			return
		default:
			s.t.Errorf("unexpected message %T", msg)
			return
		}
	}
}

func (st *stream) send(m pgproto3.BackendMessage) {
	b, err := m.Encode(nil)
	if err != nil {
		panic(err)
	}
	st.conn.Write(b)
}

// frame is a CopyData message with an XLogData that was sent at t.
func frame(wal []byte, t time.Time) []byte {
	b := append([]byte{'w'}, make([]byte, 24)...)
	binary.BigEndian.PutUint64(b[17:], uint64(t.UnixMicro()-y2k))
	b, err := (&pgproto3.CopyData{Data: append(b, wal...)}).Encode(nil)
	if err != nil {
		panic(err)
	}
	return b
}

// begin is a pgoutput Begin message of a transaction that was committed at t.
func begin(t time.Time) []byte {
	b := append([]byte{'B'}, make([]byte, 20)...)
	binary.BigEndian.PutUint64(b[9:], uint64(t.UnixMicro()-y2k))
	return b
}

func (st *stream) data(wal string) { st.conn.Write(frame([]byte(wal), time.Now())) }

func (st *stream) keepalive(end pglogrepl.LSN, ask bool) {
	b := make([]byte, 18)
	b[0] = 'k'
	binary.BigEndian.PutUint64(b[1:], uint64(end))
	binary.BigEndian.PutUint64(b[9:], uint64(time.Now().UnixMicro()-y2k))
	if ask {
		b[17] = 1
	}
	st.send(&pgproto3.CopyData{Data: b})
}

// open starts a session against s, and returns both sides of its stream. The
// session is closed when the test ends.
func (s *server) open(cfg Config) (*Session, *stream) {
	s.t.Helper()
	sess, err := Open(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	st := <-s.streams
	s.t.Cleanup(func() {
		sess.broken = true
		sess.Close(context.Background())
	})
	return sess, st
}
