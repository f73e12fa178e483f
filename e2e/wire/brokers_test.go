package wire

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

const partitions = 6

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

// newRig starts three brokers, the load and the probe; the returned stop ends load and
// probe, and checks what is there.
func newRig(t *testing.T) (r *rig, stop func()) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	k, err := stack.StartKafka(ctx, stack.KafkaOptions{Brokers: 3, Proxy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	direct, err := k.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	r = &rig{t: t, ctx: ctx, kafka: k, admin: kadm.NewClient(direct), topic: "load"}
	r.must(k.CreateTopics(ctx, partitions, nil, r.topic))
	client, err := sink.NewClient(sink.ClientConfig{Brokers: strings.Split(k.Bootstrap(), ",")})
	r.must(err)
	t.Cleanup(client.Close)
	p := produceTo(t, client, func(c *sink.Config) { c.Log = zerolog.New(r) })
	running, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { r.load(running, p) })
	for i := range partitions {
		all.Go(func() { r.probe(running, int32(i)) })
	}
	r.eventually(time.Minute, "the load runs", func() bool { return r.written() > 100 })
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

// pause is how long something stood, and when it began to go on.
type pause struct {
	long time.Duration
	end  time.Time
}

// pauses are the times without an entry for more than half a second after a moment.
func pauses(times []time.Time, after time.Time) (list []pause) {
	last := after
	for _, at := range times {
		if at.Before(after) {
			continue
		}
		if d := at.Sub(last); d > 500*time.Millisecond {
			list = append(list, pause{d, at})
		}
		last = at
	}
	return list
}

// longest is the longest of some pauses.
func longest(list []pause) (d time.Duration) {
	for _, p := range list {
		d = max(d, p.long)
	}
	return d.Round(time.Millisecond)
}

// late is how much later than every probe the load went on, at worst: for each pause of the load, the time from
// the first success of the probe on the partition where that came last. Zero where the load was first; ok is false
// where no probe paused when the load did.
func (r *rig) late(begin time.Time) (late time.Duration, ok bool) {
	for _, ours := range pauses(r.writes, begin) {
		from := ours.end.Add(-ours.long)
		var first time.Time
		for _, times := range r.probes {
			for _, p := range pauses(times, begin) {
				if p.end.After(from) && p.end.Add(-p.long).Before(ours.end) && p.end.After(first) {
					first = p.end
				}
			}
		}
		if !first.IsZero() {
			late, ok = max(late, ours.end.Sub(first)), true
		}
	}
	return late, ok
}

// fault breaks something and mends it, waits for all to be well, and returns how late the load was.
func (r *rig) fault(name string, breakIt, mendIt func(), last time.Duration) (late time.Duration, ok bool) {
	r.t.Helper()
	begin := time.Now()
	breakIt()
	r.wait(last)
	if mendIt != nil {
		mendIt()
	}
	mended := time.Now()
	for well := false; !well; {
		r.wait(200 * time.Millisecond)
		r.mu.Lock()
		well = len(r.writes) > 0 && r.writes[len(r.writes)-1].After(mended.Add(time.Second))
		for _, p := range r.probes {
			well = well && len(p) > 0 && p[len(p)-1].After(mended.Add(time.Second))
		}
		r.mu.Unlock()
		if time.Since(mended) > time.Minute {
			r.t.Fatalf("%s: not well after a minute\n%s", name, r.log.String())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var probe time.Duration
	for _, p := range r.probes {
		probe = max(probe, longest(pauses(p, begin)))
	}
	late, ok = r.late(begin)
	said := "before any probe did, or no probe paused"
	if ok {
		said = fmt.Sprint(late.Round(time.Millisecond), " after the last probe")
	}
	r.t.Logf("%-28s the probes stood for %v, the load for %v; it went on %s", name, probe, longest(pauses(r.writes, begin)), said)
	return late, ok
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

// G1 G2 G5 G8: a real cluster of three brokers under load, with everything that can
// happen to one of them. Nothing is lost, repeated or reordered, and the producer is
// back within two seconds of any other client.
func TestG8ThreeRealBrokers(t *testing.T) {
	long := os.Getenv("WALRELAY_LONG") == "1"
	rounds := 1
	if long {
		rounds = 5
	}
	r, stop := newRig(t)
	r.wait(2 * time.Second)
	var lates []time.Duration
	add := func(name string, breakIt, mendIt func(), last time.Duration) {
		if late, ok := r.fault(name, breakIt, mendIt, last); ok {
			lates = append(lates, late)
		}
	}
	for round := range rounds {
		b := r.kafka.Broker(round%3 + 1)
		other := r.kafka.Broker((round+1)%3 + 1)
		add("kill -9", func() { r.must(b.Kill()) }, func() { r.must(b.Start(r.ctx)) }, 5*time.Second)
		add("lost answers", func() {
			for range 3 {
				b.Proxy.DropResponseTo(0)
				other.Proxy.DropResponseTo(0)
				r.wait(300 * time.Millisecond)
			}
		}, nil, time.Second)
		if testing.Short() {
			continue
		}
		add("controlled shutdown", func() { r.must(b.Stop(r.ctx)) }, func() { r.must(b.Start(r.ctx)) }, time.Second)
		add("preferred election", func() {
			_, err := r.admin.ElectLeaders(r.ctx, kadm.ElectPreferredReplica, nil)
			r.must(err)
		}, nil, 2*time.Second)
		add("paused broker", b.Pause, b.Resume, time.Minute)
		add("half-open link", func() { b.Proxy.Set(proxy.Both, proxy.Fault{Stall: true}) }, b.Proxy.Pass, 8*time.Second)
		add("cut in a frame", func() {
			for _, d := range []proxy.Direction{proxy.Up, proxy.Down} {
				b.Proxy.Set(d, proxy.Fault{ResetAfter: 700 + 13*round})
				r.wait(300 * time.Millisecond)
			}
		}, b.Proxy.Pass, time.Second)
		add("slow link", func() { b.Proxy.Set(proxy.Both, proxy.Fault{Delay: 300 * time.Millisecond}) }, b.Proxy.Pass, 10*time.Second)
		add("too few in-sync replicas", func() {
			r.minISR("3")
			r.must(b.Kill())
		}, func() {
			r.must(b.Start(r.ctx))
			r.minISR("2")
		}, 15*time.Second)
		add("quota", func() { r.quota(20_000) }, func() { r.quota(0) }, 15*time.Second)
	}
	stop()
	slices.Sort(lates)
	t.Logf("back after the probe: %v", lates)
	if len(lates) > 0 && lates[len(lates)-1] > 2*time.Second {
		t.Errorf("came back %v after the probe\n%s", lates[len(lates)-1], r.log.String())
	}
}

// minISR sets the topic's min.insync.replicas.
func (r *rig) minISR(n string) {
	_, err := r.admin.AlterTopicConfigs(r.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.insync.replicas", Value: &n}}, r.topic)
	r.must(err)
}

// quota limits the bytes a second of our client on each broker; 0 lifts that.
func (r *rig) quota(bytes float64) {
	name := "walrelay"
	op := kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: bytes, Remove: bytes == 0}
	_, err := r.admin.AlterClientQuotas(r.ctx, []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &name}}, Ops: []kadm.AlterClientQuotaOp{op},
	}})
	r.must(err)
}
