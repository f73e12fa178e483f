package replication

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// run is a test in virtual time against a scripted server.
func run(t *testing.T, f func(t *testing.T, srv *server, s *Session, st *stream)) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		s, st := srv.open(srv.config())
		f(t, srv, s, st)
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

func next(t *testing.T, s *Session) Message {
	t.Helper()
	m, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// want calls Next for each kind and returns the last message.
func want(t *testing.T, s *Session, kinds ...Kind) (m Message) {
	t.Helper()
	for i, k := range kinds {
		if m = next(t, s); m.Kind != k {
			t.Fatalf("message %d is of kind %d, want %d", i, m.Kind, k)
		}
	}
	return m
}

// The pipe must hear that there is nothing more to read before Next blocks, or its
// open batch would wait beside an idle sink.
func TestDrainedBeforeBlocking(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		want(t, s, Drained)
		for _, wal := range []string{"one", "two"} {
			st.data(wal)
		}
		if m := want(t, s, Data); string(m.WAL) != "one" {
			t.Errorf("got %q", m.WAL)
		}
		want(t, s, Data, Drained)

		time.AfterFunc(3*time.Second, func() { st.keepalive(0x1000200, false) })
		began := time.Now()
		if m := want(t, s, Keepalive); m.WALEnd != 0x1000200 || m.ReplyRequested {
			t.Errorf("got %+v", m)
		}
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("Next blocked for %s: Drained must not be repeated by a timer", d)
		}
		want(t, s, Drained)
	})
}

// A message whose bytes come in two parts, whatever they are, is one message.
func TestPartialMessages(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		want(t, s, Drained)
		whole := frame([]byte("payload"), time.Now())
		for cut := 1; cut < len(whole); cut++ {
			st.conn.Write(whole[:cut])
			time.AfterFunc(time.Millisecond, func() { st.conn.Write(whole[cut:]) })
			if m := want(t, s, Data); string(m.WAL) != "payload" {
				t.Fatalf("cut at %d: %q", cut, m.WAL)
			}
			want(t, s, Drained)
		}
		// A row far larger than any buffer, in pieces.
		big := bytes.Repeat([]byte("x"), 3<<20)
		whole = frame(big, time.Now())
		var feeder sync.WaitGroup
		defer feeder.Wait()
		feeder.Go(func() {
			for len(whole) > 0 {
				n := min(len(whole), 50000)
				st.conn.Write(whole[:n])
				whole = whole[n:]
				pass(time.Millisecond)
			}
		})
		if m := want(t, s, Data); !bytes.Equal(m.WAL, big) {
			t.Errorf("the large row came as %d bytes", len(m.WAL))
		}
	})
}

// Wake reaches Next before it blocks, while it blocks, and while it sleeps in bulk.
func TestWake(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		want(t, s, Drained)
		s.Wake()
		s.Wake()
		want(t, s, Woken) // one token, however often it was called

		time.AfterFunc(300*time.Millisecond, s.Wake)
		began := time.Now()
		want(t, s, Woken)
		if d := time.Since(began); d != 300*time.Millisecond {
			t.Errorf("woken after %s", d)
		}

		st.data("x") // what is received comes first
		want(t, s, Data, Drained)

		s.sock.bulk = true
		time.AfterFunc(2*time.Millisecond, s.Wake)
		began = time.Now()
		want(t, s, Woken)
		if d := time.Since(began); d != 2*time.Millisecond {
			t.Errorf("woken out of the sleep after %s", d)
		}
	})
}

// No wake-up is lost, whatever the owner is doing: with a real scheduler, each Wake
// is answered before the next status would be due.
func TestWakeIsNeverLost(t *testing.T) {
	srv := newServer(t)
	s, _ := srv.open(srv.config())
	want(t, s, Drained)
	woken := make(chan struct{})
	go func() {
		for range 5000 {
			s.Wake()
			<-woken
		}
		close(woken)
	}()
	for range 5000 {
		began := time.Now()
		want(t, s, Woken)
		if d := time.Since(began); d > statusEvery/2 {
			t.Fatalf("woken after %s, by chance", d)
		}
		woken <- struct{}{}
	}
	<-woken
}

