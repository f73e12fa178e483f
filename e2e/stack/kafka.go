package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/proc"
)

// KafkaOptions says what cluster to start. The zero value is one broker.
type KafkaOptions struct {
	Brokers int               // 1 (default) or 3, each broker and controller
	Config  map[string]string // server.properties of every broker, over the stack's own
	Proxy   bool              // clients reach every broker through a proxy of its own
	Port    int               // of the first broker's client listener; 0: free ones

	// Listeners are further listeners for clients, name → security protocol
	// ("SASL_SSL"). Their settings belong into Config (listener.name.…).
	Listeners map[string]string
	// FormatArgs are further arguments of the storage tool, say --add-scram.
	FormatArgs []string

	HeapMB int    // 0: 320
	Tmpfs  string // size ("256M") of a tmpfs for each broker's data; root only
}

// Kafka is a cluster. Its methods may be used from several goroutines, a Broker's from
// one at a time.
type Kafka struct {
	opts    KafkaOptions
	lib     string // folder of the jars
	id      string // cluster id
	java    string
	jvm     []string // flags beside jvmFlags
	voters  string
	brokers []*Broker
}

// Two brokers of three are enough to lead, and to take a record with acks=all.
func replicationDefaults(brokers int) map[string]string {
	// A killed broker can register again only when its old session has ended; but one
	// that a busy machine starves must not be taken for dead.
	session := 6000
	if brokers == 1 {
		session = 4000
	}
	rf, isr := min(brokers, 3), max(1, min(brokers, 3)-1)
	return map[string]string{
		"broker.session.timeout.ms":                        fmt.Sprint(session),
		"default.replication.factor":                       fmt.Sprint(rf),
		"min.insync.replicas":                              fmt.Sprint(isr),
		"offsets.topic.replication.factor":                 fmt.Sprint(rf),
		"transaction.state.log.replication.factor":         fmt.Sprint(rf),
		"transaction.state.log.min.isr":                    fmt.Sprint(isr),
		"share.coordinator.state.topic.replication.factor": fmt.Sprint(rf),
		"share.coordinator.state.topic.min.isr":            fmt.Sprint(isr),
	}
}

// Small, quick to elect, and with nothing made by itself.
var brokerDefaults = map[string]string{
	"initial.broker.registration.timeout.ms":    "300000", // on a machine that has much else to do
	"auto.create.topics.enable":                 "false",
	"log.retention.ms":                          "-1", // rows say when they were created: a record may be years old
	"num.partitions":                            "4",
	"offsets.topic.num.partitions":              "4",
	"transaction.state.log.num.partitions":      "4",
	"group.initial.rebalance.delay.ms":          "0",
	"num.network.threads":                       "2",
	"num.io.threads":                            "4",
	"background.threads":                        "2",
	"log.cleaner.dedupe.buffer.size":            "4194304",
	"log.cleaner.backoff.ms":                    "1000",
	"broker.heartbeat.interval.ms":              "300",
	"controller.quorum.election.timeout.ms":     "500",
	"controller.quorum.fetch.timeout.ms":        "1000",
	"controller.quorum.election.backoff.max.ms": "500",
	"replica.lag.time.max.ms":                   "4000",
	"controlled.shutdown.enable":                "true",
}

// StartKafka fetches Kafka if need be, formats the brokers' folders and starts them; it
// returns when all of them are up and know each other.
func StartKafka(ctx context.Context, o KafkaOptions) (*Kafka, error) {
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	k := &Kafka{opts: o, id: clusterID()}
	err := k.fetch(ctx)
	if err == nil {
		err = k.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stack: kafka: %w", err), k.Close())
	}
	return k, nil
}

func (k *Kafka) start(ctx context.Context) error {
	if err := k.format(ctx); err != nil {
		return err
	}
	for _, b := range k.brokers {
		if err := b.launch(); err != nil {
			return err
		}
	}
	return k.await(ctx)
}

func (k *Kafka) format(ctx context.Context) error {
	for i := range k.opts.Brokers {
		b, err := newBroker(k, i+1)
		if err != nil {
			return err
		}
		k.brokers = append(k.brokers, b)
	}
	var voters []string
	for _, b := range k.brokers {
		voters = append(voters, fmt.Sprintf("%d@%s", b.ID, proc.Addr(b.controller)))
	}
	k.voters = strings.Join(voters, ",")
	for _, b := range k.brokers {
		if err := b.format(ctx); err != nil {
			return err
		}
	}
	return nil
}

// await returns when every broker is registered and answers.
func (k *Kafka) await(ctx context.Context) error {
	for _, b := range k.brokers {
		if err := b.await(ctx, len(k.brokers)); err != nil {
			return err
		}
	}
	return nil
}

// Broker returns the broker with a node id, from 1.
func (k *Kafka) Broker(id int) *Broker { return k.brokers[id-1] }

// Brokers is how many brokers the cluster has.
func (k *Kafka) Brokers() int { return len(k.brokers) }

// Bootstrap is the clients' list of host:port, through the proxies where there are any.
func (k *Kafka) Bootstrap() string {
	return k.join(func(b *Broker) string { return b.Addr() })
}

// BootstrapOf is Bootstrap for one of KafkaOptions.Listeners.
func (k *Kafka) BootstrapOf(listener string) string {
	return k.join(func(b *Broker) string { return proc.Addr(b.extra[listener]) })
}

// Direct is the list for those who must not meet the proxies' faults, say a checker.
func (k *Kafka) Direct() string {
	return k.join(func(b *Broker) string { return proc.Addr(b.internal) })
}

func (k *Kafka) join(f func(*Broker) string) string {
	var list []string
	for _, b := range k.brokers {
		list = append(list, f(b))
	}
	return strings.Join(list, ",")
}

// Client returns a client past the proxies; the caller closes it.
func (k *Kafka) Client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(k.Direct(), ",")...),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, opts...)...)
}

// CreateTopics creates topics with the cluster's replication and returns when every
// partition has a leader.
func (k *Kafka) CreateTopics(ctx context.Context, partitions int32, config map[string]*string, topics ...string) error {
	client, err := k.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	created, err := admin.CreateTopics(ctx, partitions, -1, config, topics...)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		return fmt.Errorf("stack: create topics: %w", err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !led(ctx, admin, topics) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("stack: create topics: no leaders: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// led says whether every partition of the topics has a leader that answers.
func led(ctx context.Context, admin *kadm.Client, topics []string) bool {
	offsets, err := admin.ListEndOffsets(ctx, topics...)
	return err == nil && offsets.Error() == nil && len(offsets) == len(topics)
}

// Close ends the brokers, and removes them.
func (k *Kafka) Close() error {
	var errs []error
	for _, b := range k.brokers {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}

// LogFile is the path of a broker's log.
func (b *Broker) LogFile() string { return filepath.Join(b.scope.Dir, "broker.log") }
