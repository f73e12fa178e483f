package proxy

import (
	"fmt"
	"net"
	"time"
)

// Fault is what one direction suffers. The zero value is none.
type Fault struct {
	Delay time.Duration // every byte arrives that much later
	Rate  int           // bytes a second of each connection; 0: unbounded
	Stall bool          // nothing moves, nothing fails: a half-open link. What was sent meanwhile arrives when the fault ends

	// ResetAfter cuts the connection that carries the n-th byte from now on, right
	// behind that byte: in the middle of a message, as a rule. It happens once. 0: never.
	ResetAfter int
}

// way is the state of one direction.
type way struct {
	Fault
	left int // bytes until the reset
}

// Set puts a fault on a direction, in the place of the one before.
func (p *Proxy) Set(d Direction, f Fault) {
	p.change(func() {
		for i := range p.ways {
			if d == Both || d == Direction(i) {
				p.ways[i] = way{Fault: f, left: f.ResetAfter}
			}
		}
	})
}

// Pass ends all faults; connections that were cut stay cut.
func (p *Proxy) Pass() {
	p.change(func() {
		p.ways = [both]way{}
		p.armed, p.dropNext = nil, false
	})
	p.Refuse(false)
}

// change applies f under the lock and wakes those who wait for a fault's end.
func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Cut resets every connection there is.
func (p *Proxy) Cut() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for k := range p.links {
		links = append(links, k)
	}
	p.mu.Unlock()
	for _, k := range links {
		k.reset()
	}
}

// Refuse says whether new connections are refused, as by a host without the server.
func (p *Proxy) Refuse(refuse bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case refuse:
		p.hangUp()
	case p.listener == nil && !p.closed:
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			return fmt.Errorf("proxy: listen again: %w", err)
		}
		p.listener = l
		p.wg.Go(func() { p.accept(l) })
	}
	return nil
}

// DropResponse lets the next bytes from the server vanish and cuts their connection:
// the server has done what it was asked, and the client cannot know. It happens once.
func (p *Proxy) DropResponse() { p.change(func() { p.dropNext = true }) }

// DropResponseTo is DropResponse for the next response to a Kafka request with that API
// key (Produce is 0, InitProducerId 22).
func (p *Proxy) DropResponseTo(apiKey int16) {
	p.change(func() { p.armed = func(key int16) bool { return key == apiKey } })
}

// Armed says whether a fault that happens once is still to come.
func (p *Proxy) Armed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed != nil || p.dropNext || p.ways[Up].left > 0 || p.ways[Down].left > 0
}

// drops decides, and takes note, whether a response vanishes; isFrame: key is the API
// key of the request that it answers.
func (p *Proxy) drops(key int16, isFrame bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isFrame && p.armed != nil && p.armed(key) {
		p.armed = nil
		return true
	}
	if !isFrame && p.dropNext {
		p.dropNext = false
		return true
	}
	return false
}

// admit says what happens to n bytes that are about to be written: how many may pass,
// and whether the connection is cut behind them. It blocks while the direction stalls.
func (p *Proxy) admit(d Direction, n int, dead <-chan struct{}) (pass int, cut bool) {
	for {
		p.mu.Lock()
		w := &p.ways[d]
		if !w.Stall {
			if w.left == 0 || n < w.left {
				w.left = max(0, w.left-n)
				p.mu.Unlock()
				return n, false
			}
			pass, w.left = w.left, 0
			p.mu.Unlock()
			return pass, true
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-dead:
			return 0, true
		}
	}
}

func (p *Proxy) fault(d Direction) (Fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ways[d].Fault, p.changed
}
