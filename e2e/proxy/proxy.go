// Package proxy is a TCP proxy that breaks connections in the ways networks do: slow,
// delayed, stalled in one direction or both, cut in the middle of a message, refused.
//
// A proxy belongs in front of one server. Its faults hold for every connection through
// it, those that exist and those to come, until Pass.
package proxy

import (
	"fmt"
	"net"
	"sync"
)

// Direction is a way through the proxy.
type Direction int

// The directions, as the client sees them.
const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
	both
)

// Both is for faults of both directions.
const Both = both

// Proxy forwards connections from Addr to a server.
type Proxy struct {
	upstream string
	addr     string
	kafka    bool

	mu       sync.Mutex
	listener net.Listener // nil while refusing
	links    map[*link]struct{}
	accepted int
	closed   bool
	ways     [both]way
	changed  chan struct{} // closed and replaced whenever a fault changes
	armed    func(apiKey int16) bool
	dropNext bool
	wg       sync.WaitGroup
}

// Listen starts a proxy on a free port of 127.0.0.1 in front of upstream (host:port).
func Listen(upstream string) (*Proxy, error) { return listen(upstream, false) }

// ListenKafka is Listen for a Kafka broker: the proxy reads along which request is
// which, for DropResponseTo.
func ListenKafka(upstream string) (*Proxy, error) { return listen(upstream, true) }

func listen(upstream string, kafka bool) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{
		upstream: upstream, addr: l.Addr().String(), kafka: kafka,
		listener: l, links: map[*link]struct{}{}, changed: make(chan struct{}),
	}
	p.wg.Go(func() { p.accept(l) })
	return p, nil
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Connections is how many connections exist now, and how many there ever were.
func (p *Proxy) Connections() (now, ever int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links), p.accepted
}

// Close cuts everything; every goroutine of the proxy has ended when it returns.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.hangUp()
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
	return nil
}

// hangUp closes the listener, under the lock.
func (p *Proxy) hangUp() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // the listener was closed
		}
		p.wg.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		reset(client)
		return
	}
	k := &link{proxy: p, client: client, server: server.(*net.TCPConn), dead: make(chan struct{})}
	p.mu.Lock()
	p.accepted++
	p.links[k] = struct{}{}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		k.reset()
	}
	k.run()
	p.mu.Lock()
	delete(p.links, k)
	p.mu.Unlock()
}
