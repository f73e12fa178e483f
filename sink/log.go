package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/walrelay/walrelay/decode"
)

// Log is a compacted topic that keeps the newest value of each key: written by fenced producers, one for each
// key, and read whole. Only its partition 0 is used, so that the number of partitions does not matter.
type Log struct {
	topic    string
	producer *Producer
	seen     bool // the topic was looked at once
}

// NewLog is the log in a topic, written by a transactional producer, which may write other things as well.
func NewLog(topic string, p *Producer) (*Log, error) {
	if !decode.LegalTopic(topic) {
		return nil, fmt.Errorf("%q is no name that a topic can have", topic)
	}
	if topic[0] == '_' {
		return nil, fmt.Errorf("%q: names that begin with _ are those of Kafka's internal topics", topic)
	}
	p.logTopic = topic
	return &Log{topic: topic, producer: p}, nil
}

// Topic is the name of the log's topic.
func (l *Log) Topic() string { return l.topic }

// Fence makes sure that the topic is there, and makes this process the only one that
// writes as the transactional id. See [Producer.Fence].
func (l *Log) Fence(ctx context.Context, id string) error {
	if err := l.open(ctx); err != nil {
		return err
	}
	return l.producer.Fence(ctx, id)
}

// own reports whether a topic is that of the producer's log, whose records are no events.
func (p *Producer) own(topic string) bool { return p.logTopic != "" && topic == p.logTopic }

// Append writes one record in a transaction of its own.
func (l *Log) Append(ctx context.Context, key, value []byte) error {
	_, err := l.producer.Transact(ctx, []decode.Event{l.Event(key, value)})
	return err
}

// Event is the record as an event, to be written with others in one transaction.
func (l *Log) Event(key, value []byte) decode.Event {
	return decode.Event{Topic: l.topic, Key: key, Value: value, Timestamp: time.Now().UnixMilli()}
}

// open tries until the topic is there and its configuration is known to be right.
func (l *Log) open(ctx context.Context) error {
	p := l.producer
	begun := time.Now()
	for tries := 0; ; tries++ {
		s, err := l.look(ctx)
		var t *trouble
		switch number := codeOf(s.topics[l.topic].Err); {
		case ctx.Err() != nil:
			return fmt.Errorf("sink: open topic %s: %w", l.topic, context.Cause(ctx))
		case errors.Is(err, errClientClosed):
			return err
		case err != nil:
			t = linkTrouble("topic "+l.topic, err)
		case number != 0:
			t = p.topicTrouble(l.topic, number, s.refused)
			t.remedy = l.create()
		default:
			return l.judge(s)
		}
		if t.urgent && time.Since(begun) > refusedPatience {
			return &AuthError{Broker: "topic " + l.topic, Reason: t.what, Remedy: t.remedy}
		}
		p.outage.tell(t, begun)
		p.cluster.Refresh(l.topic)
		if err := pause(ctx, backoff(tries)); err != nil {
			return fmt.Errorf("sink: open topic %s: %w", l.topic, err)
		}
	}
}

// judge refuses a topic that would lose positions.
func (l *Log) judge(s sight) error {
	p := l.producer
	c, known := s.configs[l.topic]
	if known && (!c.compact || c.expires) {
		return &TopicError{Topic: l.topic, Reason: "its cleanup.policy is not compact, so that what is saved in it expires",
			Remedy: fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config cleanup.policy=compact", p.bootstrap, l.topic)}
	}
	weak := p.apply(s)
	first := !l.seen
	l.seen = true
	if len(weak) > 0 && first { // later it is not ready, and says so
		return &WeakTopicError{Topics: weak, Remedy: []string{p.mend(l.topic, weakness(s.topics[l.topic], c.minISR))}}
	}
	p.outage.over()
	return nil
}

// look asks for the topic, and creates it where it is missing.
func (l *Log) look(ctx context.Context) (sight, error) {
	p := l.producer
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s := sight{refused: map[string]refused{}}
	var err error
	if s.topics, err = p.cluster.Metadata(ctx, l.topic); err != nil {
		return s, err
	}
	if codeOf(s.topics[l.topic].Err) == int16(kafka.UnknownTopicOrPartition) {
		if err := l.make(ctx, &s); err != nil {
			return s, err
		}
	}
	if s.configs, err = p.describe(ctx, s.topics, []string{l.topic}); err == nil {
		s.local, err = p.isLocal(ctx)
	}
	return s, err
}

// The topic's segments are small: only closed ones are compacted, and what is left is read at each start.
var logConfig = []createtopics.RequestConfig{
	{Name: "cleanup.policy", Value: "compact"},
	{Name: "segment.bytes", Value: strconv.Itoa(8 << 20)},
	{Name: "segment.ms", Value: "3600000"},
	{Name: "min.cleanable.dirty.ratio", Value: "0.1"},
	{Name: "delete.retention.ms", Value: "60000"},
}

// make creates the topic, with three replicas where there are so many brokers.
func (l *Log) make(ctx context.Context, s *sight) error {
	p := l.producer
	m, err := p.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: []string{}})
	if err != nil {
		return err
	}
	replicas := min(3, len(m.(*metadata.Response).Brokers))
	req := &createtopics.Request{TimeoutMs: int32(lookTimeout.Milliseconds()), Topics: []createtopics.RequestTopic{{
		Name: l.topic, NumPartitions: 1, ReplicationFactor: int16(replicas),
		Configs: append(logConfig[:len(logConfig):len(logConfig)], createtopics.RequestConfig{Name: "min.insync.replicas", Value: strconv.Itoa(replicas/2 + 1)}),
	}}}
	m, err = p.cluster.RoundTrip(ctx, nil, req)
	if err != nil {
		return fmt.Errorf("sink: create topic %s: %w", l.topic, err)
	}
	for _, t := range m.(*createtopics.Response).Topics {
		switch kafka.Error(t.ErrorCode) {
		case 0:
			p.log.Info().Str("topic", l.topic).Int("replication", replicas).Msg("checkpoint topic created")
		case kafka.TopicAlreadyExists:
		default:
			s.refused[l.topic] = refused{t.ErrorCode, t.ErrorMessage}
			return nil
		}
	}
	p.cluster.Refresh(l.topic)
	s.topics, err = p.cluster.Metadata(ctx, l.topic)
	return err
}

// create is the command for who has to create the topic by hand.
func (l *Log) create() string {
	text := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 1 --replication-factor 3 --config min.insync.replicas=2", l.producer.bootstrap, l.topic)
	for _, c := range logConfig {
		text += " --config " + c.Name + "=" + c.Value
	}
	return text
}
