package wire

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

// all reads a topic of a real broker, by partition.
func all(t *testing.T, k *stack.Kafka, topic string) [][]*kgo.Record {
	t.Helper()
	client, err := k.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	left, out := int64(0), make([][]*kgo.Record, len(ends[topic]))
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records of %s did not come", left, topic)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out[r.Partition] = append(out[r.Partition], r)
			left--
		})
	}
	return out
}

// G1 G2 G8: what a real broker says about topics and records: oversize, compaction,
// timestamps, names, topics that come, go and grow, an unclean loss.
func TestG1RealTopics(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	brokers := 1
	if os.Getenv("WALRELAY_LONG") == "1" {
		brokers = 3
	}
	k, err := stack.StartKafka(ctx, stack.KafkaOptions{Brokers: brokers})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	direct, err := k.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	admin := kadm.NewClient(direct)
	client, err := sink.NewClient(sink.ClientConfig{Brokers: strings.Split(k.Bootstrap(), ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	create := func(topic string, partitions int32, config ...string) {
		t.Helper()
		set := make(map[string]*string)
		for i := 0; i < len(config); i += 2 {
			set[config[i]] = &config[i+1]
		}
		if err := k.CreateTopics(ctx, partitions, set, topic); err != nil {
			t.Fatal(err)
		}
	}
	noise := func(ev *decode.Event) {
		ev.Value = make([]byte, 5000)
		rng := rand.New(rand.NewPCG(1, ev.Seq))
		for j := range ev.Value {
			ev.Value[j] = byte(rng.Uint32())
		}
	}

	for name, c := range map[string]struct {
		codec  string
		config []string
		spoil  func(ev *decode.Event)
	}{
		"large":      {"none", []string{"max.message.bytes", "4000"}, noise},
		"compressed": {"lz4", []string{"max.message.bytes", "4000"}, noise},
		"compacted":  {"none", []string{"cleanup.policy", "compact"}, func(ev *decode.Event) { ev.Key = nil }},
		"timestamp":  {"none", nil, func(ev *decode.Event) { ev.Timestamp += 48 * 3600 * 1000 }},
		"partition":  {"none", nil, func(ev *decode.Event) { ev.Partition = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			create(name, 2, c.config...)
			create(name+".DLT", 1)
			events := outbox(name, 0, 300)
			bad := []int{40, 41, 250}
			for _, i := range bad {
				c.spoil(&events[i])
			}
			p := produceTo(t, client, func(s *sink.Config) { s.Compression = c.codec })
			n, err := p.Write(ctx, events)
			var poison *decode.PoisonError
			if n != 40 || !errors.As(err, &poison) || poison.EventID != "event-40" {
				t.Fatal(n, err)
			}
			p = produceTo(t, client, func(s *sink.Config) { s.Compression, s.Poison = c.codec, sink.PoisonDeadLetter })
			if n, err := p.Write(ctx, events[n:]); n != 260 || err != nil {
				t.Fatal(n, err)
			}
			seen := make(map[string]int)
			for _, records := range all(t, k, name) {
				last := ""
				for _, r := range records {
					id := string(r.Headers[0].Value)
					seen[id]++
					if last != "" && seen[id] == 1 && r.Offset > 0 && len(id) == len(last) && id < last {
						t.Errorf("%s behind %s", id, last)
					}
					last = id
				}
			}
			for i := range events {
				if id := string(events[i].ID); (seen[id] > 0) == (i == 40 || i == 41 || i == 250) {
					t.Errorf("%s is there %d times", id, seen[id])
				}
			}
			dead := all(t, k, name+".DLT")[0]
			if len(dead) != len(bad) {
				t.Fatalf("%d dead letters", len(dead))
			}
			for i, r := range dead {
				ev := &events[bad[i]]
				if string(r.Key) != string(ev.Key) || string(r.Value) != string(ev.Value) || string(r.Headers[0].Value) != string(ev.ID) {
					t.Errorf("dead letter %d: key %s, %d bytes, %v", i, r.Key, len(r.Value), r.Headers)
				}
			}
		})
	}

	t.Run("recreated", func(t *testing.T) {
		create("recreated", 4)
		var log strings.Builder
		p := produceTo(t, client, func(s *sink.Config) { s.Log = zerolog.New(&log) })
		for range 2 {
			if n, err := p.Write(ctx, outbox("recreated", 0, 100)); n != 100 || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := admin.DeleteTopics(ctx, "recreated"); err != nil {
			t.Fatal(err)
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := p.Write(ctx, outbox("recreated", 0, 100))
			wrote <- err
		}()
		waiting(t, p, "recreated")
		create("recreated", 3)
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		once(t, all(t, k, "recreated"), 100)
		if !strings.Contains(log.String(), "created again") {
			t.Error(log.String())
		}
	})

	t.Run("grown", func(t *testing.T) {
		create("grown", 2)
		var log strings.Builder
		p := produceTo(t, client, func(s *sink.Config) { s.Log = zerolog.New(&log) })
		if n, err := p.Write(ctx, outbox("grown", 0, 100)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := admin.UpdatePartitions(ctx, 5, "grown"); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for !strings.Contains(log.String(), `"partitions":5`) {
			<-tick.C
			if err := p.Check(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := p.Write(ctx, outbox("grown", 100, 100)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		var late [][]*kgo.Record
		for _, records := range all(t, k, "grown") {
			var l []*kgo.Record
			for _, r := range records {
				if len(r.Value) == 3 { // 100 to 199
					l = append(l, r)
				}
			}
			late = append(late, l)
		}
		if len(late[4]) == 0 {
			t.Error("nothing on the new partition")
		}
	})

	t.Run("truncated", func(t *testing.T) {
		create("truncated", 1)
		var log strings.Builder
		p := produceTo(t, client, func(s *sink.Config) { s.Log = zerolog.New(&log) })
		for i := range 3 {
			if n, err := p.Write(ctx, outbox("truncated", i*100, 100)); n != 100 || err != nil {
				t.Fatal(n, err)
			}
		}
		// All records and the producer's state with them, as after a long retention.
		if _, err := admin.DeleteRecords(ctx, kadm.Offsets{"truncated": {0: {Topic: "truncated", At: 300}}}); err != nil {
			t.Fatal(err)
		}
		if n, err := p.Write(ctx, outbox("truncated", 300, 100)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	})
}
