// Package sink writes events to Kafka, in order on every partition, and knows when
// they are acknowledged.
//
// The way of one batch of events: Prepare routes and encodes them (prepared.go), Deliver sends what is ready
// to all leaders at once (deliver.go, flight.go) and acts on the answers by the table of codes (settle.go, codes.go).
package sink

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/walrelay/walrelay/decode"
)

// Policy says what becomes of an event that can never be published.
type Policy int

const (
	PoisonStop       Policy = iota // Write ends with a *decode.PoisonError
	PoisonDeadLetter               // the event goes to the dead-letter topic
)

// CreateTopics is how missing topics are created.
type CreateTopics struct {
	Partitions  int32
	Replication int16
}

// Config says how a [Producer] writes.
type Config struct {
	Client *Client

	Compression string // none, gzip, snappy, lz4, zstd; "" = none
	BatchBytes  int    // most bytes of one record batch, uncompressed, headers included; 0 = 1 MiB

	Poison          Policy
	DeadLetterTopic string                  // "{topic}" stands for the event's topic; "" = {topic}.DLT
	Allowed         func(topic string) bool // the allow-list: what a dead-letter topic's name may be built upon
	Expected        func(topic string) bool // topics that events are known to go to before the first one does; nil = none

	// Transactional producers write by [Producer.Transact], after [Producer.Fence]; others by [Producer.Write].
	Transactional bool

	CreateTopics    *CreateTopics // nil: a missing topic is waited for
	AllowWeakTopics bool          // accept topics that lose acknowledged events with one broker

	Log     zerolog.Logger
	Metrics *Metrics // nil = not exported
}

// cluster is what the producer needs of the connection layer; [Client] is it.
type cluster interface {
	Send(ctx context.Context, broker int32, req protocol.Message) (protocol.Message, error)
	RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error)
	Metadata(ctx context.Context, topics ...string) (map[string]Topic, error)
	Refresh(topics ...string)
	Reset()
}

// Producer writes events to Kafka, in order on every partition, and knows when they
// are acknowledged by all in-sync replicas. Write, Deliver and Reset belong to one
// goroutine at a time; Prepare may run beside them; Healthy and Check may be called
// from anywhere.
type Producer struct {
	cluster     cluster
	bootstrap   string // for the commands that an operator is told,
	principal   string // and in them who we are
	codec       compress.Codec
	batchBytes  int
	policy      Policy
	deadLetters string
	allowed     func(string) bool
	expected    func(string) bool // nil = none
	create      *CreateTopics
	allowWeak   bool
	log         zerolog.Logger
	metrics     *Metrics

	// The deliverer's own.
	id       identity     // the newest; partitions take it when they need one
	logTopic string       // topic of a [Log] that this producer writes; "" = none
	txn      *transaction // nil: not a transactional producer
	patience map[int32]time.Duration
	outage   outage

	mu         sync.Mutex // never held across I/O
	targets    map[string]*target
	free       []*Prepared
	stuckSince time.Time // something waits to be acknowledged since then; zero = nothing
	stuckBy    *trouble  // why; nil = no answer
	checkErr   error     // of the last Check that could not ask the cluster; errNotAsked before the first
	surveyed   bool      // the expected topics have been looked at once
}

// NewProducer checks the configuration; it does no I/O, so its errors are all errors of configuration.
func NewProducer(cfg Config) (*Producer, error) {
	p, err := newProducer(cfg, cfg.Client)
	if err == nil {
		p.bootstrap = strings.Join(cfg.Client.cfg.Brokers, ",")
		if sasl := cfg.Client.cfg.SASL; sasl != nil && sasl.Username != "" {
			p.principal = sasl.Username
		}
	}
	return p, err
}

