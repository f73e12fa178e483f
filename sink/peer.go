package sink

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

const (
	reconnectMin  = 50 * time.Millisecond
	reconnectMax  = time.Second
	refusedMax    = 5 * time.Second // after a refused certificate or password
	throttleLimit = time.Minute     // a broker that asks for more is not believed
)

// A lane is one of the connections to a broker, opened when first used. Brokers answer the requests
// of a connection strictly in order; a produce request waits for the slowest
// in-sync replica and a fetch for something to read: what tells us about the cluster must not queue behind them.
type lane struct {
	connecting chan struct{} // capacity 1: held by the one caller that connects
	conn       *conn         // under Client.mu; nil or dead = connect first
	quietUntil time.Time     // under Client.mu; the broker asked to be left alone until then
}

const (
	laneControl = iota
	laneProduce
	laneFetch
	lanes
)

func laneOf(req protocol.Message) int {
	switch req.ApiKey() {
	case protocol.Produce:
		return laneProduce
	case protocol.Fetch:
		return laneFetch
	}
	return laneControl
}

// peer is one broker at one address. Its mutable fields are under Client.mu.
type peer struct {
	client *Client
	node   int32 // -1 = seed
	addr   string
	lanes  [lanes]lane

	failures  int       // in a row, of connects or of connections that never answered
	retryAt   time.Time // no connect before
	abandoned error     // not nil: moved away, do not connect
}

func newPeer(c *Client, node int32, addr string) *peer {
	p := &peer{client: c, node: node, addr: addr}
	for i := range p.lanes {
		p.lanes[i].connecting = make(chan struct{}, 1)
	}
	return p
}

func (p *peer) name() string { return brokerName(p.node, p.addr) }

func (p *peer) error(op string, err error) error {
	return &BrokerError{Node: p.node, Addr: p.addr, Op: op, Err: err}
}

// send carries one request, over a new connection where there is none.
func (p *peer) send(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	l := &p.lanes[laneOf(req)]
	p.client.mu.Lock()
	quiet := l.quietUntil
	p.client.mu.Unlock()
	if err := pause(ctx, time.Until(quiet)); err != nil {
		return nil, p.error("throttled by a quota", err)
	}
	nc, err := p.connection(ctx, l)
	if err != nil {
		return nil, err
	}
	res, err := nc.roundTrip(ctx, req, p.client.timeout(req))
	if err != nil {
		return nil, err
	}
	p.answered(l, throttleTime(res))
	return res, nil
}

// answered notes that the broker works, and how long it wants to be left alone:
// since Kafka 2.0 the answer to a client above its quota comes at once, and the
// client is to keep the pause (KIP-219).
func (p *peer) answered(l *lane, throttle time.Duration) {
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	p.failures = 0
	if throttle > 0 {
		l.quietUntil = time.Now().Add(min(throttle, throttleLimit))
	}
}

// connection returns the lane's connection; one caller connects, the others wait for it.
func (p *peer) connection(ctx context.Context, l *lane) (*conn, error) {
	c := p.client
	if nc, _, err := p.live(l); nc != nil || err != nil {
		return nc, err
	}
	select {
	case l.connecting <- struct{}{}:
		defer func() { <-l.connecting }()
	case <-ctx.Done():
		return nil, p.error("connect", ctx.Err())
	}
	nc, retryAt, err := p.live(l)
	if nc != nil || err != nil {
		return nc, err
	}
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer onDone(epoch, cancel)()
	if err = pause(dialing, time.Until(retryAt)); err == nil {
		nc, err = p.connect(dialing)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil && epoch.Err() == nil && p.abandoned == nil:
		l.conn = nc
		c.conns[nc] = struct{}{}
		c.readers.Add(1)
		go nc.read()
		return nc, nil
	case err == nil:
		nc.raw.Close()
		err = p.error("connect", errReset)
	case epoch.Err() != nil:
		err = p.error("connect", errReset)
	case ctx.Err() != nil && !isTimeout(ctx.Err()):
		err = p.error("connect", ctx.Err()) // the caller's wish, not the broker's fault
	default:
		p.failed(err)
	}
	if c.closed {
		err = ErrClientClosed
	}
	return nil, err
}

// live returns the lane's connection if it is usable, else when to connect.
func (p *peer) live(l *lane) (*conn, time.Time, error) {
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	switch {
	case p.client.closed:
		return nil, time.Time{}, ErrClientClosed
	case p.abandoned != nil:
		return nil, time.Time{}, p.error("connect", p.abandoned)
	case l.conn != nil && l.conn.alive():
		return l.conn, time.Time{}, nil
	}
	return nil, p.retryAt, nil
}

// failed moves the next connect away: 50 ms, doubled with each failure in a row, half of it at random.
// A connection that once answered and is lost costs no wait. Under Client.mu.
func (p *peer) failed(err error) {
	limit := reconnectMax
	if refused := (*AuthError)(nil); errors.As(err, &refused) {
		limit = refusedMax
	}
	d := min(reconnectMin<<min(p.failures, 20), limit)
	p.failures++
	p.retryAt = time.Now().Add(d/2 + rand.N(d/2+1))
}

// gone is called by a connection's reader as its last act.
func (p *peer) gone(nc *conn) {
	c := p.client
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, nc)
	for i := range p.lanes {
		if p.lanes[i].conn == nc {
			p.lanes[i].conn = nil
		}
	}
	why := nc.why()
	deliberate := errors.Is(why, errReset) || errors.Is(why, errGivenUp)
	if isTimeout(why) || !nc.proven && !deliberate {
		p.failed(why)
	}
}

// abandon ends the peer's connections: the broker is elsewhere, or gone. Under Client.mu.
func (p *peer) abandon() {
	p.abandoned = errMoved
	for i := range p.lanes {
		if nc := p.lanes[i].conn; nc != nil {
			nc.fail(errMoved)
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// onDone runs f when ctx ends. The returned stop ends that, and waits for an f that has begun.
func onDone(ctx context.Context, f func()) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() { defer close(ended); f() })
	return func() {
		if !cancel() {
			<-ended
		}
	}
}
