package sink

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// conn is one open connection to a broker.
//
// A request is written by its caller, who holds the write token; the one reader
// goroutine takes the answers, which come in the order of the requests. The first thing that goes wrong
// (an error, a late answer, a caller that gives up) closes the connection and ends
// every request on it: what the broker did with them is then unknown, and the caller's matter.
type conn struct {
	peer *peer
	raw  net.Conn // closes at once; a tls.Conn would first write an alert
	net  net.Conn // raw, or TLS over it
	in   *bufio.Reader

	versions map[protocol.ApiKey]versions // what the broker said; fixed after the handshake
	proven   bool                         // reader's own: a request was answered after the handshake

	writing  chan struct{} // capacity 1: the write token; guards the fields below
	out      []byte        // scratch for an encoded request
	pieces   net.Buffers   // the encoded request: parts of out, and memory of the caller
	unsent   net.Buffers   // pieces while they are written
	lastID   int32
	reauthAt time.Time // zero = never: SASL must be done again before the next request (KIP-368)

	mu      sync.Mutex
	pending []*call // in the order of writing; the first one's deadline is the connection's read deadline
	failure error   // why the connection is closed; set once

	failed chan struct{} // closed with failure
	ended  chan struct{} // closed when the reader has ended
}

// call is a request on its way. The reader sets res or err before it closes done.
type call struct {
	id      int32
	key     protocol.ApiKey
	version int16
	timeout time.Duration
	res     protocol.Message
	err     error
	done    chan struct{}
}

// call numbers and encodes a request. The caller holds the write token.
func (c *conn) call(req protocol.Message) (*call, error) {
	version, err := c.version(req.ApiKey())
	if r, ok := req.(*topicsRequest); ok {
		if c.versions[protocol.Metadata].max >= topicsVersion {
			version, err = topicsVersion, nil
		} else {
			req = r.older()
		}
	}
	if err != nil {
		return nil, err
	}
	c.lastID++
	w := &call{id: c.lastID, key: req.ApiKey(), version: version, done: make(chan struct{})}
	return w, c.encode(w, req)
}

func newConn(p *peer, raw, nc net.Conn) *conn {
	return &conn{
		peer:    p,
		raw:     raw,
		net:     nc,
		in:      bufio.NewReader(nc),
		writing: make(chan struct{}, 1),
		failed:  make(chan struct{}),
		ended:   make(chan struct{}),
	}
}

func (c *conn) alive() bool { return c.why() == nil }

func (c *conn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// fail closes the connection; the first reason stays.
func (c *conn) fail(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		c.failure = why
		close(c.failed)
		c.raw.Close()
	}
}

// roundTrip sends req and waits for its answer, for timeout after the answer before it at most.
func (c *conn) roundTrip(ctx context.Context, req protocol.Message, timeout time.Duration) (protocol.Message, error) {
	op := req.ApiKey().String()
	select {
	case c.writing <- struct{}{}:
	case <-c.failed:
		return nil, c.error(op, c.why())
	case <-ctx.Done():
		return nil, c.error(op, ctx.Err())
	}
	stop := onDone(ctx, func() {
		if isTimeout(ctx.Err()) {
			c.fail(ctx.Err())
		} else {
			c.fail(errGivenUp)
		}
	})
	defer stop()
	if err := c.reauthenticate(ctx); err != nil {
		c.fail(err)
	}
	w, err := c.write(req, timeout)
	<-c.writing
	if err == nil {
		<-w.done
		err = w.err
	}
	switch {
	case err == nil:
		return w.res, nil
	case ctx.Err() != nil && !isTimeout(err):
		err = ctx.Err()
	}
	return nil, c.error(op, err)
}

// error names broker and request, once.
func (c *conn) error(op string, err error) error {
	if refused := (*AuthError)(nil); errors.As(err, &refused) || errors.Is(err, errClientClosed) {
		return err
	}
	return c.peer.error(op, err)
}

// write sends req. The caller holds the write token. A nil error means that call.done will be closed.
func (c *conn) write(req protocol.Message, timeout time.Duration) (*call, error) {
	w, err := c.call(req)
	if err != nil {
		return nil, err
	}
	w.timeout = timeout
	if err := c.push(w); err != nil {
		return nil, err
	}
	c.net.SetWriteDeadline(time.Now().Add(timeout))
	if err := c.writeOut(); err != nil {
		c.fail(err)
	}
	c.net.SetWriteDeadline(time.Time{})
	return w, nil
}

// writeOut writes what encode made: one writev on TCP, as few records and writes as
// it takes on TLS.
func (c *conn) writeOut() error {
	c.unsent = c.pieces
	_, err := c.unsent.WriteTo(c.net)
	if t, ok := c.net.(tlsConn); ok && err == nil {
		err = t.corked.flush()
	}
	clear(c.pieces) // the caller's memory
	c.pieces, c.unsent = c.pieces[:0], nil
	if cap(c.out) > keepBuffer {
		c.out = nil
	}
	return err
}

// push queues a call before its request is written: the answer may be back before the write returns.
func (c *conn) push(w *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	c.pending = append(c.pending, w)
	if len(c.pending) == 1 {
		c.net.SetReadDeadline(time.Now().Add(w.timeout))
	}
	return nil
}

// pop takes the answered call off the queue; the next one's time starts.
func (c *conn) pop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(c.pending, c.pending[1:])
	c.pending[len(c.pending)-1] = nil
	c.pending = c.pending[:len(c.pending)-1]
	if len(c.pending) > 0 {
		c.net.SetReadDeadline(time.Now().Add(c.pending[0].timeout))
	} else {
		c.net.SetReadDeadline(time.Time{})
	}
}

func (c *conn) head() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return nil
	}
	return c.pending[0]
}

// read is the connection's goroutine: it owns the incoming side until the connection fails.
func (c *conn) read() {
	log := c.peer.client.cfg.Log.With().Int32("broker", c.peer.node).Str("address", c.peer.addr).Logger()
	log.Debug().Msg("kafka connection open")
	defer close(c.ended)
	var frame []byte
	var err error
	for err == nil {
		frame, err = readFrame(c.in, frame)
		if err == nil {
			err = c.answer(frame)
		}
		if cap(frame) > keepBuffer {
			frame = nil
		}
	}
	if err == io.EOF && !c.proven && c.peer.client.cfg.SASL == nil && c.head() != nil {
		err = errUnwanted
	}
	c.fail(err)
	why := c.why()
	c.peer.gone(c)
	log.Debug().Err(why).Msg("kafka connection closed")
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.pending {
		w.err = why
		close(w.done)
	}
	c.pending = nil
}

// answer hands a response to the call that waits for it.
func (c *conn) answer(frame []byte) error {
	w := c.head()
	if w == nil {
		return fmt.Errorf("%w: an answer that nobody asked for", errProtocol)
	}
	res, err := decodeResponse(frame, w.id, w.key, w.version)
	if err != nil {
		return err
	}
	c.proven = true
	w.res = res
	c.pop()
	close(w.done)
	return nil
}
