package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

const (
	earliest = -2 // ListOffsets: the first offset
	latest   = -1 // the high watermark, when asked for as read_uncommitted

	fetchBytes = 4 << 20
)

// Read hands over every record of a committed transaction between the log's start and the high
// watermark as of now, those of one producer in order, and those that are in no transaction.
//
// It reads as read_uncommitted and sorts out by itself what was aborted: to read as read_committed would end at the first
// transaction that is still open, and that may be the one of another relay, which has hung for a minute.
func (l *Log) Read(ctx context.Context, each func(key, value []byte)) error {
	end, err := l.offset(ctx, latest)
	if err != nil {
		return err
	}
	at, err := l.offset(ctx, earliest)
	if err != nil {
		return err
	}
	sorted := sorter{open: make(map[int64][]keyValue), each: each}
	for tries := 0; at < end; {
		set, err := l.fetch(ctx, at)
		if err != nil {
			return err
		}
		next, err := sorted.take(set, at, end)
		if err != nil {
			return fmt.Errorf("sink: read topic %s at offset %d: %w", l.topic, at, err)
		}
		if next > at {
			at, tries = next, 0
			continue
		}
		if set != nil { // a batch of which compaction has left nothing but its head
			at++
			continue
		}
		if err := pause(ctx, backoff(tries)); err != nil {
			return fmt.Errorf("sink: read topic %s at offset %d of %d: %w", l.topic, at, end, err)
		}
		tries++
	}
	return nil
}

type keyValue struct{ key, value []byte }

// sorter holds back the records of open transactions until their end is read.
type sorter struct {
	open map[int64][]keyValue // by producer id
	each func(key, value []byte)
}

// take returns the offset behind the last record of a set.
func (s *sorter) take(set protocol.RecordReader, from, end int64) (next int64, err error) {
	next = from
	batches, _ := set.(*protocol.RecordStream)
	if batches == nil {
		return next, nil
	}
	for _, records := range batches.Records {
		switch b := records.(type) {
		case *protocol.ControlBatch:
			c, err := b.ReadControlRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return next, err
			}
			next = max(next, c.Offset+1)
			if c.Offset < end && c.Type == controlCommit {
				for _, kv := range s.open[b.ProducerID] {
					s.each(kv.key, kv.value)
				}
			}
			delete(s.open, b.ProducerID)
		case *protocol.RecordBatch:
			for {
				r, err := b.ReadRecord()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return next, err
				}
				next = max(next, r.Offset+1)
				if r.Offset < from || r.Offset >= end {
					continue
				}
				if err := s.record(b, r); err != nil {
					return next, err
				}
			}
		}
	}
	return next, nil
}

const controlCommit = 1 // 0: abort

func (s *sorter) record(b *protocol.RecordBatch, r *protocol.Record) error {
	key, err := protocol.ReadAll(r.Key)
	if err != nil {
		return err
	}
	value, err := protocol.ReadAll(r.Value)
	if err != nil {
		return err
	}
	if b.Attributes.Transactional() {
		s.open[b.ProducerID] = append(s.open[b.ProducerID], keyValue{key, value})
	} else {
		s.each(key, value)
	}
	return nil
}

func (l *Log) offset(ctx context.Context, at int64) (int64, error) {
	m, err := l.producer.cluster.RoundTrip(ctx, nil, &listoffsets.Request{ReplicaID: -1, Topics: []listoffsets.RequestTopic{{
		Topic: l.topic, Partitions: []listoffsets.RequestPartition{{Partition: 0, CurrentLeaderEpoch: -1, Timestamp: at}},
	}}})
	if err != nil {
		return 0, fmt.Errorf("sink: offsets of topic %s: %w", l.topic, err)
	}
	topics := m.(*listoffsets.Response).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("sink: offsets of topic %s: %w", l.topic, errProtocol)
	}
	p := topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		l.producer.cluster.Refresh(l.topic)
		return 0, fmt.Errorf("sink: offsets of topic %s: %w", l.topic, kafka.Error(p.ErrorCode))
	}
	return p.Offset, nil
}

// fetch returns what lies at an offset; nil: nothing yet.
func (l *Log) fetch(ctx context.Context, at int64) (protocol.RecordReader, error) {
	m, err := l.producer.cluster.RoundTrip(ctx, nil, &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32((500 * time.Millisecond).Milliseconds()), MinBytes: 1, MaxBytes: fetchBytes, SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: l.topic, Partitions: []fetch.RequestPartition{{
			Partition: 0, CurrentLeaderEpoch: -1, FetchOffset: at, LogStartOffset: -1, PartitionMaxBytes: fetchBytes,
		}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("sink: read topic %s: %w", l.topic, err)
	}
	res := m.(*fetch.Response)
	number := res.ErrorCode
	for i := range res.Topics {
		for j := range res.Topics[i].Partitions { // one of one
			p := &res.Topics[i].Partitions[j]
			number = cmp.Or(number, p.ErrorCode)
			if number == 0 {
				return p.RecordSet.Records, nil
			}
		}
	}
	if number == 0 {
		return nil, fmt.Errorf("sink: read topic %s: %w", l.topic, errProtocol)
	}
	l.producer.cluster.Refresh(l.topic)
	return nil, fmt.Errorf("sink: read topic %s: %w", l.topic, kafka.Error(number))
}
