package sink

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

const (
	reconnectMin  = 50 * time.Millisecond
	reconnectMax  = time.Second
	throttleLimit = time.Minute // a broker that asks for more is not believed
)

// peer is one broker at one address. Its mutable fields are under Client.mu.
type peer struct {
	client *Client
	node   int32 // -1 = seed
	addr   string
	lanes  [lanes]lane

	failures  int       // in a row, of connects or of connections that never answered;
	failure   error     // the last of them
	retryAt   time.Time // no connect before
	abandoned error     // not nil: moved away, do not connect
}

func newPeer(c *Client, node int32, addr string) *peer {
	p := &peer{client: c, node: node, addr: addr}
	for i := range p.lanes {
		p.lanes[i].changed = make(chan struct{})
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
	p.failures, p.client.served = 0, true
	if throttle > 0 {
		l.quietUntil = time.Now().Add(min(throttle, throttleLimit))
	}
}

// failed moves the next connect away: 50 ms, doubled with each failure in a row, half of it at random.
// A connection that once answered and is lost costs no wait. A refused password moves the connects to all brokers away:
// it is the same account everywhere, which may be locked after too many attempts. Under Client.mu.
func (p *peer) failed(err error) {
	c := p.client
	refused := errors.Is(err, kafka.SASLAuthenticationFailed)
	before := p.failures
	if refused {
		before = c.refusals
		c.refusals++
	}
	d := min(reconnectMin<<min(before, 20), reconnectMax)
	p.failures++
	p.failure = err
	p.retryAt = time.Now().Add(d/2 + rand.N(d/2+1))
	if refused {
		for _, q := range c.brokers {
			q.notBefore(p.retryAt)
		}
		for _, q := range c.seeds {
			q.notBefore(p.retryAt)
		}
	}
}

func (p *peer) notBefore(at time.Time) {
	if p.retryAt.Before(at) {
		p.retryAt = at
	}
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
	why := nc.error("connection", nc.why())
	deliberate := errors.Is(why, errReset) || errors.Is(why, errGivenUp)
	if isTimeout(why) || !nc.proven && !deliberate {
		p.failed(why)
	}
}

// abandon ends the peer's connections: the broker is elsewhere, or gone. Under Client.mu.
func (p *peer) abandon() {
	p.abandoned = errMoved
	for i := range p.lanes {
		l := &p.lanes[i]
		if l.conn != nil {
			l.conn.fail(errMoved)
		}
		l.notify()
	}
}

// reset gives up the attempts under way. Under Client.mu.
func (p *peer) reset() {
	for i := range p.lanes {
		l := &p.lanes[i]
		l.attempts, l.another = 0, time.Time{}
		l.end(p.error("connect", errReset))
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
