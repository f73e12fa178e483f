package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walrelay/walrelay/sink"
)

// endingCodes end a Write; all others are outlived.
var endingCodes = map[int16]bool{21: true, 35: true, 42: true, 48: true, 49: true, 50: true, 76: true, 90: true, 120: true}

// eachCode runs a test for every error code that Kafka 4.3 defines, under some seeds.
func eachCode(t *testing.T, seeds uint64, run func(t *testing.T, e *kerr.Error, rng *rand.Rand)) {
	n := 0
	for number := int16(-1); number <= 133; number++ {
		e := kerr.TypedErrorForCode(number)
		if e == nil { // 0 is none
			continue
		}
		n++
		for seed := range seeds {
			t.Run(fmt.Sprintf("%d %s/seed=%d", number, e.Message, seed), func(t *testing.T) {
				run(t, e, rand.New(rand.NewPCG(seed, uint64(number))))
			})
		}
	}
	if n < 133 {
		t.Errorf("only %d codes", n)
	}
}

// G1 G2 G5 G8: each row of the table as the answer to a produce request, at a moment, of a partition
// and as often as the seed says, while leaders move: the table's action follows, and nothing else happens to the events.
func TestG8EachCodeOfTheProtocol(t *testing.T) {
	seeds := uint64(5)
	if testing.Short() {
		seeds = 1
	}
	eachCode(t, seeds, func(t *testing.T, e *kerr.Error, rng *rand.Rand) {
		cluster := start(t)
		p := produceTo(t, connect(t, cluster, nil), func(c *sink.Config) { c.Poison = sink.PoisonDeadLetter })
		if err := cluster.CreateTopic("t.DLT", 1, nil); err != nil {
			t.Fatal(err)
		}
		before := 1 + rng.IntN(200)
		if n, err := p.Write(t.Context(), outbox("t", 0, before)); n != before || err != nil {
			t.Fatal(n, err)
		}
		if rng.IntN(2) == 0 && e.Code != 46 && !endingCodes[e.Code] { // an answer can be lost with the leader that moved
			cluster.ShufflePartitionLeaders()
		}
		part := rng.Int32N(3)
		faults := []kfake.Fault{{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Partitions: []int32{part}, Err: e, Count: 1 + rng.IntN(3)}}
		switch e.Code {
		case 10, 17, 18, 32, 87: // a batch is condemned or halved by each
			faults[0].Count = 1
		case 46: // an earlier attempt has been appended, and that is not known yet
			faults[0].Count = 1
			lost := faults[0]
			lost.Err = kerr.RequestTimedOut
			faults = append([]kfake.Fault{lost}, faults...)
		}
		fault := cluster.Fault(faults...)
		n, err := p.Write(t.Context(), outbox("t", before, 100))
		if fault.Hits() == 0 {
			t.Fatal("no fault")
		}
		switch {
		case endingCodes[e.Code]:
			var code *sink.CodeError
			if !errors.As(err, &code) || code.Code != e.Code || n == 100 {
				t.Fatal(n, err)
			}
		case n != 100 || err != nil:
			t.Fatal(n, err)
		case e.Code == 17: // the batch is condemned by the name of its topic
			if len(read(t, cluster, "t.DLT")["t.DLT"][0]) == 0 {
				t.Error("no dead letters")
			}
		default:
			once(t, read(t, cluster, "t")["t"], before+100)
		}
	})
}

// G1 G2 G8: each row as the answer to everything else that is asked on the way to the first
// acknowledgement: producer ids, topics, their configuration, their creation.
func TestG8EachCodeBeforeTheFirstBatch(t *testing.T) {
	eachCode(t, 1, func(t *testing.T, e *kerr.Error, rng *rand.Rand) {
		if testing.Short() && e.Code%4 != 0 && !endingCodes[e.Code] {
			t.Skip("a quarter of the codes")
		}
		t.Parallel()
		cluster := start(t)
		client := connect(t, cluster, nil)
		p := produceTo(t, client, func(c *sink.Config) {
			c.Poison, c.CreateTopics = sink.PoisonDeadLetter, &sink.CreateTopics{Partitions: 2, Replication: 3}
		})
		asked := cluster.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t", Err: e, Count: 1 + rng.IntN(2)},
			kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "t", Err: e},
			kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "made", Err: e, Count: 1 + rng.IntN(2)},
		)
		id := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: e, Count: 1 + rng.IntN(3)})
		events := append(outbox("t", 0, 100), outbox("made", 0, 100)...)
		n, err := p.Write(t.Context(), events)
		if endingCodes[e.Code] { // for a producer id
			var code *sink.CodeError
			if !errors.As(err, &code) || code.Code != e.Code || n != 0 {
				t.Fatal(n, err)
			}
			id.Remove()
			n, err = p.Write(t.Context(), events)
		}
		if n != 200 || err != nil {
			t.Fatal(n, err)
		}
		if e.Code == 17 { // such a topic cannot be: its events are dead letters
			return
		}
		if asked.Hits() < 3 || id.Hits() == 0 {
			t.Errorf("%d and %d faults", asked.Hits(), id.Hits())
		}
		got := read(t, cluster, "t", "made")
		once(t, got["t"], 100)
		once(t, got["made"], 100)
	})
}

