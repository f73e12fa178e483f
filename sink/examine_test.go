package sink

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// sole is the finding of a name; the test fails unless there is one.
func sole(t *testing.T, found []Finding, name string) Finding {
	t.Helper()
	var got []Finding
	for _, f := range found {
		if f.Name == name {
			got = append(got, f)
		}
	}
	if len(got) != 1 {
		t.Fatalf("%d findings %s in %+v", len(got), name, found)
	}
	return got[0]
}

// Each line has its level, says what was found, and how it is mended.
func TestFindingsFollowTheTopics(t *testing.T) {
	const all = 1<<opWrite | 1<<opDescribeConfigs
	type set struct {
		e   *examination
		raw *metadata.ResponseTopic
		c   *topicConfig
	}
	partition := func(s set) *metadata.ResponsePartition { return &s.raw.Partitions[0] }
	code := func(k kafka.Error) func(set) { return func(s set) { s.raw.ErrorCode = int16(k) } }
	creating := func(s set) {
		s.raw.ErrorCode = int16(kafka.UnknownTopicOrPartition)
		s.e.create = &CreateTopics{12, 3}
	}
	for _, c := range []struct {
		name, level, text, mend string
		change                  func(set)
	}{
		{"topic", "ok", "orders: 1 partition, replication factor 3, min.insync.replicas 2, max.message.bytes 1048588", "", func(set) {}},
		{"topic", "fail", "orders does not exist", "kafka-topics.sh --bootstrap-server k:9092 --create --topic orders", code(kafka.UnknownTopicOrPartition)},
		{"topic", "warn", "may not create", "--operation Create --topic orders", creating},
		{"topic", "ok", "will create it, with 12 partitions and 3 replicas", "", func(s set) { creating(s); s.e.creates = true }},
		{"acl", "fail", "may not see", "--add --allow-principal User:relay --operation Describe --topic orders", code(kafka.TopicAuthorizationFailed)},
		{"acl", "fail", "may not write", "--operation Write --topic orders", func(s set) { s.raw.TopicAuthorizedOperations = 1 << opDescribeConfigs }},
		{"acl", "warn", "may not read its configuration", "--operation DescribeConfigs", func(s set) { s.raw.TopicAuthorizedOperations = 1 << opWrite }},
		{"topic", "ok", "orders", "", func(s set) { s.raw.TopicAuthorizedOperations = 0 }}, // an old broker
		{"topic", "fail", "INVALID_TOPIC_EXCEPTION", "", code(kafka.InvalidTopic)},
		{"leader", "fail", "no leader for partition 0", "start the brokers", func(s set) { partition(s).LeaderID = -1 }},
		{"in_sync_replicas", "fail", "fewer in-sync replicas than min.insync.replicas=2", "start the brokers", func(s set) { partition(s).IsrNodes = []int32{1} }},
		{"durability", "fail", "min.insync.replicas=1", "--add-config min.insync.replicas=2", func(s set) { s.c.minISR = 1 }},
		{"durability", "warn", "on this host", "--add-config min.insync.replicas=2", func(s set) { s.c.minISR, s.e.local = 1, true }},
		{"durability", "warn", "--allow-weak-topics", "--add-config min.insync.replicas=2", func(s set) { s.c.minISR, s.e.allowWeak = 1, true }},
		{"durability", "fail", "replication factor 1", "kafka-reassign-partitions.sh", func(s set) { partition(s).ReplicaNodes = []int32{1}; s.c.minISR = 1 }},
		{"max_message_bytes", "fail", "would be poison", "max.message.bytes=", func(s set) { s.e.known.Largest = 1 << 20 }},
		{"max_message_bytes", "warn", "more than half", "max.message.bytes=", func(s set) { s.e.known.Largest = 600 << 10 }},
		{"topic", "ok", "orders", "", func(s set) { s.e.known.Largest = 100 << 10 }},
		{"cleanup_policy", "warn", "only the newest event", "cleanup.policy=delete", func(s set) { s.c.compact = true }},
		{"cleanup_policy", "fail", "no key", "cleanup.policy=delete", func(s set) { s.c.compact, s.e.known.NullKeys = true, true }},
	} {
		p, err := newProducer(Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.bootstrap, p.principal = "k:9092", "relay"
		var found findings
		e := &examination{Producer: p, found: &found}
		raw := &metadata.ResponseTopic{Name: "orders", TopicAuthorizedOperations: all,
			Partitions: []metadata.ResponsePartition{{LeaderID: 1, ReplicaNodes: []int32{1, 2, 3}, IsrNodes: []int32{1, 2}}}}
		config := &topicConfig{limit: 1048588, minISR: 2}
		c.change(set{e, raw, config})
		e.topic(raw, topicOf(raw), *config)
		got := sole(t, found, c.name)
		if got.Level != c.level || !strings.Contains(got.Text, c.text) || !strings.Contains(got.Mend, c.mend) || got.Level == "ok" && got.Mend != "" {
			t.Errorf("%s: got %+v, want %s with %q and %q", c.name, got, c.level, c.text, c.mend)
		}
	}
}

// A broker that cannot be reached is named, the one given and the one advertised.
func TestExamineReachesEveryBroker(t *testing.T) {
	f := newFakeCluster(t, 3, nil)
	f.set(func() { f.broker(2).down = true })
	f.set(func() {
		f.broker(3).ranges = func(key protocol.ApiKey) (int16, int16) {
			if key == protocol.InitProducerId {
				return 0, -1
			}
			return key.MinVersion(), key.MaxVersion()
		}
	})
	found, answered := f.client(func(c *ClientConfig) { c.Brokers = []string{"b1:9092"} }).Examine(t.Context())
	if !answered {
		t.Fatal("nobody answered")
	}
	levels := make(map[string]string)
	for _, l := range found {
		levels[l.Name+" "+l.Level] += l.Text + "; " + l.Mend
	}
	for name, want := range map[string]string{"broker ok": "b1:9092", "broker fail": "advertised.listeners", "api_versions fail": "InitProducerId", "cluster ok": "3 brokers"} {
		if !strings.Contains(levels[name], want) {
			t.Errorf("%s: no %q in %+v", name, want, found)
		}
	}
	f.set(func() { f.broker(1).down = true })
	found, answered = f.client(func(c *ClientConfig) { c.Brokers = []string{"b1:9092"} }).Examine(t.Context())
	if got := sole(t, found, "broker"); answered || got.Level != "fail" || !strings.Contains(got.Mend, "--kafka-brokers") {
		t.Errorf("answered %v, %+v", answered, found)
	}
}

// What the cluster does not answer is one line, not a crash.
func TestExamineWithoutAnAnswer(t *testing.T) {
	f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
		if req.ApiKey() == protocol.Metadata {
			return nil, errHangUp
		}
		return nil, errDefault
	})
	client := f.client(nil)
	p, err := NewProducer(Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := sole(t, p.Examine(ctx, Known{}), "topics"); got.Level != "fail" {
		t.Errorf("%+v", got)
	}
}

// A broker that has just started is given a moment; one that refuses us is not.
func TestExamineWaitsForWhatPasses(t *testing.T) {
	for _, c := range []struct {
		codes       []int16
		level, mend string
	}{
		{[]int16{0}, "ok", ""},
		{[]int16{14, 15, 0}, "ok", ""}, // the coordinator is loading, has no leader yet
		{[]int16{31}, "fail", "--operation IdempotentWrite --cluster"},
		{[]int16{53}, "fail", "logs"},
		{[]int16{14}, "fail", "logs"}, // for ever
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
				if req.ApiKey() != protocol.InitProducerId {
					return nil, errDefault
				}
				return &initproducerid.Response{ErrorCode: c.codes[min(s.nth, len(c.codes))-1]}, nil
			})
			p, err := NewProducer(Config{Client: f.client(nil)})
			if err != nil {
				t.Fatal(err)
			}
			got := sole(t, p.Examine(t.Context(), Known{}), "idempotent_write")
			if got.Level != c.level || !strings.Contains(got.Mend, c.mend) {
				t.Errorf("%v: %+v", c.codes, got)
			}
		})
	}
}
