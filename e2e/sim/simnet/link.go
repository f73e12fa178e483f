package simnet

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Link is one connection. The client end dialed, the server end was accepted.
type Link struct {
	ID       uint64 // ordinal in its network
	From, To string

	profile Profile

	mu     sync.Mutex
	rng    *rand.Rand
	label  string
	broken error // what both ends see, at once
	client *Conn
	server *Conn
}

// Direction is one of the two ways of a link, or both.
type Direction int

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Conn is one end of a link.
type Conn struct {
	link *Link
	out  *way // ours to write
	in   *way // ours to read

	closed        bool
	readDeadline  time.Time
	writeDeadline time.Time
	readWaker     *time.Timer // of the one reader
	writeWaker    *time.Timer // of the one writer
}

// way is one direction: what is written and not yet read. Guarded by Link.mu.
type way struct {
	cond  sync.Cond
	queue []chunk
	size  int
	last  time.Time // when the newest chunk arrives
	lost  bool      // nothing arrives any more, and nobody is told
	until time.Time // nothing arrives before
	shut  bool      // the reader is gone: writes fail
	read  int64     // bytes taken by the reader
}

// chunk is data that arrives at a moment, or the end.
type chunk struct {
	at   time.Time
	data []byte
	end  error
}

func newLink(p Profile, rng *rand.Rand, id uint64, from, to string) *Link {
	l := &Link{ID: id, From: from, To: to, profile: p, rng: rng}
	up, down := &way{}, &way{}
	up.cond.L, down.cond.L = &l.mu, &l.mu
	l.client = &Conn{link: l, out: up, in: down}
	l.server = &Conn{link: l, out: down, in: up}
	return l
}

// SetLabel notes what the link turned out to be for.
func (l *Link) SetLabel(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.label = s
}

// Label is what SetLabel noted.
func (l *Link) Label() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.label
}

// Link returns the link that c is an end of.
func (c *Conn) Link() *Link { return c.link }

// Reset breaks the link for both ends at once; what was on its way is lost.
func (l *Link) Reset() { l.reset(false) }

// ResetAfterDelivery is Reset, but the server still gets what was on its way to it.
func (l *Link) ResetAfterDelivery() { l.reset(true) }

func (l *Link) reset(deliver bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if deliver {
		l.client.in.queue = nil
		l.client.in.end(l, syscall.ECONNRESET)
		l.client.out.end(l, syscall.ECONNRESET)
		l.client.out.shut, l.server.out.shut = true, true
	} else if l.broken == nil {
		l.broken = syscall.ECONNRESET
	}
	l.wake()
}

// Lose makes the link half-open in the given direction, or in both: what is written
// goes nowhere, without an error.
func (l *Link) Lose(d Direction) { l.each(d, func(w *way) { w.lost = true }) }

// Stall holds back whatever arrives within d.
func (l *Link) Stall(dir Direction, d time.Duration) {
	l.each(dir, func(w *way) { w.until = time.Now().Add(d) })
}

func (l *Link) each(d Direction, f func(*way)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d&ToServer != 0 {
		f(l.client.out)
	}
	if d&ToClient != 0 {
		f(l.server.out)
	}
	l.wake()
}

// Orphan is the death of the client's process: its end is unusable. The server gets
// what was on its way and then the end of the stream; if the host died as well, it gets
// nothing and is not told.
func (l *Link) Orphan(host bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client.closed = true
	if host {
		l.client.out.lost, l.server.out.lost = true, true
	} else {
		l.client.out.end(l, io.EOF)
		l.server.out.shut = true
	}
	l.wake()
}

// Bury tells the server of a half-open link that it is dead, as TCP does in the end.
func (l *Link) Bury() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up := l.client.out; up.lost || l.server.out.lost {
		up.lost, up.queue, l.server.out.shut = false, nil, true
		up.end(l, syscall.ECONNRESET)
		l.wake()
	}
}

// Read returns how many bytes the client end has taken off the link.
func (l *Link) Read() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client.in.read
}

// Written returns how many bytes the server end has put on the link.
func (l *Link) Written() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client.in.read + int64(l.client.in.size)
}

func (l *Link) wake() {
	l.client.out.cond.Broadcast()
	l.server.out.cond.Broadcast()
}

func (w *way) end(l *Link, err error) {
	w.queue = append(w.queue, chunk{at: w.arrival(l), end: err})
}

