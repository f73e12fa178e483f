package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

// BenchmarkCPU is the processor time of this process per record of 300 bytes, from the
// event in memory to its acknowledgement, on one real broker: our producer, franz-go and
// kafka-go's Writer, in one run, to topics of the same shape, acks=all, and idempotent but
// for the Writer, which can't be. B/batch is the mean size of a record batch, as the broker stored it: the run fails
// where one client's is not within a tenth of ours, since the figures would mean nothing, and where we need more than 0.6 of
// what franz-go needs.
//
//	go test ./wire -run '^$' -bench CPU -benchtime 500000x
func BenchmarkCPU(b *testing.B) {
	const (
		partitions = 8
		batch      = 172 << 10 // what a record batch is to have, and franz-go's limit, which it fills
		limit      = 256 << 10 // the others', who make one batch of what a partition gets at a time
		enough     = 100_000   // records for figures that mean something
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
	events := make([]decode.Event, partitions*batch/300)
	body := []byte(strings.Repeat("v", value))
	for i := range events {
		events[i] = decode.Event{
			Topic: "walrelay", Key: fmt.Appendf(nil, "%012d", i), Value: body, Partition: -1, Timestamp: time.Now().UnixMilli(),
			Headers: decode.NewHeaders(decode.Header{Key: "event-id", Value: fmt.Appendf(nil, "%012d", i)}, decode.Header{Key: "walrelay-lsn", Value: []byte("16/B374D848")}),
		}
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MaxVersions(kversion.V2_8_0())) // fetches by name
	if err != nil {
		b.Fatal(err)
	}
	defer reader.Close()
	cpu, size := make(map[string]float64), make(map[string]float64)
	// measure runs n records through a client, and reports what the kernel and the broker say about them.
	measure := func(b *testing.B, topic string, run func(n int)) {
		run(len(events)) // connections, metadata, buffers
		from, _ := storedBatches(b, reader, topic, make([]int64, partitions))
		var before, after syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		b.ReportAllocs()
		b.ResetTimer()
		run(b.N)
		b.StopTimer()
		syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		spent := after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano()
		_, kept := storedBatches(b, reader, topic, from)
		cpu[topic], size[topic] = float64(spent)/float64(b.N), float64(kept.bytes)/float64(kept.batches)
		b.ReportMetric(cpu[topic], "cpu-ns/record")
		b.ReportMetric(size[topic], "B/batch")
		if kept.records != int64(b.N) {
			b.Errorf("%d records stored of %d", kept.records, b.N)
		}
		if topic == "walrelay" || b.N < enough {
			return
		}
		ratio := cpu["walrelay"] / cpu[topic]
		b.ReportMetric(ratio, "ours/its-cpu")
		if topic == "franz" && ratio > 0.6 {
			b.Errorf("we need %.2f of its processor time, more than 0.6", ratio)
		}
		if ratio := size[topic] / size["walrelay"]; ratio < 0.9 || ratio > 1.1 {
			b.Errorf("its batches have %.2f times the bytes of ours", ratio)
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
		p, err := sink.NewProducer(sink.Config{Client: client, BatchBytes: limit})
		if err != nil {
			b.Fatal(err)
		}
		measure(b, "walrelay", func(n int) {
			for n > 0 {
				some := events[:min(n, len(events))]
				if _, err := p.Write(ctx, some); err != nil {
					b.Fatal(err)
				}
				n -= len(some)
			}
		})
	})
	b.Run("franz-go", func(b *testing.B) {
		client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic("franz"), kgo.ProducerBatchMaxBytes(batch),
			kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(200*time.Millisecond), kgo.MaxBufferedRecords(100_000))
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		measure(b, "franz", func(n int) {
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
		})
	})
	b.Run("kafka-go", func(b *testing.B) {
		w := &kafka.Writer{Addr: kafka.TCP(seeds...), Topic: "writer", Balancer: kafka.Murmur2Balancer{Consistent: true}, BatchBytes: limit,
			BatchSize: limit / 300, BatchTimeout: 20 * time.Millisecond, RequiredAcks: kafka.RequireAll}
		defer w.Close()
		measure(b, "writer", func(n int) {
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
		})
	})
}

// stored is what a broker keeps of a topic.
type stored struct{ batches, bytes, records int64 }

// storedBatches counts a topic's record batches from some offsets on, and returns where they end. It asks the one broker for
// the log as it is, and reads the batches' heads.
func storedBatches(b *testing.B, client *kgo.Client, topic string, from []int64) (ends []int64, sum stored) {
	ends = slices.Clone(from)
	for partition := range ends {
		for more := true; more; {
			req := kmsg.NewPtrFetchRequest()
			req.MaxBytes = 16 << 20
			want := kmsg.NewFetchRequestTopicPartition()
			want.Partition, want.FetchOffset, want.PartitionMaxBytes = int32(partition), ends[partition], 16<<20
			req.Topics = []kmsg.FetchRequestTopic{{Topic: topic, Partitions: []kmsg.FetchRequestTopicPartition{want}}}
			res, err := client.Broker(1).Request(b.Context(), req)
			if err != nil {
				b.Fatal(err)
			}
			part := res.(*kmsg.FetchResponse).Topics[0].Partitions[0]
			if part.ErrorCode != 0 {
				b.Fatal(kerr.ErrorForCode(part.ErrorCode))
			}
			for log := part.RecordBatches; len(log) >= 61; {
				size := 12 + int(binary.BigEndian.Uint32(log[8:]))
				if size > len(log) {
					break
				}
				sum.batches++
				sum.bytes += int64(size)
				sum.records += int64(binary.BigEndian.Uint32(log[57:]))
				ends[partition] = int64(binary.BigEndian.Uint64(log)) + int64(binary.BigEndian.Uint32(log[23:])) + 1
				log = log[size:]
			}
			more = ends[partition] < part.HighWatermark
		}
	}
	return ends, sum
}
