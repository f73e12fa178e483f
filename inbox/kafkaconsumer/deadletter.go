package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/inbox"
)

// Headers of a dead letter, beside the event's own. `walrelay dlt` reads them.
const (
	headerCause     = "walrelay-error"
	headerTopic     = "walrelay-original-topic"
	headerPartition = "walrelay-original-partition"
	headerOffset    = "walrelay-original-offset"
	headerTime      = "walrelay-original-timestamp"
	headerAttempts  = "walrelay-attempts"
	headerOmitted   = "walrelay-value-omitted"
)

const maxCause = 1 << 10

// park sends the event to the dead-letter topic, then records in the inbox that it was parked; the offset moves after
// that. It tries until ctx ends: neither may be left out.
func (p *partition) park(ctx context.Context, m *Message, attempts int, cause error) error {
	letter := p.deadLetter(m, attempts, cause)
	topic := p.deadLetterTopic(m.Topic)
	trouble := outage{log: p.log, what: "an event can't be parked: trying on; the dead-letter topic has to exist"}
	for waits := 1; ; waits++ {
		err := p.send(ctx, topic, &letter)
		if err == nil {
			err = pgx.BeginFunc(ctx, p.cfg.DB, func(tx pgx.Tx) error { return p.cfg.Inbox.Park(ctx, tx, m.Event) })
		}
		if err == nil {
			break
		}
		trouble.met(err, "dead_letter_topic", topic, "offset", m.Offset)
		if !p.pause(ctx, waits) {
			return ctx.Err()
		}
	}
	trouble.over()
	p.metrics.parked.WithLabelValues(p.topic).Inc()
	p.log.Warn("event is parked", "event_id", m.ID, "offset", m.Offset, "attempts", attempts, "dead_letter_topic", topic, "cause", cause)
	return nil
}

// letter is a record for the dead-letter topic.
type letter struct {
	partition int // the event's own, if the dead-letter topic has it
	key       []byte
	value     []byte
	headers   []kafka.Header
	time      time.Time
}

func (p *partition) deadLetter(m *Message, attempts int, cause error) letter {
	l := letter{partition: m.Partition, key: m.Key, value: m.Value, time: m.Time}
	// An event that was redriven and failed again has the headers of its last death.
	l.headers = slices.DeleteFunc(slices.Clone(m.Headers), func(h kafka.Header) bool {
		switch h.Key {
		case headerCause, headerTopic, headerPartition, headerOffset, headerTime, headerAttempts, inbox.HeaderParkedBy, string(inbox.CopyRedrive):
			return true
		}
		return false
	})
	text := strings.ToValidUTF8(strings.Join(strings.Fields(cause.Error()), " "), "?")
	l.add(headerCause, text[:min(len(text), maxCause)])
	l.add(headerTopic, m.Topic)
	l.add(headerPartition, strconv.Itoa(m.Partition))
	l.add(headerOffset, strconv.FormatInt(m.Offset, 10))
	l.add(headerAttempts, strconv.Itoa(attempts))
	l.add(inbox.HeaderParkedBy, p.cfg.Inbox.Consumer)
	return l
}

func (l *letter) add(name, value string) {
	l.headers = append(l.headers, kafka.Header{Key: name, Value: []byte(value)})
}

// send returns nil when all in-sync replicas have the letter. What the topic refuses of it is left away, and said.
func (p *partition) send(ctx context.Context, topic string, l *letter) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.kafka.Timeout)
	defer cancel()
	count, err := p.countPartitions(ctx, topic)
	if err != nil {
		return err
	}
	for {
		record := kafka.Record{Time: l.time, Key: bytesOf(l.key), Value: bytesOf(l.value), Headers: l.headers}
		res, err := p.kafka.Produce(ctx, &kafka.ProduceRequest{
			Topic: topic, Partition: l.partition % count, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(record),
		})
		if err == nil {
			err = res.Error
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, kafka.MessageSizeTooLarge) && l.value != nil:
			l.add(headerOmitted, strconv.Itoa(len(l.value)))
			l.value = nil
		case errors.Is(err, kafka.InvalidTimestamp) && !slices.ContainsFunc(l.headers, func(h kafka.Header) bool { return h.Key == headerTime }):
			l.add(headerTime, strconv.FormatInt(l.time.UnixMilli(), 10))
			l.time = time.Now()
		default:
			return fmt.Errorf("kafkaconsumer: send to %s: %w", topic, err)
		}
	}
}

func (c *Consumer) countPartitions(ctx context.Context, topic string) (int, error) {
	res, err := c.kafka.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	switch {
	case err != nil:
		return 0, fmt.Errorf("kafkaconsumer: look up %s: %w", topic, err)
	case len(res.Topics) != 1:
		return 0, fmt.Errorf("kafkaconsumer: look up %s: %w", topic, kafka.UnknownTopicOrPartition)
	case res.Topics[0].Error != nil:
		return 0, fmt.Errorf("kafkaconsumer: look up %s: %w", topic, res.Topics[0].Error)
	case len(res.Topics[0].Partitions) == 0:
		return 0, fmt.Errorf("kafkaconsumer: look up %s: %w", topic, kafka.LeaderNotAvailable)
	}
	return len(res.Topics[0].Partitions), nil
}

// bytesOf keeps nil apart from empty.
func bytesOf(b []byte) kafka.Bytes {
	if b == nil {
		return nil
	}
	return kafka.NewBytes(b)
}