// arrival is when what is written now arrives: not before what was written earlier.
func (w *way) arrival(l *Link) time.Time {
	at := time.Now().Add(l.profile.delay(l.rng))
	if at.Before(w.last) {
		at = w.last
	}
	w.last = at
	return at
}

// Read takes what has arrived.
func (c *Conn) Read(p []byte) (int, error) {
	l, in := c.link, c.in
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case c.closed:
			return 0, c.error("read", net.ErrClosed)
		case l.broken != nil:
			return 0, c.error("read", l.broken)
		case expired(c.readDeadline, now):
			return 0, c.error("read", os.ErrDeadlineExceeded)
		}
		if n, err := in.take(p, now); n > 0 || err != nil {
			in.cond.Broadcast()
			if err != nil && err != io.EOF {
				err = c.error("read", err)
			}
			return n, err
		}
		wake := c.readDeadline
		if len(in.queue) > 0 && !in.lost {
			at := in.queue[0].at
			if at.Before(in.until) {
				at = in.until
			}
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
		}
		in.wait(&c.readWaker, wake, now)
	}
}

// take moves what has arrived by now into p.
func (w *way) take(p []byte, now time.Time) (n int, err error) {
	for !w.lost && len(w.queue) > 0 && n < len(p) {
		c := &w.queue[0]
		if c.at.After(now) || w.until.After(now) {
			break
		}
		if c.end != nil {
			if n > 0 {
				break
			}
			return 0, c.end // stays: every further read ends the same
		}
		k := copy(p[n:], c.data)
		n += k
		if c.data = c.data[k:]; len(c.data) == 0 {
			w.queue = w.queue[1:]
		}
	}
	w.size -= n
	w.read += int64(n)
	return n, nil
}

// wait blocks until something changes, or until at.
func (w *way) wait(waker **time.Timer, at, now time.Time) {
	if !at.IsZero() {
		if d := at.Sub(now); *waker == nil {
			*waker = time.AfterFunc(d, func() {
				w.cond.L.Lock()
				defer w.cond.L.Unlock()
				w.cond.Broadcast()
			})
		} else {
			(*waker).Reset(d)
		}
		defer (*waker).Stop()
	}
	w.cond.Wait()
}

func expired(deadline, now time.Time) bool { return !deadline.IsZero() && !deadline.After(now) }

// Write sends p, in pieces if the link says so. It blocks while the window is full.
func (c *Conn) Write(p []byte) (n int, err error) {
	l, out := c.link, c.out
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		now := time.Now()
		switch {
		case c.closed:
			return n, c.error("write", net.ErrClosed)
		case l.broken != nil:
			return n, c.error("write", l.broken)
		case out.shut:
			return n, c.error("write", syscall.EPIPE)
		case expired(c.writeDeadline, now):
			return n, c.error("write", os.ErrDeadlineExceeded)
		}
		room := l.profile.Window - out.size
		if room <= 0 {
			out.wait(&c.writeWaker, c.writeDeadline, now)
			continue
		}
		k := min(room, len(p))
		if k > 1 && l.rng.Float64() < l.profile.Fragment {
			k = 1 + l.rng.IntN(k-1)
		}
		out.queue = append(out.queue, chunk{at: out.arrival(l), data: append([]byte(nil), p[:k]...)})
		out.size += k
		n, p = n+k, p[k:]
		out.cond.Broadcast()
	}
	return n, nil
}

// Close ends c. The far end still gets what is on its way.
func (c *Conn) Close() error {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.out.end(l, io.EOF)
	c.in.queue, c.in.size, c.in.shut = nil, 0, true
	l.wake()
	return nil
}

func (c *Conn) SetDeadline(t time.Time) error {
	return c.set(func() { c.readDeadline, c.writeDeadline = t, t })
}
func (c *Conn) SetReadDeadline(t time.Time) error  { return c.set(func() { c.readDeadline = t }) }
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(func() { c.writeDeadline = t }) }

func (c *Conn) set(f func()) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.error("set", net.ErrClosed)
	}
	f()
	c.link.wake()
	return nil
}

func (c *Conn) LocalAddr() net.Addr  { return addr(c.link.From) }
func (c *Conn) RemoteAddr() net.Addr { return addr(c.link.To) }

func (c *Conn) error(op string, err error) error {
	return &net.OpError{Op: op, Net: "sim", Addr: addr(c.link.To), Err: err}
}

type addr string

func (a addr) Network() string { return "sim" }
func (a addr) String() string  { return string(a) }
