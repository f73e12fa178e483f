package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walrelay/walrelay/e2e/proc"
	"github.com/walrelay/walrelay/e2e/stack"
)

const topicPrefix = "outbox.event."

var topics = []string{topicPrefix + "order", topicPrefix + "payment", topicPrefix + "price"}

const partitions = 3

// broker is the one Kafka broker: a real one, or a stand-in where there is none.
type broker interface {
	Addr() string
	Kill() error
	Start(context.Context) error
	Close() error
}

type realBroker struct {
	*stack.Broker
	cluster *stack.Kafka
}

func (b realBroker) Close() error { return b.cluster.Close() }

// startBroker starts a real Kafka; where that is not to be had, the fake, and reason says why.
func startBroker(ctx context.Context) (b broker, reason, err error) {
	cluster, reason := stack.StartKafka(ctx, stack.KafkaOptions{})
	if reason != nil {
		if ctx.Err() != nil {
			return nil, nil, reason
		}
		f, err := startFake()
		return f, reason, err
	}
	b = realBroker{cluster.Broker(1), cluster}
	return b, nil, errors.Join(cluster.CreateTopics(ctx, partitions, nil, topics...), coordinated(ctx, cluster))
}

// coordinated returns when the broker gives out producer ids: a fresh one makes the first
// producer wait for a second or two.
func coordinated(ctx context.Context, cluster *stack.Kafka) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	_, _, err = client.ProducerID(ctx)
	return err
}

// fakeBroker is franz-go's kfake, in this process: it speaks the protocol over sockets
// and keeps its records in a folder, but is not Kafka.
type fakeBroker struct {
	scope   *proc.Scope
	port    int
	cluster *kfake.Cluster
}

func startFake() (*fakeBroker, error) {
	ports, err := proc.FreePorts(1)
	if err != nil {
		return nil, err
	}
	scope, err := proc.NewScope("kfake")
	if err != nil {
		return nil, err
	}
	f := &fakeBroker{scope: scope, port: ports[0]}
	if err := f.Start(context.Background()); err != nil {
		return nil, errors.Join(err, scope.Close())
	}
	return f, nil
}

func (f *fakeBroker) Addr() string { return proc.Addr(f.port) }

// Start may follow Kill: the records are still there.
func (f *fakeBroker) Start(context.Context) (err error) {
	f.cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(f.port), kfake.DataDir(f.scope.Dir), kfake.SeedTopics(partitions, topics...))
	if err != nil {
		return fmt.Errorf("demo: fake broker: %w", err)
	}
	return nil
}

// Kill closes it; there is no process to kill.
func (f *fakeBroker) Kill() error {
	f.cluster.Close()
	return nil
}

func (f *fakeBroker) Close() error {
	f.cluster.Close()
	return f.scope.Close()
}
