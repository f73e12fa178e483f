package wire

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

// G1 G2 G8: what real brokers forget: a producer id that has expired costs nothing; after an unclean election
// what was acknowledged and is gone is told of, and all that follows is there once and in order.
func TestG1BrokersThatForget(t *testing.T) {
	if os.Getenv("WALRELAY_LONG") != "1" {
		t.Skip("an unclean election takes a minute: WALRELAY_LONG=1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r := startRig(t, ctx, "two", stack.KafkaOptions{Brokers: 3, Config: map[string]string{
		"producer.id.expiration.ms": "3000", "producer.id.expiration.check.interval.ms": "500",
	}})
	k := r.kafka
	p := r.producer(func(c *sink.Config) { c.AllowWeakTopics = true })
	write := func(topic string, first int) {
		t.Helper()
		if n, err := p.Write(ctx, outbox(topic, first, 100)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	}

	r.must(k.CreateTopics(ctx, 2, nil, "expired"))
	for i := range 4 {
		write("expired", 100*i)
		r.wait(6 * time.Second)
	}
	once(t, all(t, k, "expired"), 400)

	// Two replicas, the third broker keeps the quorum.
	one, yes := "1", "true"
	made, err := r.admin.CreateTopic(ctx, 1, 2, map[string]*string{"min.insync.replicas": &one, "unclean.leader.election.enable": &yes}, r.topic)
	r.must(err)
	r.must(made.Err)
	state := func() kadm.PartitionDetail {
		topics, err := r.admin.ListTopics(ctx, r.topic)
		if err != nil {
			return kadm.PartitionDetail{Leader: -1}
		}
		return topics[r.topic].Partitions[0]
	}
	r.eventually(time.Minute, "two replicas in sync", func() bool { return len(state().ISR) == 2 })
	write(r.topic, 0)
	leader := state().Leader
	other := k.Broker(int(state().Replicas[0] + state().Replicas[1] - leader))
	r.must(other.Kill())
	r.eventually(2*time.Minute, "one replica in sync", func() bool { return len(state().ISR) == 1 })
	write(r.topic, 100) // on the leader alone
	r.must(k.Broker(int(leader)).Kill())
	wrote := make(chan error, 1)
	go func() {
		_, err := p.Write(ctx, outbox(r.topic, 200, 100))
		wrote <- err
	}()
	r.must(other.Start(ctx))
	r.must(<-wrote)
	write(r.topic, 300)
	r.must(k.Broker(int(leader)).Start(ctx))
	r.eventually(2*time.Minute, "two replicas in sync", func() bool { return len(state().ISR) == 2 })
	var got []string
	for _, rec := range all(t, k, r.topic)[0] {
		got = append(got, string(rec.Value))
	}
	want := slices.Concat(numbers(0, 100), numbers(200, 400))
	if !slices.Equal(got, want) {
		t.Errorf("%d events, want the first 100 and the last 200: %v", len(got), got)
	}
	if said := r.log.String(); strings.Count(said, "no longer in Kafka") != 1 || !strings.Contains(said, `"acknowledged_offset":199,"offset":100`) {
		t.Errorf("the loss is not told of:\n%s", said)
	}
}

func numbers(from, to int) (list []string) {
	for i := from; i < to; i++ {
		list = append(list, strconv.Itoa(i))
	}
	return list
}
