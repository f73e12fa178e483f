package replication

import (
	"context"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// costs is how much f allocates.
func costs(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func head(kind byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{kind}, n) }

// failure reads until the stream fails, or somebody wakes the reader.
func failure(s *Session) error {
	for {
		if m, err := s.Next(); err != nil || m.Kind == Woken {
			return err
		}
	}
}

// G7: a length is only a claim: what never comes costs next to nothing, and what can't be
// Postgres' ends the session, as does a server that says nothing without end, or things in
// an order that the protocol does not know.
func TestG7HostileStream(t *testing.T) {
	notice, _ := (&pgproto3.NoticeResponse{Severity: "NOTICE", Code: "00000", Message: "n"}).Encode(nil)
	rows, _ := (&pgproto3.RowDescription{}).Encode(nil)
	auth, _ := (&pgproto3.AuthenticationCleartextPassword{}).Encode(nil)
	giant, _ := (&pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX000", Message: strings.Repeat("x", 1<<20)}).Encode(nil)
	for _, c := range []struct {
		name, says string
		wire       []byte
		cost       uint64
	}{
		{"a length of two gigabytes", "not Postgres' protocol", head('d', 0x7fffffff), 1 << 20},
		{"a negative length", "not Postgres' protocol", head('d', 0xffffffff), 1 << 20},
		{"a gigabyte that never comes", "", head('d', 1<<30), 8 << 20},
		{"an error of a gigabyte that never comes", "", head('E', 1<<30), 8 << 20},
		{"an error of a megabyte", "XX000", giant, 16 << 20},
		{"notices without end", "in a row that say nothing", []byte(strings.Repeat(string(notice), maxNoise+1)), 32 << 20},
		{"rows in the stream", "unexpected message", rows, 1 << 20},
		{"a request for the password", "unexpected message", auth, 1 << 20},
		{"an unknown message", "unexpected message", head('\x00', 4), 1 << 20},
		{"copy data without content", "stream", head('d', 4), 1 << 20},
		{"a keepalive that is cut", "stream", append(head('d', 8), "k123"...), 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := newServer(t)
			s, st := srv.open(srv.config())
			var err error
			cost := costs(func() {
				st.conn.Write(c.wire)
				if c.says == "" {
					defer time.AfterFunc(300*time.Millisecond, s.Wake).Stop()
				}
				err = failure(s)
			})
			if err == nil && c.says == "" { // it may still come
			} else if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%.200v", err)
			}
			if cost > c.cost+4*uint64(len(c.wire)) {
				t.Errorf("it cost %d bytes", cost)
			}
		})
	}
}

// G7: the same for the statements beside the stream.
func TestG7HostileAnswers(t *testing.T) {
	wide := strings.Repeat("x", maxAnswer+1)
	srv := newServer(t)
	s, _ := srv.open(srv.config())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	srv.setAnswer("side position", answer{row: []any{wide}})
	cost := costs(func() {
		if _, err := s.WALPosition(ctx); err == nil {
			t.Error("an answer of more than maxAnswer was taken")
		}
	})
	if cost > 8*maxAnswer { // the script's own copies
		t.Errorf("it cost %d bytes", cost)
	}
	srv.setAnswer("side position", answer{row: []any{"0/2000000"}})
	if _, err := s.WALPosition(ctx); err != nil {
		t.Errorf("the next one: %v", err)
	}
}
