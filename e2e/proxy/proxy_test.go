package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that sends back every line.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

// say sends a line and waits at most d for it to come back.
func (c *client) say(line string, d time.Duration) error {
	c.SetDeadline(time.Now().Add(d))
	if line != "" {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return err
		}
	}
	_, err := c.r.ReadString('\n')
	return err
}

func newProxy(t *testing.T, listen func(string) (*Proxy, error)) *Proxy {
	p, err := listen(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestPassAndDelay(t *testing.T) {
	p := newProxy(t, Listen)
	c := dial(t, p)
	if err := c.say("hello", time.Second); err != nil {
		t.Fatal(err)
	}
	p.Set(Both, Fault{Delay: 60 * time.Millisecond})
	begin := time.Now()
	if err := c.say("hello", time.Second); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < 120*time.Millisecond {
		t.Errorf("round trip with 60 ms of delay each way: %v", d)
	}
	p.Set(Down, Fault{Rate: 100})
	p.Set(Up, Fault{})
	begin = time.Now()
	if err := c.say("thirty bytes at a hundred a second", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < 200*time.Millisecond {
		t.Errorf("35 bytes at 100 bytes/s: %v", d)
	}
}

func TestStallHoldsAndReleases(t *testing.T) {
	for _, d := range []Direction{Up, Down, Both} {
		p := newProxy(t, Listen)
		c := dial(t, p)
		p.Set(d, Fault{Stall: true})
		if err := c.say("held", 50*time.Millisecond); !isTimeout(err) {
			t.Fatalf("direction %d: %v, want a timeout", d, err)
		}
		p.Pass()
		if err := c.say("", time.Second); err != nil {
			t.Errorf("direction %d: after the stall: %v", d, err)
		}
	}
}

func TestResetInTheMiddle(t *testing.T) {
	p := newProxy(t, Listen)
	c := dial(t, p)
	p.Set(Down, Fault{ResetAfter: 3})
	io.WriteString(c, "abcdef\n")
	c.SetDeadline(time.Now().Add(time.Second))
	got, err := io.ReadAll(c)
	if string(got) != "abc" || err == nil {
		t.Errorf("got %q, %v; want three bytes and a reset", got, err)
	}
	if p.Armed() {
		t.Error("the reset is still armed")
	}
	if err := dial(t, p).say("again", time.Second); err != nil {
		t.Error(err)
	}
}

func TestCutAndRefuse(t *testing.T) {
	p := newProxy(t, Listen)
	c := dial(t, p)
	if err := c.say("hello", time.Second); err != nil {
		t.Fatal(err)
	}
	p.Refuse(true)
	if err := c.say("refusing spares the old", time.Second); err != nil {
		t.Error(err)
	}
	p.Cut()
	if err := c.say("cut", time.Second); err == nil || isTimeout(err) {
		t.Errorf("after Cut: %v", err)
	}
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("connected to a refusing proxy")
	}
	p.Pass()
	if err := dial(t, p).say("hello", time.Second); err != nil {
		t.Error(err)
	}
}

func TestDropResponse(t *testing.T) {
	p := newProxy(t, Listen)
	c := dial(t, p)
	p.DropResponse()
	if err := c.say("lost", time.Second); err == nil || isTimeout(err) {
		t.Errorf("the response came, or nothing failed: %v", err)
	}
	if err := dial(t, p).say("once", time.Second); err != nil {
		t.Error(err)
	}
}

// frame is a Kafka request to an echo server, whose answer has the right correlation id
// because key and version are zero bytes of the same value.
func frame(key byte, id byte) []byte {
	return []byte{0, 0, 0, 10, 0, key, 0, 0, 0, 0, 0, id, 'x', 'y'}
}

func TestDropResponseToKafkaRequest(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // answers each request with its correlation id
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for {
			var f [14]byte
			if _, err := io.ReadFull(c, f[:]); err != nil {
				return
			}
			c.Write(append([]byte{0, 0, 0, 6}, append(f[8:12], 'o', 'k')...))
		}
	}()
	p, err := ListenKafka(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := dial(t, p)
	p.DropResponseTo(0)
	c.Write(append(append(frame(3, 1), frame(0, 2)...), frame(3, 3)...))
	c.SetDeadline(time.Now().Add(time.Second))
	got, err := io.ReadAll(c)
	if len(got) != 10 || got[7] != 1 || err == nil {
		t.Errorf("got %x, %v; want the first response alone, then a reset", got, err)
	}
	if p.Armed() {
		t.Error("still armed")
	}
}
