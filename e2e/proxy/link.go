package proxy

import (
	"net"
	"sync"
	"time"
)

// link is one proxied connection.
type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	dead           chan struct{} // closed by reset
	once           sync.Once

	frames frames // Kafka only
}

// chunk is a piece of the stream on its way; due is when it was read plus the delay.
type chunk struct {
	data []byte
	read time.Time
}

// run forwards both ways until both ends are closed or the link is reset.
func (k *link) run() {
	var wg sync.WaitGroup
	for _, f := range []func(){
		func() { k.pump(Up, k.client, k.server) },
		func() { k.pump(Down, k.server, k.client) },
	} {
		wg.Go(f)
	}
	wg.Wait()
	k.client.Close()
	k.server.Close()
}

// reset aborts both ends with a RST.
func (k *link) reset() {
	k.once.Do(func() {
		close(k.dead)
		reset(k.client)
		reset(k.server)
	})
}

func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// pump forwards one direction: a reader, and a writer behind a queue, so that a delay
// adds latency without bounding the throughput.
func (k *link) pump(d Direction, from, to *net.TCPConn) {
	queue := make(chan chunk, 64)
	var wg sync.WaitGroup
	wg.Go(func() { k.write(d, to, queue) })
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			select {
			case queue <- chunk{buf[:n], time.Now()}:
			case <-k.dead:
			}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	wg.Wait()
	to.CloseWrite() // the end of the stream passes like its bytes
}

func (k *link) write(d Direction, to *net.TCPConn, queue <-chan chunk) {
	for c := range queue {
		if !k.forward(d, to, c) {
			k.reset()
			for range queue { // the reader must never block on us
			}
			return
		}
	}
	k.proxy.admit(d, 0, k.dead) // a stalled direction doesn't let the end pass either
}

// forward writes one chunk under the direction's fault; false: the link is to be cut.
func (k *link) forward(d Direction, to *net.TCPConn, c chunk) bool {
	drop := false
	if k.proxy.kafka {
		c.data, drop = k.frames.pass(d, c.data, k.proxy)
	}
	if d == Down && k.proxy.drops(0, false) {
		return false
	}
	for len(c.data) > 0 {
		fault, changed := k.proxy.fault(d)
		if wait := time.Until(c.read.Add(fault.Delay)); fault.Delay > 0 && wait > 0 {
			if !k.pause(wait, changed) {
				return false
			}
			continue
		}
		n := len(c.data)
		if fault.Rate > 0 { // twenty pieces a second
			n = min(n, max(1, fault.Rate/20))
		}
		n, cut := k.proxy.admit(d, n, k.dead)
		if _, err := to.Write(c.data[:n]); err != nil || cut {
			return false
		}
		c.data = c.data[n:]
		if fault.Rate > 0 && !k.pause(time.Duration(n)*time.Second/time.Duration(fault.Rate), changed) {
			return false
		}
	}
	return !drop
}

// pause waits for a time, for a change of the faults, or for the link's end (false).
func (k *link) pause(d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-changed:
		return true
	case <-k.dead:
		return false
	}
}
