// Package wire runs the Kafka side of walrelay against franz-go's kfake: real sockets,
// another implementation of the protocol, faults on demand.
package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walrelay/walrelay/sink"
)

func start(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3), kfake.SeedTopics(3, "t")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func connect(t *testing.T, cluster *kfake.Cluster, change func(*sink.ClientConfig)) *sink.Client {
	t.Helper()
	cfg := sink.ClientConfig{Brokers: cluster.ListenAddrs()}
	if change != nil {
		change(&cfg)
	}
	client, err := sink.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// put produces one record and returns the code of the answer and its offset.
func put(ctx context.Context, client *sink.Client, broker, partition int32) (int16, int64, error) {
	var set bytes.Buffer
	records := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{
		Time: time.Now(), Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes([]byte("v")),
	})}
	if _, err := records.WriteTo(&set); err != nil {
		return 0, 0, err
	}
	res, err := client.Send(ctx, broker, &rawproduce.Request{Acks: -1, Timeout: 1000, Topics: []rawproduce.RequestTopic{{
		Topic: "t", Partitions: []rawproduce.RequestPartition{{Partition: partition, RecordSet: protocol.RawRecordSet{Reader: &set}}},
	}}})
	if err != nil {
		return 0, 0, err
	}
	p := res.(*produce.Response).Topics[0].Partitions[0]
	return p.ErrorCode, p.BaseOffset, nil
}

func leader(t *testing.T, client *sink.Client, partition int) int32 {
	t.Helper()
	known, err := client.Metadata(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if topic := known["t"]; topic.Err != nil || len(topic.Partitions) != 3 {
		t.Fatalf("%+v", topic)
	}
	return known["t"].Partitions[partition].Leader
}

// G8: after a leader's move the old one says so, and the next metadata names the new one.
func TestG8LeaderMoves(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	for i := range int64(5) {
		old := leader(t, client, 0)
		if code, offset, err := put(t.Context(), client, old, 0); code != 0 || offset != i || err != nil {
			t.Fatalf("code %d, offset %d, %v", code, offset, err)
		}
		next := (old + 1) % 3
		if err := cluster.MoveTopicPartition("t", 0, next); err != nil {
			t.Fatal(err)
		}
		if code, _, err := put(t.Context(), client, old, 0); kafka.Error(code) != kafka.NotLeaderForPartition || err != nil {
			t.Fatalf("code %d, %v", code, err)
		}
		client.Refresh("t")
		if now := leader(t, client, 0); now != next {
			t.Fatalf("leader %d, moved to %d", now, next)
		}
	}
}

// G8: a broker that goes away is an error of the transport; the others tell who leads now.
func TestG8BrokerGoesAway(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	old := leader(t, client, 0)
	if _, _, err := put(t.Context(), client, old, 0); err != nil {
		t.Fatal(err)
	}
	if err := cluster.MoveTopicPartition("t", 0, (old+1)%3); err != nil {
		t.Fatal(err)
	}
	if err := cluster.RemoveNode(old); err != nil {
		t.Fatal(err)
	}
	var broken *sink.BrokerError // or, over a connection that kfake has not closed yet, NOT_LEADER
	if code, _, err := put(t.Context(), client, old, 0); !errors.As(err, &broken) && kafka.Error(code) != kafka.NotLeaderForPartition {
		t.Errorf("code %d, %v", code, err)
	}
	client.Refresh("t")
	if code, _, err := put(t.Context(), client, leader(t, client, 0), 0); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// Every admin call that walrelay's commands need works over the client.
func TestAdminCalls(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	admin := client.Admin()
	ctx := t.Context()
	created, err := admin.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: "n", NumPartitions: 2, ReplicationFactor: 3, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "min.insync.replicas", ConfigValue: "2"}},
	}}})
	if err != nil || created.Errors["n"] != nil {
		t.Fatalf("create: %+v, %v", created, err)
	}
	if known, err := client.Metadata(ctx, "n"); err != nil || len(known["n"].Partitions) != 2 {
		t.Errorf("metadata right after: %+v, %v", known, err)
	}
	configs, err := admin.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: "n", ConfigNames: []string{"min.insync.replicas"}},
		{ResourceType: kafka.ResourceTypeBroker, ResourceName: "1", ConfigNames: []string{"message.max.bytes"}},
	}})
	if err != nil || len(configs.Resources) != 2 || configs.Resources[1].ConfigEntries[0].ConfigValue != "2" {
		t.Errorf("describe configs: %+v, %v", configs, err)
	}
	if altered, err := admin.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: "n",
		Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "retention.ms", Value: "1000", ConfigOperation: kafka.ConfigOperationSet}},
	}}}); err != nil || altered.Resources[0].Error != nil {
		t.Errorf("alter configs: %+v, %v", altered, err)
	}
	if grown, err := admin.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: "n", Count: 5}}}); err != nil || grown.Errors["n"] != nil {
		t.Errorf("create partitions: %+v, %v", grown, err)
	}
	if known, err := client.Metadata(ctx, "n"); err != nil || len(known["n"].Partitions) != 5 {
		t.Errorf("metadata after it has grown: %+v, %v", known, err)
	}
	if code, _, err := put(ctx, client, leader(t, client, 1), 1); code != 0 || err != nil {
		t.Fatalf("code %d, %v", code, err)
	}
	offsets, err := admin.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		"t": {kafka.LastOffsetOf(0), kafka.LastOffsetOf(1), kafka.LastOffsetOf(2)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range offsets.Topics["t"] {
		if want := int64(p.Partition % 2); p.Error != nil || p.LastOffset != want {
			t.Errorf("list offsets: %+v", p)
		}
	}
	fetched, err := admin.Fetch(ctx, &kafka.FetchRequest{Topic: "t", Partition: 1, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Second})
	if err != nil || fetched.Error != nil {
		t.Fatalf("fetch: %+v, %v", fetched, err)
	}
	if r, err := fetched.Records.ReadRecord(); err != nil || r.Offset != 0 {
		t.Errorf("fetch: %+v, %v", r, err)
	}
	if deleted, err := admin.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{"n"}}); err != nil || deleted.Errors["n"] != nil {
		t.Errorf("delete: %+v, %v", deleted, err)
	}
	if known, err := client.Metadata(ctx, "n"); err != nil || !errors.Is(known["n"].Err, kafka.UnknownTopicOrPartition) {
		t.Errorf("metadata after the deletion: %+v, %v", known, err)
	}
}

