package simkafka

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// Mishap is what happens to one produce request.
type Mishap struct {
	Kind  MishapKind
	Code  int16         // Refuse, FailAfterAppend
	Delay time.Duration // Late, Throttle
}

// MishapKind says where on its way a produce request meets its fate.
type MishapKind int

const (
	None            MishapKind = iota
	LoseRequest                // the connection is cut before the broker looks at it
	LoseAnswer                 // it is appended, and the connection is cut
	Refuse                     // answered with a code, not appended
	FailAfterAppend            // appended, and answered with a code
	Late                       // appended, and answered late
	Throttle                   // appended, answered, and the client is asked to pause
)

func (m Mishap) String() string {
	name := [...]string{"", "lose request", "lose answer", "refuse", "fail after append", "late", "throttle"}[m.Kind]
	switch m.Kind {
	case Refuse, FailAfterAppend:
		return fmt.Sprintf("%s: %v", name, kerr.ErrorForCode(m.Code))
	case Late, Throttle:
		return fmt.Sprintf("%s by %s", name, m.Delay)
	}
	return name
}

// Befall lets the next n produce requests meet m.
func (c *Cluster) Befall(m Mishap, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.mishaps = append(c.mishaps, m)
	}
}

func (c *Cluster) mishap() Mishap {
	if len(c.mishaps) == 0 {
		return Mishap{}
	}
	m := c.mishaps[0]
	c.mishaps = c.mishaps[1:]
	return m
}

// Heal forgets mishaps that have not happened yet.
func (c *Cluster) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mishaps = nil
}

// Crash takes a broker away for a while. The in-sync replicas shrink after a moment,
// and grow again a moment after it is back.
func (c *Cluster) Crash(id int, downFor time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[id]
	if !b.up {
		return
	}
	c.note("broker %d goes down for %s", id, downFor)
	b.up, b.changed = false, time.Now()
	c.net.SetReach(b.addr(), simnet.Refused)
	for _, l := range c.net.Links(func(l *simnet.Link) bool { return l.To == b.addr() }) {
		l.Reset()
	}
	c.cond.Broadcast()
	c.after(c.between(10*time.Millisecond, 3*time.Second), func() {
		if !b.up {
			c.each(func(p *partition) {
				if slices.Contains(p.isr, b.id) {
					c.leave(p, b.id)
				}
			})
		}
	})
	c.after(downFor, func() {
		b.up, b.changed = true, time.Now()
		c.net.SetReach(b.addr(), simnet.Up)
		c.note("broker %d is up again", id)
		c.each(func(p *partition) { c.elect(p); c.commit(p) })
		c.after(c.between(10*time.Millisecond, 2*time.Second), func() { c.rejoin(b) })
	})
}

// rejoin puts a broker back into the in-sync sets of its partitions.
func (c *Cluster) rejoin(b *broker) {
	if !b.up {
		return
	}
	c.each(func(p *partition) {
		if slices.Contains(p.replicas, b.id) && !slices.Contains(p.isr, b.id) {
			p.isr = append(slices.Clone(p.isr), b.id)
		}
		c.elect(p)
		c.commit(p)
	})
}

func (c *Cluster) each(f func(*partition)) {
	for _, name := range c.names() {
		for _, p := range c.topics[name].parts {
			f(p)
		}
	}
}

// names lists the topics in a fixed order.
func (c *Cluster) names() []string {
	var names []string
	for name := range c.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Mute has a broker answer nothing for a while; its connections stay open.
func (c *Cluster) Mute(id int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brokers[id].mute = time.Now().Add(d)
	c.note("broker %d is mute for %s", id, d)
}

// Shrink takes a replica out of all in-sync sets for a while, as a slow disk does.
func (c *Cluster) Shrink(id int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[id]
	c.note("broker %d falls out of sync for %s", id, d)
	c.each(func(p *partition) {
		if slices.Contains(p.isr, b.id) {
			c.leave(p, b.id)
		}
	})
	c.after(d, func() { c.rejoin(b) })
}

// MoveLeaders has every partition elect another leader.
func (c *Cluster) MoveLeaders() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("all leaders move")
	c.each(func(p *partition) {
		if p.leader >= 0 {
			c.depose(p)
		}
	})
}

// Delete removes a topic, and creates it anew after a while.
func (c *Cluster) Delete(index int, goneFor time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names()
	if len(names) == 0 {
		return
	}
	t := c.topics[names[index%len(names)]]
	c.note("topic %s is deleted for %s", t.name, goneFor)
	delete(c.topics, t.name)
	c.hooks.Dropped(t.name)
	c.cond.Broadcast()
	c.after(goneFor, func() {
		if c.topics[t.name] == nil {
			c.note("topic %s is created again", t.name)
			c.create(t.name, len(t.parts), c.cfg.Replication, t.minISR)
		}
	})
}

// Expire forgets all producer ids, as producer.id.expiration.ms does after a day.
func (c *Cluster) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("all producer ids expire")
	c.each(func(p *partition) {
		p.forgotten = len(p.log)
		clear(p.producers)
	})
}

// SetMaxBytes changes every topic's max.message.bytes.
func (c *Cluster) SetMaxBytes(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("max.message.bytes is %d now", n)
	for _, t := range c.topics {
		t.maxBytes = n
	}
}
