package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

const (
	relayPassword = "pass.w+ord-7"
	sessionLife   = 3 * time.Second // connections.max.reauth.ms
	guard         = "listener.name.guarded."
)

// guarded is a cluster of three brokers whose listener for the load lets not everybody in.
type guarded struct {
	*rig
	client   *sink.Client
	producer *sink.Producer
}

// newGuarded starts the cluster; nothing is written yet.
func newGuarded(t *testing.T, security string, config map[string]string, change func(*sink.ClientConfig)) *guarded {
	t.Helper()
	if testing.Short() {
		t.Skip("three brokers for a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	options := stack.KafkaOptions{Brokers: 3, Config: config, Listeners: map[string]string{"GUARDED": security}}
	if strings.HasPrefix(security, "SASL") {
		options.FormatArgs = []string{"--add-scram", "SCRAM-SHA-512=[name=relay,password=" + relayPassword + "]"}
		config[guard+"sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
		config[guard+"scram-sha-512.sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	}
	var err error
	g := &guarded{rig: startRig(t, ctx, "load", options)} // its own listener is plain
	k := g.kafka
	g.must(k.CreateTopics(ctx, partitions, nil, g.topic))
	cfg := sink.ClientConfig{Brokers: strings.Split(k.BootstrapOf("GUARDED"), ","), Log: zerolog.New(g)}
	if strings.HasPrefix(security, "SASL") {
		cfg.SASL = &sink.SASLConfig{Mechanism: "scram-sha-512", Username: "relay", Password: relayPassword}
	}
	change(&cfg)
	g.client, err = sink.NewClient(cfg)
	g.must(err)
	t.Cleanup(g.client.Close)
	g.producer = produceTo(t, g.client, func(c *sink.Config) { c.Log = cfg.Log })
	return g
}

// run puts the load on, and asks about the topic's health as the relay does; stop ends both and counts what has arrived.
func (g *guarded) run() (stop func()) {
	running, end := context.WithCancel(g.ctx)
	var all sync.WaitGroup
	all.Go(func() { g.load(running, g.producer) })
	all.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for running.Err() == nil {
			g.producer.Check(running, g.topic) // what it says is what Healthy says
			select {
			case <-tick.C:
			case <-running.Done():
			}
		}
	})
	return func() {
		end()
		all.Wait()
		g.check()
	}
}

// until waits for a condition, and returns for how long.
func (g *guarded) until(what string, is func() bool) time.Duration {
	g.t.Helper()
	begin := time.Now()
	for !is() {
		if time.Since(begin) > time.Minute || g.t.Failed() {
			ok, why := g.producer.Healthy()
			g.t.Fatalf("not within %v: %s; healthy %v %s\n%s", time.Since(begin).Round(time.Millisecond), what, ok, why, g.logged())
		}
		g.wait(10 * time.Millisecond)
	}
	return time.Since(begin)
}

// flows waits until writes come through and the producer says so; it returns for how long.
func (g *guarded) flows() time.Duration {
	g.t.Helper()
	before := g.written()
	first := g.until("a write", func() bool { return g.written() > before })
	g.until("more writes, in good health", func() bool {
		ok, _ := g.producer.Healthy()
		return ok && g.written() > before+50
	})
	return first
}

// stands breaks something, waits until readiness says that events wait, and why, and sees that nothing is written for a time.
func (g *guarded) stands(breakIt func(), why string) {
	g.t.Helper()
	breakIt()
	d := g.until("to be not ready", func() bool { ok, _ := g.producer.Healthy(); return !ok })
	if d > 5*time.Second {
		g.t.Errorf("ready for %v more", d)
	}
	named := d + g.until("readiness to say "+why, func() bool {
		_, reason := g.producer.Healthy()
		return strings.Contains(reason, "events wait") && strings.Contains(reason, why)
	})
	before := g.written()
	g.wait(2 * time.Second)
	ok, reason := g.producer.Healthy()
	if ok || g.written() != before || !strings.Contains(reason, why) {
		g.t.Errorf("healthy %v, %d writes where none can be: %s", ok, g.written()-before, reason)
	}
	g.t.Logf("not ready after %v, with the cause after %v: %s", d.Round(time.Millisecond), named.Round(time.Millisecond), reason)
}

// longest is the longest time without an acknowledged write since a moment.
func (g *guarded) longest(since time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return longest(pauses(g.writes, since))
}

// G1 G2 G5 G8: the right to write is taken away under load, then the right to know of the
// topic at all; events wait, readiness says so, and they go on when it is given back.
func TestG8RightsTakenAndGivenBack(t *testing.T) {
	g := newGuarded(t, "SASL_PLAINTEXT", map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS",
	}, func(*sink.ClientConfig) {})
	rights := func(ops ...kadm.ACLOperation) *kadm.ACLBuilder {
		return kadm.NewACLs().Topics(g.topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(ops...).Allow("User:relay").AllowHosts("*")
	}
	give := func(ops ...kadm.ACLOperation) {
		made, err := g.admin.CreateACLs(g.ctx, rights(ops...))
		g.must(err)
		for _, r := range made {
			g.must(r.Err)
		}
	}
	take := func(ops ...kadm.ACLOperation) {
		gone, err := g.admin.DeleteACLs(g.ctx, rights(ops...))
		g.must(err)
		for _, r := range gone {
			g.must(r.Err)
			if len(r.Deleted) != 1 {
				t.Fatalf("%d rights taken", len(r.Deleted))
			}
		}
	}
	give(kadm.OpWrite, kadm.OpDescribe)
	stop := g.run()
	g.flows()
	for _, ops := range [][]kadm.ACLOperation{{kadm.OpWrite}, {kadm.OpWrite, kadm.OpDescribe}, {kadm.OpWrite}} {
		begin := time.Now()
		g.stands(func() { take(ops...) }, "TOPIC_AUTHORIZATION_FAILED")
		give(ops...)
		back := g.flows()
		t.Logf("%v: the load stood for %v, and came back %v after they were given back", ops, g.longest(begin), back.Round(time.Millisecond))
		if back > 2*time.Second {
			t.Errorf("%v", back)
		}
	}
	stop()
}

// G1 G2 G8: all sessions end every three seconds under load. They are renewed in time: no
// connection is lost, so nothing has to be sent twice.
func TestG8SessionsExpireUnderLoad(t *testing.T) {
	handshakes := make(map[string]int) // by address
	var mu sync.Mutex
	g := newGuarded(t, "SASL_PLAINTEXT", map[string]string{
		guard + "connections.max.reauth.ms": fmt.Sprint(sessionLife.Milliseconds()),
	}, func(cfg *sink.ClientConfig) {
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return counted{conn, func() {
				mu.Lock()
				defer mu.Unlock()
				handshakes[addr]++
			}}, nil
		}
	})
	stop := g.run()
	g.flows()
	begin := time.Now()
	before := len(g.logged()) // a starved broker's start is not the matter
	mu.Lock()
	clear(handshakes)
	mu.Unlock()
	g.wait(8 * sessionLife)
	g.flows()
	sessions := int(time.Since(begin) / sessionLife)
	mu.Lock()
	t.Logf("%d lifetimes, handshakes %v, the load stood for %v at most", sessions, handshakes, g.longest(begin))
	if len(handshakes) != 3 {
		t.Errorf("%d brokers", len(handshakes))
	}
	for addr, n := range handshakes {
		if n < sessions {
			t.Errorf("%d handshakes with %s in %d lifetimes", n, addr, sessions)
		}
	}
	mu.Unlock()
	log := g.logged()[before:]
	stop()
	for line := range strings.Lines(log) {
		// We give up a broker that is starved; one that ends a session says nothing before it closes.
		if strings.Contains(line, "connection closed") && !strings.Contains(line, "deadline exceeded") {
			t.Errorf("a connection was lost: %s", line)
		}
	}
}

// counted counts the SASL handshakes that are sent; a frame's head is written in one piece.
type counted struct {
	net.Conn
	handshake func()
}

func (c counted) Write(p []byte) (int, error) {
	if len(p) >= 6 && binary.BigEndian.Uint16(p[4:]) == uint16(protocol.SaslHandshake) && binary.BigEndian.Uint32(p) < 1<<10 {
		c.handshake()
	}
	return c.Conn.Write(p)
}
