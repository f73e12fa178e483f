package kafkaconsumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	fetchWait  = 500 * time.Millisecond // how long the broker waits for something new
	fetchBytes = 1 << 20                // a larger record batch comes alone
)

// fetch reads what follows next. It moves next itself only over what is no event.
func (p *partition) fetch(ctx context.Context) ([]Message, error) {
	if p.next < 0 {
		if err := p.rewind(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fetchWait+p.kafka.Timeout)
	defer cancel()
	res, err := p.kafka.Transport.RoundTrip(ctx, p.kafka.Addr, &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(fetchWait.Milliseconds()), MinBytes: 1, MaxBytes: fetchBytes,
		IsolationLevel: int8(kafka.ReadCommitted), SessionID: -1, SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: p.topic, Partitions: []fetch.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, FetchOffset: p.next, LogStartOffset: -1, PartitionMaxBytes: fetchBytes,
		}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("kafkaconsumer: fetch: %w", err)
	}
	topics := res.(*fetch.Response).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return nil, errors.New("kafkaconsumer: fetch: the answer is not about the partition")
	}
	got := &topics[0].Partitions[0]
	switch code := kafka.Error(got.ErrorCode); code {
	case 0:
	case kafka.OffsetOutOfRange:
		p.log.Error("the offset to read next is not in the partition any more: events were deleted before they were read, or the topic was created anew; reading from its beginning", "offset", p.next)
		p.next = kafka.FirstOffset
		return nil, nil
	default:
		return nil, fmt.Errorf("kafkaconsumer: fetch: %w", code)
	}
	batch, end, err := p.read(got)
	if err != nil {
		return nil, fmt.Errorf("kafkaconsumer: fetch: offset %d: %w", end, err)
	}
	if len(batch) == 0 && end > p.next {
		p.reached(end)
	}
	p.lag.Set(float64(got.LastStableOffset - p.next))
	return batch, nil
}

// rewind finds the beginning of the partition. What was applied before is known to the inbox.
func (p *partition) rewind(ctx context.Context) error {
	res, err := p.kafka.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{p.topic: {kafka.FirstOffsetOf(p.id)}}})
	if err == nil && len(res.Topics[p.topic]) == 1 {
		err = res.Topics[p.topic][0].Error
	}
	if err != nil {
		return fmt.Errorf("kafkaconsumer: find the first offset: %w", err)
	}
	p.next = res.Topics[p.topic][0].FirstOffset
	return nil
}

// read returns the committed records at or behind next, and the offset behind all that it has seen.
//
// Records of aborted transactions would be harmless: a row of the outbox is published because it was committed in Postgres, whatever became of the
// transaction in Kafka that first carried it, so such a record is an event that comes again later. They are left out all the same, as in
// Java's client: a producer's records are dropped from the first offset of its aborted transaction up to its abort marker.
func (p *partition) read(got *fetch.ResponsePartition) (batch []Message, end int64, err error) {
	stream, ok := got.RecordSet.Records.(*protocol.RecordStream)
	if !ok {
		return nil, p.next, nil
	}
	aborted := slices.Clone(got.AbortedTransactions)
	slices.SortFunc(aborted, func(a, b fetch.ResponseTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	open := map[int64]bool{} // producers in an aborted transaction
	end = p.next
	for _, records := range stream.Records {
		drop := false
		switch b := records.(type) {
		case *protocol.ControlBatch:
			for len(aborted) > 0 && aborted[0].FirstOffset <= b.BaseOffset {
				open[aborted[0].ProducerID], aborted = true, aborted[1:]
			}
			marker, err := b.ReadControlRecord()
			if err != nil {
				return nil, end, err
			}
			if marker.Type == 0 { // abort
				delete(open, b.ProducerID)
			}
			end = max(end, marker.Offset+1)
			continue
		case *protocol.RecordBatch:
			for len(aborted) > 0 && aborted[0].FirstOffset <= b.BaseOffset {
				open[aborted[0].ProducerID], aborted = true, aborted[1:]
			}
			drop = b.Attributes.Transactional() && open[b.ProducerID]
		}
		for {
			r, err := records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, end, err
			}
			m, err := p.message(r)
			if err != nil {
				return nil, end, err
			}
			if m.Offset >= p.next && !drop {
				batch = append(batch, m)
			}
			end = max(end, m.Offset+1)
		}
	}
	if end == p.next && len(stream.Records) > 0 {
		end++ // the broker answers from the batch that has the offset: it holds no record any more
	}
	return batch, end, nil
}

// message copies a record out of the response.
func (p *partition) message(r *protocol.Record) (Message, error) {
	m := Message{Offset: r.Offset, Time: r.Time, Headers: slices.Clone(r.Headers)}
	m.Topic, m.Partition = p.topic, p.id
	var err error
	if m.Key, err = copyOf(r.Key); err == nil {
		m.Value, err = copyOf(r.Value)
	}
	for _, h := range m.Headers {
		m.Event.Set(h.Key, h.Value)
	}
	return m, err
}

func copyOf(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	return protocol.ReadAll(b)
}