// A topic that is deleted and created again has another id.
func TestTopicIDs(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	id := func() [16]byte {
		client.Refresh("t")
		leader(t, client, 0)
		known, err := client.Metadata(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return known["t"].ID
	}
	old := id()
	if old != cluster.TopicInfo("t").TopicID {
		t.Errorf("%x", old)
	}
	if err := errors.Join(cluster.DeleteTopic("t"), cluster.CreateTopic("t", 3, nil)); err != nil {
		t.Fatal(err)
	}
	if now := id(); now == old || now != cluster.TopicInfo("t").TopicID {
		t.Errorf("%x, before %x", now, old)
	}
}

// The transactional calls follow their coordinator.
func TestTransactionCoordinatorMoves(t *testing.T) {
	cluster := start(t)
	client := connect(t, cluster, nil)
	admin := client.Admin()
	ctx := t.Context()
	for range 5 {
		id, err := admin.InitProducerID(ctx, &kafka.InitProducerIDRequest{TransactionalID: "x", TransactionTimeoutMs: 10_000, ProducerID: -1, ProducerEpoch: -1})
		if err != nil || id.Error != nil {
			t.Fatalf("%+v, %v", id, err)
		}
		add := &kafka.AddPartitionsToTxnRequest{TransactionalID: "x", ProducerID: id.Producer.ProducerID, ProducerEpoch: id.Producer.ProducerEpoch,
			Topics: map[string][]kafka.AddPartitionToTxn{"t": {{Partition: 0}}}}
		if res, err := admin.AddPartitionsToTxn(ctx, add); err != nil || res.Topics["t"][0].Error != nil {
			t.Fatalf("%+v, %v", res, err)
		}
		if res, err := admin.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: "x", ProducerID: id.Producer.ProducerID, ProducerEpoch: id.Producer.ProducerEpoch, Committed: true}); err != nil || res.Error != nil {
			t.Fatalf("%+v, %v", res, err)
		}
		before := cluster.CoordinatorFor("x")
		for cluster.CoordinatorFor("x") == before {
			cluster.RehashCoordinators()
		}
		// The first request finds a broker that is no longer the coordinator; the next one looks it up.
		res, err := admin.InitProducerID(ctx, &kafka.InitProducerIDRequest{TransactionalID: "x", TransactionTimeoutMs: 10_000, ProducerID: -1, ProducerEpoch: -1})
		if err != nil || !errors.Is(res.Error, kafka.NotCoordinatorForGroup) {
			t.Fatalf("%+v, %v", res, err)
		}
	}
}

// An idempotent producer without transactions gets its id from any broker.
func TestInitProducerIDWithoutTransactions(t *testing.T) {
	admin := connect(t, start(t), nil).Admin()
	id, err := admin.InitProducerID(t.Context(), &kafka.InitProducerIDRequest{ProducerID: -1, ProducerEpoch: -1})
	if err != nil || id.Error != nil {
		t.Errorf("%+v, %v", id, err)
	}
}

// The same exchanges with brokers of many ages.
func TestBrokerVersions(t *testing.T) {
	for name, version := range map[string]*kversion.Versions{
		"1.0": kversion.V1_0_0(), "2.0": kversion.V2_0_0(), "2.8": kversion.V2_8_0(), "3.6": kversion.V3_6_0(), "latest": kversion.Stable(),
	} {
		client := connect(t, start(t, kfake.MaxVersions(version)), nil)
		if code, _, err := put(t.Context(), client, leader(t, client, 0), 0); code != 0 || err != nil {
			t.Errorf("%s: code %d, %v", name, code, err)
		}
	}
}

func TestSASL(t *testing.T) {
	const wrong = "SECRET-wrong"
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		cluster := start(t, kfake.EnableSASL(), kfake.Superuser(strings.ToUpper(mechanism), "relay", "pass,w=örd"))
		for _, password := range []string{"pass,w=örd", wrong} {
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			client := connect(t, cluster, func(cfg *sink.ClientConfig) {
				cfg.SASL = &sink.SASLConfig{Mechanism: mechanism, Username: "relay", PasswordFile: file}
			})
			known, err := client.Metadata(t.Context(), "t")
			var refused *sink.AuthError
			switch {
			case password != wrong && (err != nil || known["t"].Err != nil):
				t.Errorf("%s: %v, %v", mechanism, known, err)
			case password == wrong && (err == nil || strings.Contains(fmt.Sprint(err), wrong)):
				t.Errorf("%s with a wrong password: %v", mechanism, err)
			case password == wrong && !errors.As(err, &refused):
				t.Logf("%s: kfake hangs up instead of an answer: %v", mechanism, err)
			}
		}
	}
}
