package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

func pgErr(code, message string) answer {
	return answer{err: &pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: message}}
}

// G1: START_REPLICATION succeeds in every state in which rows would be skipped in
// silence. So what is wrong is found before it, has its own error, and that says
// what to do.
func TestG1ChecksBeforeStart(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(s *server)
		class string
		text  string // in the message, besides
	}{
		{"standby", func(s *server) { s.set("server", 1, "t") }, ErrStandby.Error(), "promotion"},
		{"wal_level", func(s *server) { s.set("server", 2, "replica") }, "setup", "ALTER SYSTEM SET wal_level"},
		{"no slots", func(s *server) { s.set("server", 3, "0") }, "setup", "max_replication_slots"},
		{"no slot", func(s *server) { s.setAnswer("slot", answer{row: nil}) }, "continuity", "walrelay setup"},
		{"other plugin", func(s *server) { s.set("slot", 0, "test_decoding") }, "continuity", "test_decoding"},
		{"physical", func(s *server) { s.set("slot", 0, nil, "physical", nil) }, "continuity", "physical"},
		{"other database", func(s *server) { s.set("slot", 2, "other") }, "continuity", `"other"`},
		{"two-phase", func(s *server) { s.set("slot", 3, "t") }, "continuity", "two-phase"},
		{"lost", func(s *server) { s.set("slot", 4, "lost") }, "continuity", "invalidated"},
		{"invalidated", func(s *server) { s.set("slot", 5, "idle_timeout") }, "continuity", "idle_timeout"},
		{"beyond the WAL", func(s *server) { s.set("slot", 7, "0/9000000") }, "continuity", "restored"},
		{"in use", func(s *server) { s.set("slot", 8, "99", "other relay", "10.0.0.7") }, ErrSlotInUse.Error(), "pid 99, other relay, 10.0.0.7"},
		{"no table", func(s *server) { s.set("catalog", 3, nil, nil, nil) }, "continuity", "--create-table"},
		{"view", func(s *server) { s.set("catalog", 4, "v") }, "continuity", "not a table"},
		{"unlogged", func(s *server) { s.set("catalog", 5, "u") }, "continuity", "SET LOGGED"},
		{"no publication", func(s *server) { s.set("catalog", 0, nil, nil, nil) }, "continuity", "walrelay setup"},
		{"no inserts", func(s *server) { s.set("catalog", 1, "f") }, "continuity", "ALTER PUBLICATION walrelay SET (publish = 'insert')"},
		{"not in it", func(s *server) { s.set("catalog", 7, "f") }, "continuity", "ALTER PUBLICATION walrelay ADD TABLE public.outbox_event"},
		{"partitions", func(s *server) { s.set("catalog", 4, "p", "p", "16401", "f") }, "continuity", "publish_via_partition_root"},
		{"row filter", func(s *server) { s.set("catalog", 8, "(id > 1)") }, "continuity", "row filter"},
		{"dropped meanwhile", func(s *server) { s.setAnswer("START", pgErr("42704", "no such slot")) }, "continuity", "walrelay setup"},
		{"invalid at START", func(s *server) { s.setAnswer("START", pgErr("55000", "can no longer")) }, "continuity", "can no longer"},
		{"taken meanwhile", func(s *server) { s.setAnswer("START", pgErr("55006", "active for PID 7")) }, ErrSlotInUse.Error(), "PID 7"},
		{"taken right after", func(s *server) { s.set("holder", 0, "99") }, "transient", "no longer held"},
		{"starting up", func(s *server) { s.setAnswer("startup", pgErr("57P03", "starting up")) }, ErrShutdown.Error(), "starting up"},
		{"too many", func(s *server) { s.setAnswer("startup", pgErr("53300", "exceeds max_wal_senders (currently 10)")) }, "transient", "max_wal_senders"},
		{"no senders", func(s *server) { s.setAnswer("startup", pgErr("53300", "exceeds max_wal_senders (currently 0)")) }, "setup", "ALTER SYSTEM SET max_wal_senders"},
		{"password", func(s *server) { s.setAnswer("startup", pgErr("28P01", "password authentication failed")) }, "auth", "password"},
		{"pg_hba", func(s *server) { s.setAnswer("startup", pgErr("28000", "no pg_hba.conf entry")) }, "auth", "pg_hba.conf"},
		{"no right", func(s *server) { s.setAnswer("startup", pgErr("42501", "must be superuser or replication role")) }, "auth", "REPLICATION"},
		{"no database", func(s *server) { s.setAnswer("startup", pgErr("3D000", "does not exist")) }, "setup", "--postgres-url"},
		{"bad parameter", func(s *server) { s.setAnswer("startup", pgErr("42704", "unrecognized parameter")) }, "setup", "--postgres-url"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				tt.set(srv)
				_, err := Open(t.Context(), srv.config())
				if err == nil {
					t.Fatal("no error")
				}
				if typeOf(err) != tt.class || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s: %v", typeOf(err), err)
				}
				if started := slices.Contains(srv.asked, "START"); started != strings.Contains(tt.name, "meanwhile") &&
					started != strings.Contains(tt.name, "START") && tt.name != "taken right after" {
					t.Errorf("asked %v", srv.asked)
				}
				if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
					t.Errorf("not a line for a log: %q", err)
				}
			})
		})
	}
}

