package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/sink"
)

// produce makes a producer on a cluster of three brokers.
func produceTo(t *testing.T, client *sink.Client, change func(*sink.Config)) *sink.Producer {
	t.Helper()
	cfg := sink.Config{Client: client, BatchBytes: 8 << 10, Allowed: func(string) bool { return true }}
	if change != nil {
		change(&cfg)
	}
	p, err := sink.NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// outbox makes n events whose values number them from first.
func outbox(topic string, first, n int) []decode.Event {
	events := make([]decode.Event, n)
	for i := range events {
		id := fmt.Append(nil, "event-", first+i)
		events[i] = decode.Event{
			Topic: topic, Key: fmt.Append(nil, "key-", (first+i)%17), Value: fmt.Append(nil, first+i),
			Headers: decode.NewHeaders(decode.Header{Key: "event-id", Value: id}, decode.Header{Key: "null"}),
			ID:      id, Timestamp: time.Now().UnixMilli(), Partition: -1, Commit: 0x1000, Seq: uint64(first + i),
		}
	}
	return events
}

// read returns all records of the topics, by topic and partition.
func read(t *testing.T, cluster *kfake.Cluster, topics ...string) map[string][][]*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	out := make(map[string][][]*kgo.Record)
	left := int64(0)
	for _, topic := range topics {
		for _, p := range cluster.PartitionInfos(topic) {
			left += p.HighWatermark - p.LogStartOffset
			out[topic] = append(out[topic], nil)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records did not come", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out[r.Topic][r.Partition] = append(out[r.Topic][r.Partition], r)
			left--
		})
	}
	return out
}

// once checks that events 0 to n-1 are there, each once, in order on their partition and
// where a Java producer would have put them.
func once(t *testing.T, got [][]*kgo.Record, n int) {
	t.Helper()
	where := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	seen := make(map[string]bool)
	for partition, records := range got {
		last := -1
		for _, r := range records {
			var i int
			fmt.Sscan(string(r.Value), &i)
			if seen[string(r.Value)] || i <= last {
				t.Errorf("partition %d: event %d behind event %d", partition, i, last)
			}
			seen[string(r.Value)], last = true, i
			if want := where.Partition(r, len(got)); want != partition {
				t.Errorf("key %s on partition %d, Java says %d", r.Key, partition, want)
			}
			if len(r.Headers) != 2 || string(r.Headers[0].Value) != "event-"+string(r.Value) || r.Headers[1].Value != nil {
				t.Errorf("headers %v", r.Headers)
			}
		}
	}
	for i := range n {
		if !seen[fmt.Sprint(i)] {
			t.Errorf("event %d is not there", i)
		}
	}
	if len(seen) != n {
		t.Errorf("%d events, want %d", len(seen), n)
	}
}

// G2 G6: every codec is accepted and read by an independent client.
func TestG6EveryCodecIsUnderstood(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		cluster := start(t)
		p := produceTo(t, connect(t, cluster, nil), func(c *sink.Config) { c.Compression = codec })
		const n = 5000
		for i := 0; i < n; i += 1000 {
			if done, err := p.Write(t.Context(), outbox("t", i, 1000)); done != 1000 || err != nil {
				t.Fatal(done, err)
			}
		}
		once(t, read(t, cluster, "t")["t"], n)
	}
}

// flaky breaks connections when told to: before a request is written, or when its answer is about to be read.
type flaky struct {
	net.Conn
	roll func(reading bool) bool
}

var errCut = errors.New("cut by the test")

func (f flaky) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if n > 0 && f.roll(true) {
		f.Conn.Close()
		return 0, errCut
	}
	return n, err
}

func (f flaky) Write(p []byte) (int, error) {
	if f.roll(false) {
		if len(p) > 10 {
			f.Conn.Write(p[:len(p)/2]) // a frame's first half
		}
		f.Conn.Close()
		return 0, errCut
	}
	return f.Conn.Write(p)
}

