package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/walrelay/walrelay/decode"
)

// redriveGroup is the consumer group whose committed offsets say how far a dead-letter topic was redriven. It has no members.
const redriveGroup = "walrelay-redrive"

const letterBytes = 1 << 20 // of one fetch

// ErrNoLetter is returned where a dead letter is asked for by an offset that has none.
var ErrNoLetter = errors.New("sink: there is no dead letter at this offset")

// Letter is one record of a dead-letter topic, the relay's or a consumer's.
type Letter struct {
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time
	Redriven  bool // sent again already

	Key, Value []byte // nil = none
	Headers    []decode.Header
}

// Header returns the value of the first header with a name; "" = none.
func (l *Letter) Header(name string) string {
	for _, h := range l.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// Letters is a dead-letter topic as it was when it was opened: what is added later is left for the next time.
type Letters struct {
	client *Client
	topic  string
	spans  []span
}

// span is what a partition holds: offsets from first up to end, the latter excluded. What is before pending was redriven.
type span struct {
	partition           int32
	first, pending, end int64
}

// OpenLetters looks up what a dead-letter topic holds.
func OpenLetters(ctx context.Context, c *Client, topic string) (*Letters, error) {
	found, err := c.Metadata(ctx, topic)
	if err == nil {
		err = found[topic].Err
	}
	if err != nil {
		return nil, fmt.Errorf("sink: look up dead-letter topic %q: %w", topic, err)
	}
	l := &Letters{client: c, topic: topic}
	ask := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}, IsolationLevel: kafka.ReadCommitted}
	var all []int
	for i := range found[topic].Partitions {
		all = append(all, i)
		ask.Topics[topic] = append(ask.Topics[topic], kafka.FirstOffsetOf(i), kafka.LastOffsetOf(i))
	}
	bounds, err := c.Admin().ListOffsets(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("sink: look up offsets of %q: %w", topic, err)
	}
	redriven, err := c.Admin().OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: redriveGroup, Topics: map[string][]int{topic: all}})
	if err == nil {
		err = redriven.Error
	}
	if err != nil {
		return nil, fmt.Errorf("sink: look up how far %q was redriven (group %s): %w", topic, redriveGroup, err)
	}
	for _, b := range bounds.Topics[topic] {
		if b.Error != nil {
			return nil, fmt.Errorf("sink: look up offsets of %s-%d: %w", topic, b.Partition, b.Error)
		}
		s := span{partition: int32(b.Partition), first: b.FirstOffset, pending: b.FirstOffset, end: b.LastOffset}
		for _, r := range redriven.Topics[topic] {
			if r.Partition == b.Partition && r.CommittedOffset <= s.end { // beyond: the topic was created anew
				s.pending = max(s.first, r.CommittedOffset)
			}
		}
		l.spans = append(l.spans, s)
	}
	slices.SortFunc(l.spans, func(a, b span) int { return int(a.partition - b.partition) })
	return l, nil
}

// Each shows the letters to visit, partition by partition, in order; all: those that were redriven too.
func (l *Letters) Each(ctx context.Context, all bool, visit func(*Letter) error) error {
	for _, s := range l.spans {
		from := s.pending
		if all {
			from = s.first
		}
		if err := l.read(ctx, s, from, visit); err != nil {
			return err
		}
	}
	return nil
}

// At returns one letter.
func (l *Letters) At(ctx context.Context, partition int32, offset int64) (*Letter, error) {
	found := errors.New("found")
	var letter *Letter
	for _, s := range l.spans {
		if s.partition == partition && s.first <= offset && offset < s.end {
			err := l.read(ctx, s, offset, func(got *Letter) error { letter = got; return found })
			if err != nil && !errors.Is(err, found) {
				return nil, err
			}
		}
	}
	if letter == nil || letter.Offset != offset {
		return nil, fmt.Errorf("%w: %s-%d, offset %d", ErrNoLetter, l.topic, partition, offset)
	}
	return letter, nil
}

// read visits what a partition holds from an offset on. Letters of aborted transactions are shown too: the relay writes them again, and
// consumers tell the second by its event id.
func (l *Letters) read(ctx context.Context, s span, from int64, visit func(*Letter) error) error {
	for from < s.end {
		res, err := l.client.RoundTrip(ctx, nil, &fetch.Request{
			ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: letterBytes, SessionID: -1, SessionEpoch: -1,
			Topics: []fetch.RequestTopic{{Topic: l.topic, Partitions: []fetch.RequestPartition{{
				Partition: s.partition, CurrentLeaderEpoch: -1, FetchOffset: from, LogStartOffset: -1, PartitionMaxBytes: letterBytes,
			}}}},
		})
		if err != nil {
			return fmt.Errorf("sink: read %s-%d: %w", l.topic, s.partition, err)
		}
		topics := res.(*fetch.Response).Topics
		if len(topics) != 1 || len(topics[0].Partitions) != 1 {
			return fmt.Errorf("sink: read %s-%d: the answer is not about it", l.topic, s.partition)
		}
		got := &topics[0].Partitions[0]
		if got.ErrorCode != 0 {
			return fmt.Errorf("sink: read %s-%d: %w", l.topic, s.partition, kafka.Error(got.ErrorCode))
		}
		if from, err = l.visit(got, s, from, visit); err != nil {
			return err
		}
	}
	return nil
}

// visit returns the offset behind what an answer holds.
func (l *Letters) visit(got *fetch.ResponsePartition, s span, from int64, visit func(*Letter) error) (int64, error) {
	stream, _ := got.RecordSet.Records.(*protocol.RecordStream)
	if stream == nil {
		return from, nil
	}
	next := from
	for _, records := range stream.Records {
		if control, ok := records.(*protocol.ControlBatch); ok {
			next = max(next, control.BaseOffset+1)
			continue
		}
		for {
			r, err := records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			letter := &Letter{Topic: l.topic, Partition: s.partition}
			if err == nil {
				err = letter.take(r)
			}
			if err != nil {
				return next, fmt.Errorf("sink: read %s-%d: offset %d: %w", l.topic, s.partition, next, err)
			}
			if letter.Offset < next || letter.Offset >= s.end {
				next = max(next, letter.Offset+1)
				continue
			}
			letter.Redriven = letter.Offset < s.pending
			next = letter.Offset + 1
			if err := visit(letter); err != nil {
				return next, err
			}
		}
	}
	if next == from && len(stream.Records) > 0 {
		next++ // the batch that has this offset holds no record any more
	}
	return next, nil
}

// take copies a record.
func (l *Letter) take(r *protocol.Record) (err error) {
	l.Offset, l.Time = r.Offset, r.Time
	for _, h := range r.Headers {
		l.Headers = append(l.Headers, decode.Header{Key: h.Key, Value: h.Value})
	}
	if l.Key, err = copyOf(r.Key); err == nil {
		l.Value, err = copyOf(r.Value)
	}
	return err
}

func copyOf(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	return protocol.ReadAll(b)
}
