package relay

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// server is a session as far as the start path looks at it.
func server(systemID string, confirmed, end pglogrepl.LSN) *replication.Session {
	return &replication.Session{Ground: replication.Ground{
		Server: replication.Server{SystemID: systemID, Timeline: 1, WALEnd: end},
		Slot:   replication.Slot{Confirmed: confirmed},
	}}
}

func known(systemID string, safe pglogrepl.LSN) checkpoint.Position {
	return checkpoint.Position{SystemID: systemID, Timeline: 1, Slot: "walrelay", Safe: safe}
}

// G1: what was delivered must lie in the WAL that the server has. A server that ends
// before it would be followed without a word until its WAL has grown past the position,
// and rows that commit meanwhile would be taken for delivered ones.
func TestG1PositionBeyondTheWAL(t *testing.T) {
	for safe, ok := range map[pglogrepl.LSN]bool{0x900: true, 0x1000: true, 0x1008: false} {
		err := continues(context.Background(), replication.Config{Slot: "walrelay"}, known("1", safe), &server("1", 0x500, 0x1000).Ground)
		if refused := errors.As(err, new(*replication.ContinuityError)); refused == ok {
			t.Errorf("position %s, WAL end 0/1000: %v", safe, err)
		}
	}
}

// G1: a slot that moved while nothing was saved yet was moved by somebody else, unless
// there is no store, and another relay may have confirmed more.
func TestG1SlotMovedBeforeTheFirstSave(t *testing.T) {
	for _, tt := range []struct {
		name   string
		store  bool
		server *replication.Session
		ok     bool
	}{
		{"fallen back", true, server("1", 0x500, 0x2000), true},
		{"moved", true, server("1", 0x900, 0x2000), false},
		{"moved, no store", false, server("1", 0x900, 0x2000), true},
		{"another cluster", true, server("2", 0x500, 0x2000), false},
		{"another cluster, no store", false, server("2", 0x900, 0x2000), false},
	} {
		cfg := Config{Postgres: replication.Config{Slot: "walrelay"}}
		if tt.store {
			cfg.Store = checkpoint.OpenFile(filepath.Join(t.TempDir(), "checkpoint"))
		}
		r := New(cfg)
		r.track.start(known("1", 0x800))
		r.known = true
		pos, err := r.position(context.Background(), tt.server)
		if err == nil {
			_, err = newResume(pos, tt.server.Slot.Confirmed)
		}
		if (err == nil) != tt.ok || err != nil && !fatal(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// G8: a position that could not be saved because its session was lost says nothing of
// the next session.
func TestG8ReadyAgainAfterALostSession(t *testing.T) {
	client, err := sink.NewClient(sink.ClientConfig{Brokers: []string{"localhost:9092"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	producer, err := sink.NewProducer(sink.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Config{Producer: producer})
	r.state.up()
	r.state.unsaved(errors.New("disk full"))
	if ok, _ := r.Ready(); ok {
		t.Error("ready although nothing can be saved")
	}
	r.state.lost(errors.New("gone"))
	r.state.up()
	if _, why := r.Ready(); why != "not asked Kafka yet" {
		t.Error("not ready:", why)
	}
}
