package wire

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

// BenchmarkCPU is the processor time of this process per record of 300 bytes, from the
// event in memory to its acknowledgement, on one real broker: our producer, franz-go and
// kafka-go's Writer, in one run, to topics of the same shape, acks=all, and idempotent but
// for the Writer, which can't be. B/batch is the mean size of a record batch; it has to be
// about the same for all for the figures to mean anything.
//
//	go test ./wire -run '^$' -bench CPU -benchtime 500000x
func BenchmarkCPU(b *testing.B) {
	const (
		partitions = 8
		batch      = 256 << 10 // the others' limit, of which they fill two thirds
		ours       = 172 << 10
		value      = 230
	)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	k, err := stack.StartKafka(ctx, stack.KafkaOptions{HeapMB: 512})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	seeds := strings.Split(k.Bootstrap(), ",")
	events := make([]decode.Event, partitions*ours/300)
	body := []byte(strings.Repeat("v", value))
	for i := range events {
		events[i] = decode.Event{
			Topic: "walrelay", Key: fmt.Appendf(nil, "%012d", i), Value: body, Partition: -1, Timestamp: time.Now().UnixMilli(),
			Headers: decode.NewHeaders(decode.Header{Key: "event-id", Value: fmt.Appendf(nil, "%012d", i)}, decode.Header{Key: "walrelay-lsn", Value: []byte("16/B374D848")}),
		}
	}
	// report prints what the clock and the kernel say about n records.
	measure := func(b *testing.B, run func(n int), batches func() (n, bytes int64)) {
		run(len(events)) // connections, metadata, buffers
		n0, bytes0 := batches()
		var before, after syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		b.ReportAllocs()
		b.ResetTimer()
		run(b.N)
		b.StopTimer()
		syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		spent := after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/record")
		if n, bytes := batches(); n > n0 {
			b.ReportMetric(float64(bytes-bytes0)/float64(n-n0), "B/batch")
		}
	}
	topic := func(name string) {
		if err := k.CreateTopics(ctx, partitions, nil, name); err != nil {
			b.Fatal(err)
		}
	}
	topic("walrelay")
	topic("franz")
	topic("writer")

	b.Run("walrelay", func(b *testing.B) {
		client, err := sink.NewClient(sink.ClientConfig{Brokers: seeds})
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		p, err := sink.NewProducer(sink.Config{Client: client, BatchBytes: ours})
		if err != nil {
			b.Fatal(err)
		}
		var sent, bytes int64
		measure(b, func(n int) {
			for n > 0 {
				some := events[:min(n, len(events))]
				if _, err := p.Write(ctx, some); err != nil {
					b.Fatal(err)
				}
				n -= len(some)
				sent += partitions
				bytes += int64(len(some)) * 300
			}
		}, func() (int64, int64) { return sent, bytes })
	})
	b.Run("franz-go", func(b *testing.B) {
		var hook written
		client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic("franz"), kgo.ProducerBatchMaxBytes(batch),
			kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(200*time.Millisecond), kgo.MaxBufferedRecords(100_000), kgo.WithHooks(&hook))
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		measure(b, func(n int) {
			for i := range n {
				ev := &events[i%len(events)]
				r := &kgo.Record{Key: ev.Key, Value: ev.Value, Headers: make([]kgo.RecordHeader, ev.Headers.Count)}
				for j, h := range ev.Headers.List() {
					r.Headers[j] = kgo.RecordHeader{Key: h.Key, Value: h.Value}
				}
				client.Produce(ctx, r, func(_ *kgo.Record, err error) {
					if err != nil {
						b.Error(err)
					}
				})
			}
			if err := client.Flush(ctx); err != nil {
				b.Fatal(err)
			}
		}, func() (int64, int64) { return hook.batches.Load(), hook.bytes.Load() })
	})
	b.Run("kafka-go", func(b *testing.B) {
		w := &kafka.Writer{Addr: kafka.TCP(seeds...), Topic: "writer", Balancer: kafka.Murmur2Balancer{Consistent: true}, BatchBytes: batch,
			BatchSize: batch / 300, BatchTimeout: 20 * time.Millisecond, RequiredAcks: kafka.RequireAll}
		defer w.Close()
		measure(b, func(n int) {
			messages := make([]kafka.Message, 0, len(events))
			for i := 0; i < n; {
				messages = messages[:0]
				for ; len(messages) < cap(messages) && i < n; i++ {
					ev := &events[i%len(events)]
					m := kafka.Message{Key: ev.Key, Value: ev.Value, Headers: make([]kafka.Header, ev.Headers.Count)}
					for j, h := range ev.Headers.List() {
						m.Headers[j] = kafka.Header{Key: h.Key, Value: h.Value}
					}
					messages = append(messages, m)
				}
				if err := w.WriteMessages(ctx, messages...); err != nil {
					b.Fatal(err)
				}
			}
		}, func() (int64, int64) { s := w.Stats(); return s.BatchSize.Count, s.BatchBytes.Sum })
	})
}

// written counts franz-go's record batches.
type written struct{ batches, bytes atomic.Int64 }

func (w *written) OnProduceBatchWritten(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.ProduceBatchMetrics) {
	w.batches.Add(1)
	w.bytes.Add(int64(m.UncompressedBytes))
}