// G1 G2 G8: a topic that was created again has never heard of the producer: old brokers say UNKNOWN_PRODUCER_ID, new
// ones OUT_OF_ORDER_SEQUENCE_NUMBER. The partitions get a new id each time, and that events are gone is said.
func TestG8ForgottenProducerIDs(t *testing.T) {
	for name, opts := range map[string][]kfake.Opt{
		"UNKNOWN_PRODUCER_ID":          {kfake.MaxVersions(kversion.V2_0_0())},
		"OUT_OF_ORDER_SEQUENCE_NUMBER": nil,
	} {
		t.Run(name, func(t *testing.T) {
			cluster := start(t, opts...)
			var log strings.Builder
			p := produceTo(t, connect(t, cluster, nil), func(c *sink.Config) { c.Log = zerolog.New(&log) })
			for range 3 {
				if n, err := p.Write(t.Context(), outbox("t", 0, 100)); n != 100 || err != nil {
					t.Fatal(n, err)
				}
				once(t, read(t, cluster, "t")["t"], 100)
				if err := errors.Join(cluster.DeleteTopic("t"), cluster.CreateTopic("t", 3, nil)); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), name); n < 2 || !strings.Contains(log.String(), "gets a new producer id") || !strings.Contains(log.String(), "no longer in Kafka") {
				t.Errorf("%d: %s", n, log.String())
			}
		})
	}
}

// G1 G8: a leader elected uncleanly lacks what was acknowledged, and follows other numbers. What is sent then gets a
// new id and the sequence 0; the loss is told of with both offsets, once.
func TestG1UncleanElectionOnTheWire(t *testing.T) {
	cluster := start(t, kfake.SeedTopics(1, "one"))
	var log strings.Builder
	p := produceTo(t, connect(t, cluster, nil), func(c *sink.Config) { c.Log = zerolog.New(&log) })
	if n, err := p.Write(t.Context(), outbox("one", 0, 100)); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	answers := []func(*kmsg.ProduceResponseTopicPartition){
		func(r *kmsg.ProduceResponseTopicPartition) { r.ErrorCode = kerr.NotLeaderForPartition.Code },
		func(r *kmsg.ProduceResponseTopicPartition) { r.ErrorCode = kerr.OutOfOrderSequenceNumber.Code },
		func(r *kmsg.ProduceResponseTopicPartition) { r.BaseOffset = 60 }, // of 100 that it had
	}
	var sent []kmsg.RecordBatch
	cluster.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if len(sent) == len(answers) {
			return nil, nil, false
		}
		cluster.KeepControl()
		req := kreq.(*kmsg.ProduceRequest)
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(req.Topics[0].Partitions[0].Records); err != nil {
			t.Error(err)
		}
		part := kmsg.NewProduceResponseTopicPartition()
		answers[len(sent)](&part)
		sent = append(sent, batch)
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic, topic.Partitions = "one", []kmsg.ProduceResponseTopicPartition{part}
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		res.Topics = []kmsg.ProduceResponseTopic{topic}
		return res, nil, true
	})
	if n, err := p.Write(t.Context(), outbox("one", 100, 20)); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	if len(sent) != 3 || sent[0].FirstSequence != 100 || sent[1].FirstSequence != 100 || sent[2].FirstSequence != 0 ||
		sent[0].ProducerID != sent[1].ProducerID || sent[1].ProducerID == sent[2].ProducerID {
		t.Errorf("%+v", sent)
	}
	if n, err := p.Write(t.Context(), outbox("one", 120, 20)); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	if said := log.String(); strings.Count(said, "no longer in Kafka") != 1 || !strings.Contains(said, `"acknowledged_offset":99,"offset":60`) {
		t.Error(said)
	}
}
