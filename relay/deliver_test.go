package relay

import (
	"errors"
	"testing"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// G3: after a batch that failed the sink is never idle again. Otherwise the reader would
// take a keepalive that comes before it has looked up for a position past the batch.
func TestG3AFailedBatchKeepsTheSink(t *testing.T) {
	client, err := sink.NewClient(sink.ClientConfig{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	producer, err := sink.NewProducer(sink.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{Relay: New(Config{Producer: producer, BufferBytes: 1 << 20}), link: link{pg: &replication.Session{}, poked: make(chan struct{}, 1)},
		free: make(chan struct{}, 1), work: make(chan *batch, 1), delivered: make(chan struct{}),
		broken: t.Context()}
	b := newBatch(1 << 10)
	b.reset(checkpoint.Position{Safe: 0x100})
	poison := &decode.PoisonError{EventID: "e", Commit: 0x200, Reason: "broken headers"}
	b.Events = append(b.Events, decode.Event{Topic: "t", Commit: 0x200, Poison: poison})
	s.work <- b
	close(s.work)
	func() {
		defer func() { recover() }() // this session has no connection to wake the reader of
		s.deliver(t.Context())
	}()
	<-s.delivered
	if failed := s.takeFailed(); !errors.As(failed, new(*decode.PoisonError)) {
		t.Errorf("the session ends with %v", failed)
	}
	if s.sinkIdle() {
		t.Error("the sink is idle behind a batch that failed")
	}
	if delivered, _ := s.track.positions(); delivered.Safe != 0x100 {
		t.Errorf("delivered up to %s", delivered.Safe)
	}
}