// G8: a link that falls silent between connecting and the stream is given up, at every
// step.
func TestG8OpenOnASilentLink(t *testing.T) {
	for _, step := range []string{"server", "slot", "IDENTIFY", "catalog", "START", "holder"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				srv.setAnswer(step, answer{silent: true})
				began := time.Now()
				_, err := Open(t.Context(), srv.config())
				if err == nil || typeOf(err) != "transient" {
					t.Errorf("%s: %v", typeOf(err), err)
				}
				if d := time.Since(began); d > openTimeout+20*time.Second {
					t.Errorf("given up after %s", d)
				}
			})
		})
	}
	t.Run("TIMELINE_HISTORY", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := newServer(t)
			srv.setAnswer("TIMELINE", answer{silent: true})
			if _, err := SwitchPoint(t.Context(), srv.config(), 1, 2); err == nil || typeOf(err) != "transient" {
				t.Errorf("%s: %v", typeOf(err), err)
			}
		})
	})
}

// What Open found is what a session says of itself; the slot as it was read once it
// was taken, for another relay may have confirmed more until then.
func TestOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		srv.set("catalog", 6, "0")
		srv.set("catalog", 9, `["id"]`)
		srv.setAnswer("side slot", answer{row: append([]any(nil), srv.answers["slot"].row...)})
		srv.set("side slot", 7, "0/1000180", fmt.Sprint(walsenderPID))
		cfg := srv.config()
		cfg.Table, cfg.Publication, cfg.Slot = Table{`We"ird`, "o'utbox"}, `Pub'"x`, "0slot"
		s, st := srv.open(cfg)
		if want := `START_REPLICATION SLOT "0slot" LOGICAL 0/0 (proto_version '1', publication_names '"Pub''""x"', messages 'false')`; st.start != want {
			t.Errorf("started with %s", st.start)
		}
		if srv := (Server{"7000000000000000001", 1, 0x1800000, 150018, time.Minute, "appdb"}); s.Server != srv {
			t.Errorf("got %+v", s.Server)
		}
		if s.Slot != (Slot{Confirmed: 0x1000180, Restart: 0x1000000}) || s.Catalog != (Catalog{16400, 0, 16390, 700}) || s.PID != walsenderPID {
			t.Errorf("got %+v %+v %d", s.Slot, s.Catalog, s.PID)
		}
		if len(s.Columns) != 1 || s.Columns[0] != (Column{"id", 25, "text"}) {
			t.Errorf("columns %+v", s.Columns)
		}
		if len(s.Warnings) != 2 || !strings.Contains(s.Warnings[0], "hides payload") || !strings.Contains(s.Warnings[1], "more than") {
			t.Errorf("warnings %q", s.Warnings)
		}
	})
}

