// Package simkafka is a model of a Kafka cluster of one to three brokers. It speaks
// the wire protocol over links of [simnet], as far as a producer needs it, with a codec
// that shares nothing with the relay's.
//
// What it models of the brokers: producer ids, epochs and sequences, of which the last
// five batches are remembered by partition; a log whose tail is not committed until the
// in-sync replicas have it, and can be lost with the leader until then; leaders that move,
// and brokers that hear of it late; brokers that go and come; topics that are deleted,
// created anew and have limits. And what goes wrong on the way: answers that are lost,
// late, throttled, or an error although the records were appended.
package simkafka

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// Config is how a cluster is built.
type Config struct {
	Brokers     int
	Replication int
	MinISR      int
	Partitions  int
	Topics      []string
	MaxBytes    int // max.message.bytes

	// Old brokers answer UNKNOWN_PRODUCER_ID where newer ones accept any sequence, and
	// DUPLICATE_SEQUENCE_NUMBER where those repeat the first answer.
	Old bool

	Delay time.Duration // most that the replication of a batch takes
}

// Hooks are called while the cluster's lock is held; they must not call back.
type Hooks struct {
	Committed func(Committed)              // a batch can be read by consumers from now on
	Acked     func(topic string, b *Batch) // a broker is about to say so to the producer
	Dropped   func(topic string)           // a topic is deleted, with all that is in it
	Note      func(format string, args ...any)
	Fault     func(format string, args ...any) // the client did what no client may do
}

// Committed is a batch that consumers can read.
type Committed struct {
	Topic     string
	Partition int32
	Base      int64 // offset of the first record
	Client    string
	Appended  time.Time
	*Batch
}

// Cluster is the brokers and what they store.
type Cluster struct {
	cfg   Config
	hooks Hooks
	net   *simnet.Network

	mu      sync.Mutex
	cond    sync.Cond // anything below changed
	rng     *rand.Rand
	closed  bool
	brokers []*broker // index = node id
	topics  map[string]*topic
	nextID  int64 // of producers
	made    byte  // topics so far
	mishaps []Mishap
}

type broker struct {
	id      int32
	host    string
	up      bool
	changed time.Time // when it went or came
	mute    time.Time // answers nothing before
}

type topic struct {
	name     string
	id       [16]byte
	parts    []*partition
	maxBytes int
	minISR   int
}

const port = 9092

// New starts a cluster.
func New(cfg Config, seed uint64, n *simnet.Network, hooks Hooks) *Cluster {
	c := &Cluster{cfg: cfg, hooks: hooks, net: n, rng: rand.New(rand.NewPCG(seed, 0x4b41)), topics: map[string]*topic{}, nextID: 4000}
	c.cond.L = &c.mu
	for i := range cfg.Brokers {
		b := &broker{id: int32(i), host: fmt.Sprintf("kafka-%d", i), up: true}
		c.brokers = append(c.brokers, b)
		n.Listen(b.addr(), func(conn *simnet.Conn) { c.serve(b, conn) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range cfg.Topics {
		c.create(name, cfg.Partitions, cfg.Replication, cfg.MinISR)
	}
	return c
}

func (b *broker) addr() string { return fmt.Sprintf("%s:%d", b.host, port) }

// Addrs are the addresses of the brokers.
func (c *Cluster) Addrs() []string {
	var all []string
	for _, b := range c.brokers {
		all = append(all, b.addr())
	}
	return all
}

func (c *Cluster) create(name string, partitions, replication, minISR int) *topic {
	c.made++
	t := &topic{name: name, id: [16]byte{1, 15: c.made}, maxBytes: c.cfg.MaxBytes, minISR: minISR}
	for i := range partitions {
		p := &partition{topic: t, index: int32(i), producers: map[int64]*producer{}}
		first := c.rng.IntN(len(c.brokers))
		for k := range min(replication, len(c.brokers)) {
			p.replicas = append(p.replicas, int32((first+k)%len(c.brokers)))
		}
		p.isr = slices.Clone(p.replicas)
		p.leader = p.replicas[0]
		for _, id := range p.replicas {
			if !c.brokers[id].up {
				c.leave(p, id)
			}
		}
		t.parts = append(t.parts, p)
	}
	c.topics[name] = t
	return t
}

// Close ends everything that waits. The network's end does the rest.
func (c *Cluster) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.cond.Broadcast()
}

func (c *Cluster) note(format string, args ...any) { c.hooks.Note("kafka: "+format, args...) }

// after runs f under the lock, unless the cluster is closed by then.
func (c *Cluster) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.closed {
			f()
			c.cond.Broadcast()
		}
	})
}

// between returns a random duration.
func (c *Cluster) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.rng.Int64N(int64(most-least)+1))
}
