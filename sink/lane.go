package sink

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// connectAgain is when a silent attempt to connect gets company.
const connectAgain = time.Second

// A lane is one of the connections to a broker, opened when first used. Brokers answer the requests
// of a connection strictly in order; a produce request waits for the slowest
// in-sync replica and a fetch for something to read: what tells us about the cluster must not queue behind them.
//
// All fields are under Client.mu.
type lane struct {
	conn       *conn     // nil or dead = connect first
	quietUntil time.Time // the broker asked to be left alone until then

	attempts int           // connects under way
	another  time.Time     // when one more may begin beside them; zero = not before the newest has begun
	ended    int           // attempts that have failed,
	err      error         // the last of them by this
	changed  chan struct{} // closed and replaced with any change of the four above, or of conn
}

// end tells those who wait for a connection that there is none.
func (l *lane) end(err error) {
	l.ended++
	l.err = err
	l.notify()
}

func (l *lane) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
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

// connection returns the lane's connection, or the error of the first attempt that fails
// while it waits for one.
//
// Attempts do not end with the caller that wanted them: a connect that takes longer than a
// caller has (a slow name server, say) would never succeed. But bytes that were lost on the way also
// hold an attempt up until connectTimeout, long after the way is free again; so as long as somebody waits, another attempt begins
// beside the silent ones every connectAgain. The first to succeed is the connection.
func (p *peer) connection(ctx context.Context, l *lane) (*conn, error) {
	c := p.client
	c.mu.Lock()
	defer c.mu.Unlock()
	for ended := l.ended; ; {
		now := time.Now()
		switch {
		case c.closed:
			return nil, errClientClosed
		case p.abandoned != nil:
			return nil, p.error("connect", p.abandoned)
		case l.conn != nil && l.conn.alive():
			return l.conn, nil
		case l.ended != ended:
			return nil, l.err
		case l.attempts == 0:
			p.begin(l, p.retryAt)
		case !l.another.IsZero() && !now.Before(l.another):
			p.begin(l, now)
		}
		changed, again := l.changed, l.another
		c.mu.Unlock()
		err := await(ctx, changed, again)
		c.mu.Lock()
		switch {
		case isTimeout(err):
			if p.failures == 0 {
				p.failed(p.error("connect", err)) // silent: others are asked first from now on
			}
			return nil, p.failure
		case err != nil:
			return nil, p.error("connect", err)
		}
	}
}

// await returns at a change, at the time again (zero = never), or with the error of ctx.
func await(ctx context.Context, changed <-chan struct{}, again time.Time) error {
	var timeout <-chan time.Time
	if !again.IsZero() {
		t := time.NewTimer(time.Until(again))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-changed:
		return nil
	case <-timeout:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin starts an attempt, not before a time. Under Client.mu.
func (p *peer) begin(l *lane, after time.Time) {
	l.attempts++
	l.another = time.Time{}
	p.client.goroutines.Add(1)
	go p.attempt(l, p.client.epoch, after)
}

// attempt is the goroutine of one connect, and then of the connection's incoming side.
func (p *peer) attempt(l *lane, epoch context.Context, after time.Time) {
	c := p.client
	defer c.goroutines.Done()
	var nc *conn
	err := pause(epoch, time.Until(after))
	if err == nil {
		c.mu.Lock()
		if epoch.Err() == nil {
			l.another = time.Now().Add(connectAgain)
			l.notify()
		}
		c.mu.Unlock()
		nc, err = p.connect(epoch)
	}
	if p.settle(l, epoch, nc, err) {
		nc.read()
	}
}

// settle ends an attempt; it reports whether nc is the lane's connection now.
func (p *peer) settle(l *lane, epoch context.Context, nc *conn, err error) bool {
	c := p.client
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case epoch.Err() != nil || p.abandoned != nil: // who waited knows it already
	case err != nil:
		p.failed(err)
		l.attempts--
		l.end(err)
	default:
		l.attempts--
		if l.conn != nil && l.conn.alive() {
			break // another attempt was faster
		}
		c.refusals = 0
		l.conn = nc
		c.conns[nc] = struct{}{}
		l.notify()
		return true
	}
	if nc != nil {
		nc.raw.Close()
	}
	return false
}
