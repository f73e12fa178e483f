package sink

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"
)

// patienceOfLog is how long a fault that heals by itself may last before it is worth a
// line: a leader that moves is none.
const patienceOfLog = 250 * time.Millisecond

// trouble is why something can't be delivered at the moment.
type trouble struct {
	key    string // troubles with the same key are told once an outage
	topic  string
	where  string // "partition 3 on broker 2", or less
	what   string // the code's name, or what the connection layer says
	why    string
	remedy string // what an operator can do
	urgent bool   // told at once: it does not heal by itself
}

func (t *trouble) String() string {
	s := t.what
	if t.topic != "" {
		s = "topic " + t.topic + ": " + s
	}
	if t.remedy != "" {
		s += ": " + t.remedy
	}
	return s
}

// outage tells of troubles once when they begin, and once when all of them are over.
type outage struct {
	log   zerolog.Logger
	since time.Time
	told  map[string]bool
}

// tell logs a trouble that lasts since a time, if it is new.
func (o *outage) tell(t *trouble, since time.Time) {
	if o.told[t.key] || !t.urgent && time.Since(since) < patienceOfLog {
		return
	}
	if len(o.told) == 0 {
		o.told = make(map[string]bool)
		o.since = since
	}
	o.told[t.key] = true
	e := o.log.Warn().Str("error", t.what)
	if t.topic != "" {
		e = e.Str("topic", t.topic)
	}
	if t.where != "" {
		e = e.Str("where", t.where)
	}
	if t.why != "" {
		e = e.Str("why", t.why)
	}
	if t.remedy != "" {
		e = e.Str("remedy", t.remedy)
	}
	e.Msg("events can't be delivered: trying on")
}

// over logs that the outage has ended, if there was one that was told of.
func (o *outage) over() {
	if len(o.told) > 0 {
		o.log.Info().Dur("outage_ms", time.Since(o.since)).Msg("events are delivered again")
		o.told = nil
	}
}

// codeTrouble describes a code that a broker answered for a topic.
func (p *Producer) codeTrouble(c code, topic, where string) *trouble {
	return &trouble{
		key:    c.name + " " + topic,
		topic:  topic,
		where:  where,
		what:   fmt.Sprintf("%s (%d)", c.name, c.number),
		why:    c.why,
		remedy: p.remedy(c.number, topic),
		urgent: c.action == operator,
	}
}

// remedy is what an operator can do about a code; "" = nothing but wait.
func (p *Producer) remedy(number int16, topic string) string {
	acl := "kafka-acls.sh --bootstrap-server " + p.bootstrap + " --add --allow-principal User:NAME "
	switch kafka.Error(number) {
	case kafka.UnknownTopicOrPartition:
		return fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 6 --replication-factor 3 --config min.insync.replicas=2 (or run with --create-topics 6:3)", p.bootstrap, topic)
	case kafka.TopicAuthorizationFailed:
		return acl + "--operation Write --operation Describe --topic " + topic
	case kafka.TransactionalIDAuthorizationFailed:
		return acl + "--operation Write --operation Describe --transactional-id walrelay- --resource-pattern-type prefixed"
	case kafka.ClusterAuthorizationFailed:
		return acl + "--operation IdempotentWrite --cluster (brokers before 2.8)"
	case kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend:
		return "bring the replicas back: kafka-topics.sh --bootstrap-server " + p.bootstrap + " --describe --topic " + topic + " shows which are out of sync"
	case kafka.LeaderNotAvailable:
		return "bring the brokers of its replicas back: kafka-topics.sh --bootstrap-server " + p.bootstrap + " --describe --topic " + topic
	}
	return ""
}

// topicTrouble describes why a topic can't be written to: what the cluster says of it,
// or why it could not be created.
func (p *Producer) topicTrouble(topic string, number int16, refusals map[string]refused) *trouble {
	no, ok := refusals[topic]
	if !ok {
		return p.codeTrouble(lookup(number), topic, "")
	}
	t := p.codeTrouble(lookup(no.code), topic, "")
	t.key += " create"
	t.what = "create the topic: " + t.what
	if no.message != "" {
		t.what += ": " + no.message
	}
	t.remedy = "let us create it (kafka-acls.sh: --operation Create --topic " + topic + "), or create it: " +
		p.remedy(int16(kafka.UnknownTopicOrPartition), topic)
	return t
}