// G1: what ends or spoils the stream is never taken for silence.
func TestStreamEnds(t *testing.T) {
	pgError := func(code string) pgproto3.BackendMessage {
		return &pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: "the server's words"}
	}
	gone := &pgproto3.NoticeResponse{Severity: "WARNING", Code: "55000", Message: `übersprungen`, Routine: "LoadPublications"}
	for _, tt := range []struct {
		name string
		msg  pgproto3.BackendMessage // nil: the connection is closed
		as   error
	}{
		{"eof", nil, nil},
		{"copy done", &pgproto3.CopyDone{}, nil},
		{"command complete", &pgproto3.CommandComplete{CommandTag: []byte("COPY 0")}, nil},
		{"ready", &pgproto3.ReadyForQuery{TxStatus: 'I'}, nil},
		{"malformed", &pgproto3.CopyData{Data: []byte("w")}, nil},
		{"unknown copy data", &pgproto3.CopyData{Data: []byte("z234567890123456789012345678901234567890")}, nil},
		{"terminated", pgError("57P01"), nil},
		{"internal", pgError("XX000"), nil},
		{"publication missing before 18", pgError("42704"), new(ContinuityError)},
		{"publication missing on 18", gone, new(ContinuityError)},
		{"wal removed", pgError("58P01"), new(ContinuityError)},
		{"privilege taken", pgError("42501"), new(AuthError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
				st.data("before")
				want(t, s, Drained, Data)
				if tt.msg == nil {
					st.conn.Close()
				} else {
					st.send(&pgproto3.NoticeResponse{Severity: "NOTICE", Code: "00000", Message: "of no interest"})
					st.send(&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"})
					st.send(tt.msg)
				}
				m, err := s.Next()
				if m.Kind == Drained && err == nil {
					m, err = s.Next()
				}
				if err == nil {
					t.Fatalf("no error, but %+v", m)
				}
				if got := typeOf(err); got != typeOf(tt.as) {
					t.Errorf("%s: %v", got, err)
				}
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("a secret is in %v", err)
				}
			})
		})
	}
}

// typeOf names the class of an error as a caller tells it apart.
func typeOf(err error) string {
	switch {
	case err == nil:
		return "transient"
	case errors.As(err, new(*ContinuityError)):
		return "continuity"
	case errors.As(err, new(*SetupError)):
		return "setup"
	case errors.As(err, new(*AuthError)):
		return "auth"
	}
	for _, e := range []error{ErrSlotInUse, ErrStandby, ErrShutdown} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return "transient"
}

// A backlog is read in few large reads; traffic that keeps up is never made to wait,
// however dense.
func TestBulk(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		want(t, s, Drained)
		feed := func(rows int, age time.Duration) (reads int) {
			before := st.conn.(*pipeEnd).out.reads
			var feeder sync.WaitGroup
			feeder.Go(func() {
				for range rows {
					st.conn.Write(append(frame(begin(time.Now().Add(-age)), time.Now()), frame([]byte("I"), time.Now())...))
					pass(100 * time.Microsecond)
				}
			})
			defer feeder.Wait()
			for got := 0; got < 2*rows; {
				if next(t, s).Kind == Data {
					got++
				}
			}
			return st.conn.(*pipeEnd).out.reads - before
		}
		if reads := feed(1000, 5*time.Millisecond); reads != 1000 || s.Bulk() {
			t.Errorf("dense traffic that keeps up: %d reads, bulk %t", reads, s.Bulk())
		}
		if reads := feed(1000, time.Minute); reads > bulkReads+1+20 || !s.Bulk() {
			t.Errorf("a backlog: %d reads, bulk %t", reads, s.Bulk())
		}
		// The end of the backlog: the batch that waits for more is told within 10 ms.
		want(t, s, Drained)
		began := time.Now()
		want(t, s, Drained)
		if d := time.Since(began); d > 10*time.Millisecond || s.Bulk() {
			t.Errorf("bulk %t after %s of an empty socket", s.Bulk(), d)
		}
		// The first row that keeps up ends it, too.
		feed(1000, time.Minute)
		if feed(500, 0); s.Bulk() {
			t.Errorf("still bulk")
		}
	})
}

// The read path allocates nothing per message.
func TestNextAllocates(t *testing.T) {
	srv := newServer(t)
	s, st := srv.open(srv.config())
	row := frame(bytes.Repeat([]byte("I"), 300), time.Now())
	const runs = 2000
	st.conn.Write(bytes.Repeat(row, 2*runs))
	read := func() {
		for next(t, s).Kind != Data {
		}
	}
	read()
	if n := testing.AllocsPerRun(runs, read); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