func newProducer(cfg Config, c cluster) (*Producer, error) {
	codec, ok := codecs[cfg.Compression]
	if !ok {
		return nil, fmt.Errorf("--compression %q: use none, gzip, snappy, lz4 or zstd", cfg.Compression)
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1 << 20
	}
	if cfg.BatchBytes < 1<<10 || cfg.BatchBytes > frameLimit {
		return nil, fmt.Errorf("--batch-bytes %d: use 1KiB to %d, and no more than the topics' max.message.bytes", cfg.BatchBytes, frameLimit)
	}
	if cfg.DeadLetterTopic == "" {
		cfg.DeadLetterTopic = deadLetterDefault
	}
	if !decode.LegalTopic(strings.ReplaceAll(cfg.DeadLetterTopic, "{topic}", "t")) || cfg.DeadLetterTopic == "{topic}" {
		return nil, fmt.Errorf("--dead-letter-topic %q: not a name that a topic can have, with {topic} for the event's own", cfg.DeadLetterTopic)
	}
	if c := cfg.CreateTopics; c != nil && (c.Partitions < 1 || c.Replication < 1) {
		return nil, fmt.Errorf("--create-topics %d:%d: partitions and replication factor are at least 1", c.Partitions, c.Replication)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Allowed == nil {
		cfg.Allowed = func(string) bool { return false } // dead letters then go to the last resort
	}
	var txn *transaction
	if cfg.Transactional {
		txn = &transaction{spent: true, joined: make(map[place]bool)}
	}
	return &Producer{
		cluster:     c,
		txn:         txn,
		bootstrap:   "HOST:PORT",
		principal:   "PRINCIPAL",
		codec:       codec,
		batchBytes:  cfg.BatchBytes,
		policy:      cfg.Poison,
		deadLetters: cfg.DeadLetterTopic,
		allowed:     cfg.Allowed,
		expected:    cfg.Expected,
		create:      cfg.CreateTopics,
		allowWeak:   cfg.AllowWeakTopics,
		log:         cfg.Log,
		metrics:     cfg.Metrics,
		id:          noIdentity,
		patience:    make(map[int32]time.Duration),
		outage:      outage{log: cfg.Log},
		targets:     make(map[string]*target),
		checkErr:    errNotAsked,
	}, nil
}

// Write returns how many events from the front are acknowledged by all in-sync
// replicas; err is nil iff that is all of them. Transient faults are retried for
// ever: Write ends early only with ctx, with a *decode.PoisonError under
// [PoisonStop] (everything before that event is acknowledged), or with a *CodeError.
func (p *Producer) Write(ctx context.Context, events []decode.Event) (n int, err error) {
	if len(events) == 0 {
		return 0, nil
	}
	return p.Deliver(ctx, p.Prepare(events))
}

// Prepare routes and encodes events without asking the cluster for anything. The
// events are read until the Prepared has been delivered.
//
// What was prepared first has to be delivered first, and when a delivery ends with
// an error, what was prepared behind it must not be delivered.
func (p *Producer) Prepare(events []decode.Event) *Prepared {
	p.mu.Lock()
	var pr *Prepared
	if n := len(p.free); n > 0 {
		pr = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		pr = new(Prepared)
	}
	p.mu.Unlock()
	pr.events, pr.end = events, len(events)
	if cap(pr.route) < len(events) {
		n := len(events) + len(events)/4
		pr.route, pr.sizes = make([]int32, n), make([]int32, n)
	}
	pr.route, pr.sizes = pr.route[:len(events)], pr.sizes[:len(events)]
	for i := range pr.route {
		pr.route[i] = unrouted
	}
	p.plan(pr)
	return pr
}

// recycle keeps the memory of a Prepared for the next one, unless it has become much more than this one used.
func (p *Producer) recycle(pr *Prepared) {
	next := &Prepared{route: pr.route[:0], sizes: pr.sizes[:0]}
	if cap(pr.raw) <= 1<<20+4*len(pr.raw) {
		next.raw = pr.raw[:0]
	}
	if cap(pr.packed) <= 1<<20+4*len(pr.packed) {
		next.packed = pr.packed[:0]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < 2 {
		p.free = append(p.free, next)
	}
}

// Reset forgets producer id and sequences and drops all connections: for a relay
// that has learnt that another one holds the slot.
func (p *Producer) Reset() {
	p.id = noIdentity
	if p.txn != nil {
		p.txn.spent = true
	}
	p.mu.Lock()
	for _, t := range p.targets {
		for _, l := range t.ledgers {
			l.id, l.since = noIdentity, time.Time{}
		}
		t.since = time.Time{}
	}
	p.stuckSince, p.stuckBy = time.Time{}, nil
	p.mu.Unlock()
	p.cluster.Reset()
}
