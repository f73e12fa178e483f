// Package simnet is a network without sockets for tests that run in a
// testing/synctest bubble: links with latency, fragments and bounded windows, that
// can be reset, cut off half-open, stalled, or left behind by a process that died.
//
// What a link does follows from the network's seed, the link's ordinal and what is
// written to it, so that a run can be repeated.
package simnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// Profile is how the links of a network behave while nothing is wrong.
type Profile struct {
	Latency  time.Duration // one way
	Jitter   time.Duration // added at random; order is kept
	Fragment float64       // probability that a write arrives in several pieces
	Window   int           // bytes that may be on their way before a writer blocks
}

// Reach is what happens to who dials an address.
type Reach int

const (
	Up      Reach = iota // the listener answers
	Refused              // the host answers that nothing listens
	Silent               // nobody answers
)

// Network is a set of listeners and of the links to them. Its methods may be called
// from any goroutine of the bubble.
type Network struct {
	seed    uint64
	profile Profile

	mu        sync.Mutex
	listeners map[string]*listener
	links     []*Link // living ones, in order of creation
	made      uint64
	closed    bool
	healed    bool
	handlers  sync.WaitGroup
}

type listener struct {
	serve func(*Conn)
	reach Reach
	dooms []doom // of the next links
}

// doom is a fault that awaits a link.
type doom struct {
	after time.Duration
	do    func(*Link)
}

// New returns an empty network.
func New(seed uint64, profile Profile) *Network {
	if profile.Window == 0 {
		profile.Window = 256 << 10
	}
	return &Network{seed: seed, profile: profile, listeners: map[string]*listener{}}
}

// Listen has serve called, in a goroutine of its own, with the far end of every link
// to addr. The network closes that end when serve returns.
func (n *Network) Listen(addr string, serve func(*Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[addr] = &listener{serve: serve}
}

// SetReach says what becomes of new links to addr; links that exist go on.
func (n *Network) SetReach(addr string, r Reach) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[addr].reach = r
}

// Doom has do called on the next link to addr, some time after it was made.
func (n *Network) Doom(addr string, after time.Duration, do func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr]
	l.dooms = append(l.dooms, doom{after, do})
}

// ErrRefused is what dialing an address fails with where nothing listens.
var ErrRefused = &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}

var errNetworkClosed = errors.New("simnet: the network is closed")

// Dial links the process from with addr.
func (n *Network) Dial(ctx context.Context, from, addr string) (net.Conn, error) {
	n.mu.Lock()
	rng := rand.New(rand.NewPCG(n.seed, n.made))
	n.made++
	id := n.made
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("simnet: no such host: %s", addr)
	}
	rtt := time.NewTimer(2 * n.profile.delay(rng))
	defer rtt.Stop()
	select {
	case <-rtt.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	switch {
	case n.closed:
		n.mu.Unlock()
		return nil, errNetworkClosed
	case l.reach == Refused:
		n.mu.Unlock()
		return nil, ErrRefused
	case l.reach == Silent:
		n.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	link := newLink(n.profile, rng, id, from, addr)
	n.links = append(n.links, link)
	n.handlers.Add(1)
	if len(l.dooms) > 0 {
		d := l.dooms[0]
		l.dooms = l.dooms[1:]
		time.AfterFunc(d.after, func() {
			if !n.isHealed() {
				d.do(link)
			}
		})
	}
	n.mu.Unlock()
	go func() {
		defer n.handlers.Done()
		defer n.forget(link)
		defer link.server.Close()
		l.serve(link.server)
	}()
	return link.client, nil
}

// forget drops a link whose far end is closed: nothing can happen on it any more.
func (n *Network) forget(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.links {
		if n.links[i] == l {
			n.links = append(n.links[:i:i], n.links[i+1:]...)
			return
		}
	}
}

// Links returns the living links that match, in order of creation.
func (n *Network) Links(match func(*Link) bool) []*Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*Link
	for _, l := range n.links {
		if match(l) {
			out = append(out, l)
		}
	}
	return out
}

// Heal takes back what Doom has in store, for good.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.healed = true
	for _, l := range n.listeners {
		l.dooms = nil
	}
}

func (n *Network) isHealed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.healed
}

// Close resets every link and returns when every handler has returned.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	links := n.links
	n.mu.Unlock()
	for _, l := range links {
		l.Reset()
	}
	n.handlers.Wait()
}

func (p *Profile) delay(rng *rand.Rand) time.Duration {
	d := p.Latency
	if p.Jitter > 0 {
		d += time.Duration(rng.Int64N(int64(p.Jitter)))
	}
	return d + time.Duration(rng.Int64N(1000)) // no two things happen at the same nanosecond
}
