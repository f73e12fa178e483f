package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/stack"
)

var kafkaFaults = []fault{
	{name: "broker killed", lane: kafka, weight: 3, least: 0, most: 4 * time.Second, do: (*world).killBroker},
	{name: "broker stopped in good order", lane: kafka, weight: 1, least: 0, most: 2 * time.Second, do: (*world).stopBroker},
	{name: "broker paused", lane: kafka, weight: 3, least: 300 * time.Millisecond, most: 8 * time.Second, do: (*world).pauseBroker},
	{name: "links to a broker cut", lane: kafka, weight: 3, do: cut(brokerProxy)},
	{name: "links to a broker half-open", lane: kafka, weight: 3, least: 300 * time.Millisecond, most: 9 * time.Second, do: stall(brokerProxy)},
	{name: "links to a broker slow", lane: kafka, weight: 2, least: time.Second, most: 4 * time.Second, do: slow(brokerProxy)},
	{name: "link to a broker cut in a frame", lane: kafka, weight: 3, least: time.Second, most: 2 * time.Second, do: cutInside(brokerProxy, 3000)},
	{name: "broker unreachable", lane: kafka, weight: 2, least: 300 * time.Millisecond, most: 4 * time.Second, do: refuse(brokerProxy)},
	{name: "answers to produce lost", lane: kafka, weight: 4, least: 500 * time.Millisecond, most: 2 * time.Second, do: (*world).loseAnswers},
	{name: "min ISR lost", lane: kafka, weight: 3, least: time.Second, most: 5 * time.Second, do: (*world).loseISR},
	{name: "leaders moved", lane: kafka, weight: 4, three: true, do: (*world).moveLeaders},
	{name: "broker's disk full", lane: kafka, weight: 1, least: 500 * time.Millisecond, most: 4 * time.Second, do: (*world).fillBroker, disk: true},
}

func (w *world) broker(s Step) *stack.Broker { return w.kafka.Broker(1 + s.A%w.kafka.Brokers()) }

func brokerProxy(w *world, s Step) *proxy.Proxy { return w.broker(s).Proxy }

func (w *world) killBroker(s Step) (func() error, error) {
	b := w.broker(s)
	return func() error { return w.startBroker(b) }, b.Kill()
}

func (w *world) stopBroker(s Step) (func() error, error) {
	b := w.broker(s)
	return func() error { return w.startBroker(b) }, b.Stop(w.ctx)
}

// startBroker is patient: a broker that died may have to wait for its old session to end.
func (w *world) startBroker(b *stack.Broker) error {
	var err error
	for range 3 {
		if err = b.Start(w.ctx); err == nil || w.ctx.Err() != nil {
			return err
		}
		b.Kill()
	}
	return err
}

func (w *world) pauseBroker(s Step) (func() error, error) {
	b := w.broker(s)
	b.Pause()
	return func() error { b.Resume(); return nil }, nil
}

func (w *world) loseAnswers(s Step) (func() error, error) {
	p := w.broker(s).Proxy
	for range 1 + s.B%3 {
		const produce = 0
		p.DropResponseTo(produce)
		w.pass(200 * time.Millisecond)
	}
	return func() error { p.Pass(); return nil }, nil
}

// loseISR asks for more in-sync replicas than there are: of three brokers one is killed.
func (w *world) loseISR(s Step) (func() error, error) {
	n := w.kafka.Brokers()
	if n == 1 {
		return func() error { return w.minISR(1) }, w.minISR(2)
	}
	b := w.broker(s)
	if err := w.minISR(3); err != nil {
		return nil, err
	}
	return func() error {
		if err := w.startBroker(b); err != nil {
			return err
		}
		return w.minISR(2)
	}, b.Kill()
}

func (w *world) minISR(n int) error {
	value := fmt.Sprint(n)
	return w.admin(func(ctx context.Context, a *kadm.Client) error {
		res, err := a.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.insync.replicas", Value: &value}}, w.topics()...)
		for _, r := range res {
			if err == nil {
				err = r.Err
			}
		}
		return err
	})
}

// moveLeaders makes the next replica of each partition the preferred one, and elects it.
func (w *world) moveLeaders(s Step) (func() error, error) {
	return nil, w.admin(func(ctx context.Context, a *kadm.Client) error {
		topics, err := a.ListTopics(ctx, w.topics()...)
		if err != nil {
			return err
		}
		var req kadm.AlterPartitionAssignmentsReq
		topics.EachPartition(func(p kadm.PartitionDetail) {
			if n := len(p.Replicas); n > 1 {
				k := 1 + (s.B+int(p.Partition))%(n-1)
				req.Assign(p.Topic, p.Partition, append(append([]int32{}, p.Replicas[k:]...), p.Replicas[:k]...))
			}
		})
		if _, err := a.AlterPartitionAssignments(ctx, req); err != nil {
			return err
		}
		_, err = a.ElectLeaders(ctx, kadm.ElectPreferredReplica, nil)
		return err
	})
}

// admin tries until the cluster has taken it.
func (w *world) admin(do func(context.Context, *kadm.Client) error) error {
	client, err := w.kafka.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		err := do(ctx, kadm.NewClient(client))
		cancel()
		if err == nil || w.ctx.Err() != nil {
			return err
		}
		w.pass(300 * time.Millisecond)
	}
}

// fillBroker leaves the broker no room: it gives its disk up, and needs a start.
func (w *world) fillBroker(s Step) (func() error, error) {
	b := w.broker(s)
	free, err := fill(b.DataDir())
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := free(); err != nil {
			return err
		}
		if err := b.Kill(); err != nil {
			return err
		}
		return w.startBroker(b)
	}, nil
}
