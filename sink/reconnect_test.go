package sink

import (
	"bufio"
	"net"
	"runtime"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/heartbeat"
	"go.uber.org/goleak"
)

// G8, G7: ten thousand lost connections leave no goroutine and no socket behind.
func TestG8TenThousandReconnects(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			answerOnce(c.(*net.TCPConn))
		}
	}()
	c, err := NewClient(ClientConfig{Brokers: []string{ln.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	for range n {
		if _, err := c.seeds[0].send(t.Context(), new(heartbeat.Request)); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		open := c.seeds[0].lanes[laneControl].conn
		c.mu.Unlock()
		if open != nil {
			<-open.ended // the broker hangs up after its answer
		}
	}
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	c.Close()
	ln.Close()
	<-served
}

// answerOnce answers ApiVersions and one more request, and resets the connection.
func answerOnce(c *net.TCPConn) {
	defer c.Close()
	c.SetLinger(0)
	in := bufio.NewReader(c)
	for range 2 {
		version, id, _, req, err := protocol.ReadRequest(in)
		if err != nil {
			return
		}
		var res protocol.Message = new(heartbeat.Response)
		if req.ApiKey() == protocol.ApiVersions {
			res = &apiversions.Response{ApiKeys: []apiversions.ApiKeyResponse{{ApiKey: int16(protocol.Heartbeat), MaxVersion: 3}}}
		}
		protocol.WriteResponse(c, version, id, res)
	}
}