// G1: a table or publication that was replaced, left or narrowed while it was
// streamed is told from one that nobody writes to.
func TestG1Verify(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(s *server)
		text string // "": nothing to complain about
	}{
		{"unchanged", func(s *server) {}, ""},
		{"column added", func(s *server) {
			s.set("catalog", 9, `["id","payload","more"]`, strings.Replace(columnsJSON, "]", `,{"name":"more","type":25,"typename":"text","generated":false}]`, 1))
		}, ""},
		{"table replaced", func(s *server) { s.set("catalog", 3, "17000") }, "replaced"},
		{"publication replaced", func(s *server) { s.set("catalog", 0, "17000") }, "replaced"},
		{"left and came back", func(s *server) { s.set("catalog", 6, "17000") }, "came back"},
		{"left", func(s *server) { s.set("catalog", 7, "f") }, "does not hold"},
		{"publication gone", func(s *server) { s.set("catalog", 0, nil) }, "does not exist"},
		{"filter", func(s *server) { s.set("catalog", 8, "(id > 1)") }, "row filter"},
		{"column list", func(s *server) { s.set("catalog", 9, `["id"]`) }, "hides payload"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
				tt.set(srv)
				err := s.Verify(t.Context())
				if tt.text == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if !errors.As(err, new(*ContinuityError)) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// G8: the side connection is made again when it is lost, and not hammered when it
// can't be; what it can't answer is transient.
func TestG8SideConnection(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		for name, call := range map[string]func(context.Context) error{
			"verify": s.Verify, "holds": s.HoldsSlot,
			"marker":   func(ctx context.Context) error { _, err := s.Marker(ctx); return err },
			"position": func(ctx context.Context) error { _, err := s.WALPosition(ctx); return err },
			"headroom": func(ctx context.Context) error { _, _, err := s.Headroom(ctx); return err },
		} {
			if err := call(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		srv.conns[1].Close()
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("after the connection was lost: %v", err)
		}
		srv.setAnswer("startup", pgErr("57P03", "shutting down"))
		srv.conns[2].Close()
		before := srv.sides
		for range 1000 {
			if err := s.Verify(t.Context()); !errors.Is(err, ErrShutdown) {
				t.Fatalf("got %v", err)
			}
			pass(10 * time.Millisecond)
		}
		if n := srv.sides - before; n < 3 || n > 12 {
			t.Errorf("%d attempts to connect in 10 s", n)
		}
		srv.setAnswer("startup", answer{})
		pass(sideBackoff)
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("when the server is back: %v", err)
		}
		srv.set("holder", 0, nil)
		if err := s.HoldsSlot(t.Context()); err == nil || typeOf(err) != "transient" {
			t.Errorf("when nobody holds the slot: %v", err)
		}
	})
}

// G5: a graceful end tells the server what is confirmed, and waits until it knows.
func TestG5CloseConfirms(t *testing.T) {
	t.Run("answered", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			forTime(t, s, time.Second)
			st.data("not read any more")
			s.Confirm(slotConfirmed + 64)
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			<-st.ended
			all := st.got()
			if u := all[len(all)-1]; u.flush != slotConfirmed+64 {
				t.Errorf("the last status is %+v", u)
			}
		})
	})
	t.Run("no answer", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			st.conn.(*pipeEnd).out.change(func() { st.conn.(*pipeEnd).out = newFlow() }) // the server's bytes get lost
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			if err := s.Close(ctx); err == nil || time.Since(began) != 3*time.Second {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		})
	})
	t.Run("failed before", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			st.conn.Close()
			if err := follow(t.Context(), s); err == nil {
				t.Fatal("no error")
			}
			if err := s.Close(t.Context()); err != nil {
				t.Errorf("nothing to confirm: %v", err)
			}
			s.Wake()
			s.Confirm(slotConfirmed + 1)
		})
	})
}

func TestSwitchPoint(t *testing.T) {
	history := []byte("1\t0/3000000\tno recovery target specified\n\n2\t0/5000A28\tno recovery target specified\n")
	for from, want := range map[int32]string{1: "0/3000000", 2: "0/5000A28"} {
		if lsn, err := switchPoint(history, from, 3); err != nil || lsn.String() != want {
			t.Errorf("from %d: %s, %v", from, lsn, err)
		}
	}
	if _, err := switchPoint(history, 4, 3); !errors.As(err, new(*ContinuityError)) {
		t.Errorf("a timeline that is no ancestor: %v", err)
	}
}
