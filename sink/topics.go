package sink

import (
	"errors"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/decode"
)

// target is a topic that events go to, as the cluster last described it. Everything
// but the insides of its ledgers is under Producer.mu.
type target struct {
	name      string
	published prometheus.Counter

	partitions []Partition // empty = not known
	id         [16]byte
	missing    bool
	config     topicConfig
	learned    int       // record batches of more bytes were refused; 0 = none yet
	weak       string    // why acknowledged events could be lost with one broker; "" = they can't, or not known
	tolerated  bool      // weak, and that is all right here
	since      time.Time // events wait for the topic to be known since then; zero = none do

	ledgers []*ledger // by partition
}

// ledger is how a partition's record batches are numbered, and what is known to be in it. It
// belongs to the goroutine that delivers.
//
// Invariant: next is the sequence behind the last acknowledged record of id. A number that may have been
// used for other records is never used again: the partition then gets a new id.
type ledger struct {
	id     identity
	spent  identity // an id that this partition has used up
	next   int32
	offset int64         // of the last acknowledged record; -1 = none yet
	lsn    pglogrepl.LSN // its commit LSN
	since  time.Time     // its first batch waits to be acknowledged since then; zero = none waits
}

// topicConfig is what DescribeConfigs said.
type topicConfig struct {
	read    time.Time // zero = never
	limit   int       // max.message.bytes; 0 = not known
	minISR  int       // min.insync.replicas; 0 = not known
	compact bool      // cleanup.policy has compact
	expires bool      // cleanup.policy has delete
}

// shape is what must be known of a topic to route and cut its events.
type shape struct {
	illegal    bool // no topic can have the name
	partitions int32
	limit      int
	learned    int
	compact    bool
}

// cut is the most bytes of a record batch of several records.
func (l *shape) cut() int {
	n := frameLimit
	if l.limit > 0 {
		n = min(n, l.limit)
	}
	if l.learned > 0 {
		n = min(n, l.learned)
	}
	return n
}

// target returns the entry of a topic with a legal name. Under Producer.mu.
func (p *Producer) target(name string) *target {
	t := p.targets[name]
	if t == nil {
		t = &target{name: name, published: p.metrics.published.WithLabelValues(name)}
		p.targets[name] = t
	}
	return t
}

func (t *target) shape() shape {
	return shape{
		partitions: int32(len(t.partitions)),
		limit:      t.config.limit,
		learned:    t.learned,
		compact:    t.config.compact,
	}
}

// shareOf returns the part of pr that goes to the topic.
func (p *Producer) shareOf(pr *Prepared, topic string) *share {
	if pr.last != nil && pr.last.name == topic {
		return pr.last
	}
	s := pr.byTopic[topic]
	if s == nil {
		s = &share{name: topic}
		if !decode.LegalTopic(topic) {
			s.asOf.illegal = true
		} else {
			p.mu.Lock()
			s.target = p.target(topic)
			s.asOf, s.ledgers = s.target.shape(), s.target.ledgers
			p.mu.Unlock()
		}
		if pr.byTopic == nil {
			pr.byTopic = make(map[string]*share)
		}
		pr.byTopic[topic] = s
		pr.shares = append(pr.shares, s)
	}
	pr.last = s
	return s
}

// refusal says why the topic can't take the event; "" = it may. Not certain: what is
// known of the topic may be too old.
func (s *share) refusal(ev *decode.Event) (reason string, certain bool) {
	switch {
	case s.asOf.illegal:
		return "the topic's name is not legal in Kafka", true
	case s.asOf.partitions == 0:
		return "", false
	case ev.Partition >= s.asOf.partitions:
		return noPartitionReason(ev.Partition, s.asOf.partitions), false
	case s.asOf.compact && ev.Key == nil:
		return "the event has no key and the topic is compacted", false
	}
	return "", false
}

// learn takes in what the cluster says about a topic. Under Producer.mu.
func (p *Producer) learn(now Topic) (code int16) {
	t := p.target(now.Name)
	code = codeOf(now.Err)
	t.missing = code == int16(kafka.UnknownTopicOrPartition)
	if code != 0 {
		return code
	}
	old := len(t.partitions)
	switch {
	case old > 0 && t.id != now.ID && t.id != [16]byte{} && now.ID != [16]byte{}:
		p.log.Warn().Str("topic", t.name).Int("partitions", len(now.Partitions)).
			Msg("topic was deleted and created again: what was published to it is gone")
	case old > 0 && old != len(now.Partitions):
		p.log.Warn().Str("topic", t.name).Int("before", old).Int("partitions", len(now.Partitions)).
			Msg("topic has another number of partitions: keys change their partition, and their order holds from here on only")
	}
	if len(now.Partitions) == 0 {
		return int16(kafka.LeaderNotAvailable)
	}
	t.partitions, t.id = now.Partitions, now.ID
	for len(t.ledgers) < len(t.partitions) {
		t.ledgers = append(t.ledgers, &ledger{id: noIdentity, spent: noIdentity, offset: -1})
	}
	return 0
}

// leader returns the broker to send a partition's batches to; -1 = none is known.
// Under Producer.mu.
func (t *target) leader(partition int32) int32 {
	if int(partition) >= len(t.partitions) {
		return -1
	}
	return t.partitions[partition].Leader
}

// codeOf returns the error code in err; an error that has none counts as unknown.
func codeOf(err error) int16 {
	var k kafka.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &k):
		return int16(k)
	}
	return int16(kafka.Unknown)
}
