package replication

import (
	"net"
	"time"
)

// How the socket is read decides what a row costs. The walsender sends every row
// by itself. A reader that wakes for each of them is woken 100,000 times a second
// and keeps the walsender busy with waking it. So when a backlog is read, the
// reader sleeps before it reads, and takes what has come in one read.
//
//   - It must happen below TLS: above it a read ends with the TLS record.
//   - It must not happen when the reader keeps up, or each event is late. The
//     backlog is seen by the server's own clock: when the commit that is being
//     read is older than bulkLag at the moment it is sent. A slow link or a steady
//     trickle are none.
//   - A timer for each message, or a deadline for each read, costs more than the
//     parsing of a row. Both are touched only before a read that may block.
const (
	nap       = 8 * time.Millisecond  // before a read in bulk; see `make bench` for what other values give
	bulkLag   = 20 * time.Millisecond // age of the commit being read that makes a backlog
	bulkReads = 16                    // so many reads in a row, each within bulkGap of the one before
	bulkGap   = 2 * time.Millisecond
	emptyWait = time.Millisecond // a read in bulk that takes longer has found the socket empty
)

// socket is the connection below TLS. While the stream runs, Read serves only
// what fill has brought, and says errDrained when that is consumed: the one place
// that blocks is fill. Without TLS fill reads right into the inbox.
//
// One goroutine reads and fills; any goroutine may move the read deadline into
// the past to interrupt fill.
type socket struct {
	net.Conn
	network, addr string

	streaming bool
	in        *inbox    // above TLS
	plain     bool      // there is no TLS
	records   window    // for TLS to read
	deadline  time.Time // the read deadline as fill last set it; zero: unknown
	full      bool      // the last read took all there was room for

	bulk   bool
	near   int       // reads in a row within bulkGap
	readAt time.Time // when the last bytes were received
}

// errDrained is what Read returns when every received byte is consumed, also in
// the middle of a message. It looks like an expired deadline, which crypto/tls
// and pgproto3 let pass without losing what they hold.
var errDrained net.Error = drained{}

type drained struct{}

func (drained) Error() string   { return "drained" }
func (drained) Timeout() bool   { return true }
func (drained) Temporary() bool { return true }

func (c *socket) Read(p []byte) (int, error) {
	if b := &c.records; b.r < b.w {
		n := copy(p, b.buf[b.r:b.w])
		b.r += n
		return n, nil
	}
	if c.streaming {
		return 0, errDrained
	}
	return c.Conn.Read(p)
}

// until sets the read deadline, if it is another one than it has.
func (c *socket) until(t time.Time) error {
	if c.deadline.Equal(t) {
		return nil
	}
	c.deadline = t
	return c.SetReadDeadline(t)
}

// soon is a deadline, not after due, at which an empty socket is noticed: the one
// that is set, if it leaves enough time, since to move it costs more than a row.
func (c *socket) soon(now, due time.Time) time.Time {
	at := now.Add(2 * emptyWait)
	if c.deadline.After(now.Add(emptyWait)) && c.deadline.Before(at) {
		at = c.deadline
	}
	if due.Before(at) {
		return due
	}
	return at
}

// fill reads once, at most up to the deadline. lag is the age of the commit being read. A
// deadline that passed is no error: then nothing was received.
func (c *socket) fill(lag time.Duration) (n int, err error) {
	b, need := &c.records, 0
	if c.plain {
		b, need = &c.in.window, c.in.need
	}
	if c.full && len(b.buf) < maxBuffer {
		need = max(need, min(4*len(b.buf), maxBuffer)) // more was waiting
	}
	p := b.room(need)
	n, err = c.Conn.Read(p)
	b.w += n
	c.full = n == len(p)
	if n == 0 {
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			c.deadline = time.Time{} // perhaps moved by another goroutine
			return 0, nil
		}
		return 0, err
	}
	c.pace(time.Now(), lag)
	return n, nil // an error beside bytes comes again
}

// pace enters bulk, and leaves it when the backlog is worked off; wait leaves it
// when the socket is empty.
func (c *socket) pace(now time.Time, lag time.Duration) {
	if now.Sub(c.readAt) < bulkGap {
		c.near++
	} else {
		c.near = 0
	}
	c.readAt = now
	c.bulk = lag > bulkLag && (c.bulk || c.near >= bulkReads)
}

// sleepy reports whether to sleep before the next read: in bulk, unless the last
// one filled the buffer. Never on a unix socket: the walsender's send buffer holds
// some 170 rows there, and it stands still for the rest of the sleep.
func (c *socket) sleepy() bool { return c.bulk && !c.full && c.network != "unix" }
