package simnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func pair(t *testing.T, p Profile) (*Network, net.Conn, *Conn) {
	t.Helper()
	n := New(1, p)
	accepted, done := make(chan *Conn, 1), make(chan struct{})
	n.Listen("there", func(c *Conn) { accepted <- c; <-done })
	c, err := n.Dial(context.Background(), "here", "there")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(done); n.Close() })
	return n, c, <-accepted
}

func TestBytesArriveInOrderAfterTheLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, s := pair(t, Profile{Latency: time.Millisecond, Jitter: 5 * time.Millisecond, Fragment: .5, Window: 100})
		want := make([]byte, 10_000)
		for i := range want {
			want[i] = byte(i * 7)
		}
		began := time.Now()
		go func() { c.Write(want); c.Close() }()
		got, err := io.ReadAll(s)
		if err != nil || string(got) != string(want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if d := time.Since(began); d < 100*time.Millisecond {
			t.Errorf("10,000 bytes through a window of 100 took %s", d)
		}
	})
}

func TestDeadlinesAndWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, s := pair(t, Profile{Latency: time.Millisecond, Window: 10})
		c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Second); c.SetReadDeadline(time.Unix(1, 0)) }()
		c.SetReadDeadline(time.Time{})
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		c.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := c.Write(make([]byte, 25)); n != 10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(n, err)
		}
		_ = s
	})
}

func TestFaultsOfALink(t *testing.T) {
	for name, fault := range map[string]struct {
		do             func(*Link)
		client, server error // what a read ends with
		got            bool  // the server gets what was on its way
	}{
		"reset":      {(*Link).Reset, syscall.ECONNRESET, syscall.ECONNRESET, false},
		"late reset": {(*Link).ResetAfterDelivery, syscall.ECONNRESET, syscall.ECONNRESET, true},
		"lost":       {func(l *Link) { l.Lose(Both) }, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, false},
		"killed":     {func(l *Link) { l.Orphan(false) }, net.ErrClosed, io.EOF, true},
		"host died":  {func(l *Link) { l.Orphan(true) }, net.ErrClosed, os.ErrDeadlineExceeded, false},
		"closed":     {func(l *Link) { l.client.Close() }, net.ErrClosed, io.EOF, true},
		"stalled":    {func(l *Link) { l.Stall(Both, 10*time.Second) }, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c, s := pair(t, Profile{Latency: time.Millisecond})
				c.SetReadDeadline(time.Now().Add(time.Second))
				s.SetReadDeadline(time.Now().Add(time.Second))
				c.Write([]byte("x"))
				fault.do(s.Link())
				b := make([]byte, 10)
				n, err := s.Read(b)
				if got := n == 1; got != fault.got {
					t.Errorf("server read %d bytes, %v", n, err)
				}
				if n == 1 {
					_, err = s.Read(b)
				}
				if !errors.Is(err, fault.server) {
					t.Errorf("server: %v", err)
				}
				if _, err := c.Read(b); !errors.Is(err, fault.client) {
					t.Errorf("client: %v", err)
				}
			})
		})
	}
}