// G1 G2 G5: answers that are lost after the append, requests cut in the middle, codes of all
// kinds, leaders that move at any moment: each event is there once and in order.
func TestG2SeededFaultsOnTheWire(t *testing.T) {
	var codes []*kerr.Error // all that are outlived, and name no record
	for number := int16(-1); number <= 133; number++ {
		switch e := kerr.TypedErrorForCode(number); {
		case e == nil || endingCodes[number]:
		case number == 10, number == 17, number == 18, number == 32, number == 46, number == 87:
		default:
			codes = append(codes, e)
		}
	}
	seeds := uint64(20)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			cluster := start(t, kfake.SeedTopics(6, "u"))
			var dice atomic.Uint64 // of the connections, which roll at the same time
			dice.Store(seed)
			var on atomic.Bool
			roll := func(reading bool) bool {
				x := dice.Add(0x9e3779b97f4a7c15)
				x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
				return on.Load() && (x^x>>27)%25 == 0
			}
			client := connect(t, cluster, func(c *sink.ClientConfig) {
				c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return flaky{conn, roll}, nil
				}
			})
			p := produceTo(t, client, func(c *sink.Config) { c.Compression = []string{"none", "lz4"}[seed%2] })
			const n = 1500
			on.Store(true)
			for i := 0; i < n; {
				for range rng.IntN(3) {
					cluster.Fault(kfake.Fault{
						Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{rng.Int32N(3)}, Count: 1 + rng.IntN(2), Err: codes[rng.IntN(len(codes))],
					})
				}
				if rng.IntN(2) == 0 {
					cluster.ShufflePartitionLeaders()
				}
				size := min(1+rng.IntN(300), n-i)
				events := append(outbox("t", i, size), outbox("u", i, size)...)
				if done, err := p.Write(t.Context(), events); done != len(events) || err != nil {
					t.Fatal(done, err)
				}
				i += size
			}
			on.Store(false)
			got := read(t, cluster, "t", "u")
			once(t, got["t"], n)
			once(t, got["u"], n)
		})
	}
}

// G1: oversize events are cut out by the broker's own answer and by the topic's
// configuration; their neighbours arrive in order.
func TestG1OversizeOnTheWire(t *testing.T) {
	limit := "4000"
	cluster := start(t)
	for _, topic := range []string{"small", "small.DLT"} {
		if err := cluster.CreateTopic(topic, 2, map[string]string{"max.message.bytes": map[string]string{"small": limit, "small.DLT": "100000"}[topic]}); err != nil {
			t.Fatal(err)
		}
	}
	for _, codec := range []string{"none", "gzip"} { // with a codec only the broker knows
		client := connect(t, cluster, nil)
		events := outbox("small", 0, 300)
		for _, i := range []int{17, 150, 299} {
			events[i].Value = make([]byte, 5000)
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for j := range events[i].Value {
				events[i].Value[j] = byte(rng.Uint32())
			}
		}
		stop := produceTo(t, client, func(c *sink.Config) { c.Compression = codec })
		n, err := stop.Write(t.Context(), events)
		var bad *decode.PoisonError
		if n != 17 || !errors.As(err, &bad) || bad.EventID != "event-17" {
			t.Fatal(n, err)
		}
		park := produceTo(t, client, func(c *sink.Config) { c.Compression, c.Poison = codec, sink.PoisonDeadLetter })
		if n, err := park.Write(t.Context(), events); n != 300 || err != nil {
			t.Fatal(n, err)
		}
	}
	dead := 0
	for _, records := range read(t, cluster, "small.DLT")["small.DLT"] {
		for _, r := range records {
			dead++
			var h []string
			for _, kv := range r.Headers {
				h = append(h, kv.Key+"="+string(kv.Value))
			}
			if all := strings.Join(h, " "); !strings.Contains(all, "walrelay-original-topic=small") || !strings.Contains(all, "walrelay-error=") || len(r.Value) != 5000 {
				t.Errorf("%d bytes, %s", len(r.Value), all)
			}
		}
	}
	if dead != 6 {
		t.Errorf("%d dead letters", dead)
	}
}

// G8: topics that are missing, created, deleted and created again while events wait for them.
func TestG8TopicsComeAndGo(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	p := produceTo(t, client, nil)
	wrote := make(chan error, 1)
	write := func(first int) {
		_, err := p.Write(t.Context(), outbox("late", first, 100))
		wrote <- err
	}
	go write(0)
	waiting(t, p, "late")
	if err := cluster.CreateTopic("late", 3, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	once(t, read(t, cluster, "late")["late"], 100)
	if err := cluster.DeleteTopic("late"); err != nil {
		t.Fatal(err)
	}
	go write(0)
	waiting(t, p, "late")
	if err := cluster.CreateTopic("late", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	once(t, read(t, cluster, "late")["late"], 100)
	made := produceTo(t, client, func(c *sink.Config) { c.CreateTopics = &sink.CreateTopics{Partitions: 5, Replication: 3} })
	if n, err := made.Write(t.Context(), outbox("made", 0, 100)); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if got := len(cluster.PartitionInfos("made")); got != 5 {
		t.Errorf("%d partitions", got)
	}
	once(t, read(t, cluster, "made")["made"], 100)
}

// waiting returns when the producer says that it waits for the topic: within five seconds.
func waiting(t *testing.T, p *sink.Producer, topic string) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, reason := p.Healthy(); !ok && strings.Contains(reason, topic) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("still ready after five seconds")
		}
	}
}
