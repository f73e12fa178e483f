package replication

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// newPipe is net.Pipe with a buffer on either side, as a socket has one.
func newPipe() (client, server *pipeEnd) {
	a, b := newFlow(), newFlow()
	return &pipeEnd{in: a, out: b}, &pipeEnd{in: b, out: a}
}

type pipeEnd struct{ in, out *flow }

// flow carries bytes one way.
type flow struct {
	mu       sync.Mutex
	buf      []byte
	closed   bool
	deadline time.Time
	changed  chan struct{} // closed and replaced when any of the above changes
	reads    int
}

func newFlow() *flow { return &flow{changed: make(chan struct{})} }

func (f *flow) change(set func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (e *pipeEnd) Read(p []byte) (int, error) {
	f := e.in
	for {
		f.mu.Lock()
		expired := !f.deadline.IsZero() && !f.deadline.After(time.Now())
		switch {
		case expired:
			f.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(f.buf) > 0:
			n := copy(p, f.buf)
			f.buf = f.buf[n:]
			f.reads++
			f.mu.Unlock()
			return n, nil
		case f.closed:
			f.mu.Unlock()
			return 0, io.EOF
		}
		changed, deadline := f.changed, f.deadline
		f.mu.Unlock()
		if deadline.IsZero() {
			<-changed
			continue
		}
		t := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

func (e *pipeEnd) Write(p []byte) (n int, err error) {
	e.out.change(func() {
		if e.out.closed {
			err = io.ErrClosedPipe
			return
		}
		e.out.buf = append(e.out.buf, p...)
		n = len(p)
	})
	return n, err
}

func (e *pipeEnd) Close() error {
	for _, f := range []*flow{e.in, e.out} {
		f.change(func() { f.closed = true })
	}
	return nil
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.change(func() { e.in.deadline = t })
	return nil
}

func (e *pipeEnd) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }
func (e *pipeEnd) SetWriteDeadline(time.Time) error { return nil } // a write never blocks
func (e *pipeEnd) LocalAddr() net.Addr              { return pipeAddr{} }
func (e *pipeEnd) RemoteAddr() net.Addr             { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
