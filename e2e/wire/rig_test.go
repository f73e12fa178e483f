package wire

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

// rig is a real cluster under the load of one producer, with a probe beside it that
// shows what any other client can do at the moment.
type rig struct {
	t     *testing.T
	ctx   context.Context
	kafka *stack.Kafka
	admin *kadm.Client
	topic string

	mu     sync.Mutex
	events int // handed to the producer
	writes []time.Time
	probes [partitions][]time.Time // successes by partition
	log    strings.Builder
}

// startRig starts brokers. The rig's own connection is to their plain listener, a super user's.
func startRig(t *testing.T, ctx context.Context, topic string, o stack.KafkaOptions) *rig {
	t.Helper()
	k, err := stack.StartKafka(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	direct, err := k.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	return &rig{t: t, ctx: ctx, kafka: k, admin: kadm.NewClient(direct), topic: topic}
}

// producer makes a producer by the brokers' advertised addresses; it logs to the rig.
func (r *rig) producer(change func(*sink.Config)) *sink.Producer {
	r.t.Helper()
	client, err := sink.NewClient(sink.ClientConfig{Brokers: strings.Split(r.kafka.Bootstrap(), ",")})
	r.must(err)
	r.t.Cleanup(client.Close)
	return produceTo(r.t, client, func(c *sink.Config) { c.Log = zerolog.New(r); change(c) })
}

// newRig starts three brokers, the load and the probe; the returned stop ends load and
// probe, and checks what is there.
func newRig(t *testing.T) (r *rig, stop func()) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	r = startRig(t, ctx, "load", stack.KafkaOptions{Brokers: 3, Proxy: true})
	r.must(r.kafka.CreateTopics(ctx, partitions, nil, r.topic))
	p := r.producer(func(*sink.Config) {})
	running, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { r.load(running, p) })
	for i := range partitions {
		all.Go(func() { r.probe(running, int32(i)) })
	}
	r.eventually(5*time.Minute, "the load runs", func() bool { return r.written() > 20 })
	return r, func() {
		end()
		all.Wait()
		r.check()
	}
}

func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
		r.t.Fatal("out of time")
	}
}

func (r *rig) written() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.writes)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// load writes batches until running ends; the last one is finished.
func (r *rig) load(running context.Context, p *sink.Producer) {
	for i := 0; running.Err() == nil; i += 100 {
		r.mu.Lock()
		r.events = i + 100
		r.mu.Unlock()
		if n, err := p.Write(r.ctx, outbox(r.topic, i, 100)); n != 100 || err != nil {
			r.t.Errorf("write: %d, %v", n, err)
			return
		}
		r.mu.Lock()
		r.writes = append(r.writes, time.Now())
		r.mu.Unlock()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-running.Done():
		}
	}
}

// probe produces to one partition, each time by a client that has no past and little patience.
func (r *rig) probe(running context.Context, partition int32) {
	for running.Err() == nil {
		func() {
			ctx, cancel := context.WithTimeout(running, 1500*time.Millisecond)
			defer cancel()
			client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(r.kafka.Bootstrap(), ",")...),
				kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()),
				kgo.RecordRetries(0), kgo.DialTimeout(time.Second), kgo.ProduceRequestTimeout(time.Second), kgo.MetadataMinAge(20*time.Millisecond))
			if err != nil {
				r.t.Error(err)
				return
			}
			defer client.Close()
			if client.ProduceSync(ctx, &kgo.Record{Topic: r.topic, Partition: partition, Value: []byte("probe")}).FirstErr() == nil {
				r.mu.Lock()
				r.probes[partition] = append(r.probes[partition], time.Now())
				r.mu.Unlock()
			}
		}()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-running.Done():
		}
	}
}

// check reads everything past the proxies: each event once, in order.
func (r *rig) check() {
	r.t.Helper()
	client, err := r.kafka.Client(kgo.ConsumeTopics(r.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	r.must(err)
	defer client.Close()
	ends, err := r.admin.ListEndOffsets(r.ctx, r.topic)
	for err == nil && ends.Error() != nil { // a new leader doesn't know its high watermark at once
		ends, err = r.admin.ListEndOffsets(r.ctx, r.topic)
	}
	r.must(err)
	left := int64(0)
	got := make([][]*kgo.Record, partitions)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	for left > 0 {
		fetches := client.PollFetches(r.ctx)
		r.must(r.ctx.Err())
		fetches.EachRecord(func(rec *kgo.Record) {
			left--
			if string(rec.Value) != "probe" {
				got[rec.Partition] = append(got[rec.Partition], rec)
			}
		})
	}
	once(r.t, got, r.events)
	r.t.Logf("%d events, each there once", r.events)
}

// inSync reports whether every replica of the topic is.
func (r *rig) inSync() bool {
	topics, err := r.admin.ListTopics(r.ctx, r.topic)
	if err != nil || len(topics[r.topic].Partitions) != partitions {
		return false
	}
	for _, p := range topics[r.topic].Partitions {
		if len(p.ISR) != 3 {
			return false
		}
	}
	return true
}

// prefer has every partition led by its first replica, so that each broker leads some.
func (r *rig) prefer() {
	r.t.Helper()
	r.eventually(3*time.Minute, "all replicas in sync", r.inSync)
	r.eventually(time.Minute, "every broker leads", func() bool {
		r.admin.ElectLeaders(r.ctx, kadm.ElectPreferredReplica, nil)
		topics, err := r.admin.ListTopics(r.ctx, r.topic)
		if err != nil {
			return false
		}
		for _, p := range topics[r.topic].Partitions {
			if p.Leader != p.Replicas[0] {
				return false
			}
		}
		return true
	})
}

// eventually waits for a condition.
func (r *rig) eventually(patience time.Duration, what string, is func() bool) {
	r.t.Helper()
	for begin := time.Now(); !is(); r.wait(50 * time.Millisecond) {
		if time.Since(begin) > patience {
			r.t.Fatalf("not within %v: %s\n%s", patience, what, r.logged())
		}
	}
}
