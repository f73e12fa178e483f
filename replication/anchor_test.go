package replication

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// G1: a replay begins exactly where it says, on a copy of the anchor; what it can't be copied from has its
// own words, and not those of a live slot.
func TestG1OpenCopy(t *testing.T) {
	srv := newServer(t)
	srv.set("slot", 8, "4711") // a temporary slot is in its session's hands
	s, err := OpenCopy(t.Context(), srv.config())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	if err := s.Start(t.Context(), 0x1000080); err != nil {
		t.Fatal(err)
	}
	st := <-srv.streams
	if !strings.Contains(st.start, `SLOT "walrelay_replay_4711" LOGICAL 0/1000080`) {
		t.Errorf("started by %s", st.start)
	}
	if s.Slot.Confirmed != 0x1000100 {
		t.Errorf("the copy stands at %s", s.Slot.Confirmed)
	}
}

func TestOpenCopyRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(s *server)
		class string
		text  string
	}{
		{"no anchor", func(s *server) { s.setAnswer("anchor", answer{}) }, "continuity", "walrelay setup --replay-retain"},
		{"lost", func(s *server) { s.set("slot", 4, "lost") }, "continuity", "walrelay setup --drop-anchor"},
		{"idle for too long", func(s *server) { s.set("slot", 5, "idle_timeout") }, "continuity", "idle_timeout"},
		{"no free slot", func(s *server) { s.setAnswer("copy", pgErr("53400", "all replication slots are in use")) }, "setup", "max_replication_slots"},
		{"no table in the publication", func(s *server) { s.set("catalog", 7, "f") }, "continuity", "ADD TABLE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := newServer(t)
			srv.set("slot", 8, "4711")
			tt.set(srv)
			_, err := OpenCopy(t.Context(), srv.config())
			if err == nil || typeOf(err) != tt.class || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "--accept-gap") && tt.name != "no table in the publication" {
				t.Errorf("nothing was skipped: %v", err)
			}
		})
	}
}

// The live slot may be gone, or in use: the anchor does not need it.
func TestAnchorState(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		srv.set("anchor", 2, "4096")
		srv.set("anchor", 4, "67108864", "60")
		a, err := s.Anchor(t.Context())
		want := Anchor{Slot: "walrelay_anchor", LSN: 0x1000000, WALBytes: 8388608, Headroom: 4096, XIDs: 7, Limit: 67108864, IdleTimeout: time.Minute}
		if err != nil || a != want {
			t.Errorf("got %+v, %v", a, err)
		}
		before := srv.sides
		if err := s.AdvanceAnchor(t.Context(), 0x1000100); err != nil {
			t.Error(err)
		}
		if srv.sides != before+1 {
			t.Error("the side connection was kept busy")
		}
		srv.setAnswer("advance", pgErr("55006", "is active"))
		if err := s.AdvanceAnchor(t.Context(), 0x1000100); !errors.Is(err, ErrSlotInUse) {
			t.Errorf("while it is copied: %v", err)
		}
	})
}
