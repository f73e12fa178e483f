package sink

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// RoundTrip sends req to the broker that it is meant for, as kafka-go's messages say: the partition's leader,
// the controller, a coordinator, each of several brokers, or any. The address is ignored: a client knows its cluster.
// Errors are those of the transport, and a kafka.Error where the right broker cannot be found.
func (c *Client) RoundTrip(ctx context.Context, _ net.Addr, req kafka.Request) (kafka.Response, error) {
	split, ok := req.(protocol.Splitter)
	if !ok {
		return c.route(ctx, req)
	}
	cluster, err := c.cluster(ctx, topicsOf(req))
	if err != nil {
		return nil, err
	}
	parts, merger, err := split.Split(cluster)
	if err != nil {
		return nil, err
	}
	results := make([]any, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			if res, err := c.route(ctx, part); err != nil {
				results[i] = err
			} else {
				results[i] = res
			}
		})
	}
	wg.Wait()
	return merger.Merge(parts, results)
}

func (c *Client) route(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	switch m := req.(type) {
	case *describeconfigs.Request:
		if ofTopics(m) { // kafka-go would have the controller asked, who may be the one that is silent
			return c.any(ctx, req, true)
		}
		return c.toBroker(ctx, req, m)
	case protocol.BrokerMessage:
		return c.toBroker(ctx, req, m)
	case protocol.GroupMessage:
		return c.toCoordinator(ctx, req, coordinatorKey{kafka.CoordinatorKeyTypeConsumer, m.Group()})
	case protocol.TransactionalMessage:
		if m.Transaction() != "" { // InitProducerId without one is for any broker
			return c.toCoordinator(ctx, req, coordinatorKey{kafka.CoordinatorKeyTypeTransaction, m.Transaction()})
		}
	case *metadata.Request:
		res, err := c.any(ctx, req, true)
		if err == nil {
			c.mu.Lock()
			c.learnBrokers(res.(*metadata.Response))
			c.mu.Unlock()
		}
		return res, err
	}
	return c.any(ctx, req, req.ApiKey() == protocol.InitProducerId) // an id that nobody uses costs nothing
}

func ofTopics(req *describeconfigs.Request) bool {
	return !slices.ContainsFunc(req.Resources, func(r describeconfigs.RequestResource) bool { return r.ResourceType != resourceTopic })
}

// toBroker: the leader of the request's partitions, the controller, or a broker named in the request.
func (c *Client) toBroker(ctx context.Context, req protocol.Message, m protocol.BrokerMessage) (protocol.Message, error) {
	topics := topicsOf(req)
	cluster, err := c.cluster(ctx, topics)
	if err != nil {
		return nil, err
	}
	to, err := m.Broker(cluster)
	switch {
	case err != nil:
		c.Refresh(topics...)
		return nil, err
	case to.Host == "" && len(topics) > 0:
		c.Refresh(topics...)
		return nil, fmt.Errorf("sink: %s for %q: %w", req.ApiKey(), topics, kafka.LeaderNotAvailable)
	case to.Host == "":
		return c.any(ctx, req, false) // no controller known: each broker passes the request on, or says that it is none
	}
	res, err := c.Send(ctx, to.ID, req)
	if err != nil || anyCode(reflect.ValueOf(res), movedLeader) {
		c.moved(topics)
	}
	switch req.ApiKey() {
	case protocol.CreateTopics, protocol.DeleteTopics, protocol.CreatePartitions:
		c.Refresh()
	}
	return res, err
}

func movedLeader(code kafka.Error) bool {
	switch code {
	case kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.FencedLeaderEpoch, kafka.NotController:
		return true
	}
	return false
}

// moved forgets what led to the wrong broker.
func (c *Client) moved(topics []string) {
	if len(topics) > 0 {
		c.Refresh(topics...)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.controller = -1
}

// cluster is what a request's own routing code wants to see. It asks for what is
// not known: the topics, or, without any, the brokers and the controller.
func (c *Client) cluster(ctx context.Context, topics []string) (protocol.Cluster, error) {
	known, err := c.Metadata(ctx, topics...)
	if err == nil && len(topics) == 0 {
		err = c.findController(ctx)
	}
	if err != nil {
		return protocol.Cluster{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cluster := protocol.Cluster{
		Controller: c.controller,
		Brokers:    make(map[int32]protocol.Broker, len(c.brokers)),
		Topics:     make(map[string]protocol.Topic, len(known)),
	}
	for id, p := range c.brokers {
		cluster.Brokers[id] = protocol.Broker{ID: id, Host: p.addr} // only the id is used
	}
	for name, t := range known {
		if t.Err != nil {
			return protocol.Cluster{}, fmt.Errorf("sink: topic %q: %w", name, t.Err)
		}
		partitions := make(map[int32]protocol.Partition, len(t.Partitions))
		for i, p := range t.Partitions {
			partitions[int32(i)] = protocol.Partition{ID: int32(i), Leader: p.Leader}
		}
		cluster.Topics[name] = protocol.Topic{Name: name, Partitions: partitions}
	}
	return cluster, nil
}

func (c *Client) findController(ctx context.Context) error {
	known := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.controller >= 0
	}
	if known() {
		return nil
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if known() {
		return nil
	}
	return c.ask(ctx, nil)
}

type coordinatorKey struct {
	kind kafka.CoordinatorKeyType
	key  string
}

// toCoordinator asks where the coordinator is once, until it does not answer or says that it is none.
func (c *Client) toCoordinator(ctx context.Context, req protocol.Message, k coordinatorKey) (protocol.Message, error) {
	node, err := c.coordinator(ctx, k)
	if err != nil {
		return nil, err
	}
	res, err := c.Send(ctx, node, req)
	if err != nil || anyCode(reflect.ValueOf(res), movedCoordinator) {
		c.mu.Lock()
		delete(c.coordinators, k)
		c.mu.Unlock()
	}
	return res, err
}

func movedCoordinator(code kafka.Error) bool {
	return code == kafka.NotCoordinatorForGroup || code == kafka.GroupCoordinatorNotAvailable
}

func (c *Client) coordinator(ctx context.Context, k coordinatorKey) (int32, error) {
	c.mu.Lock()
	node, ok := c.coordinators[k]
	c.mu.Unlock()
	if ok {
		return node, nil
	}
	res, err := c.any(ctx, &findcoordinator.Request{Key: k.key, KeyType: int8(k.kind)}, true)
	if err != nil {
		return 0, err
	}
	found := res.(*findcoordinator.Response)
	if found.ErrorCode != 0 {
		return 0, fmt.Errorf("sink: coordinator of %q: %w", k.key, kafka.Error(found.ErrorCode))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, errClientClosed
	}
	c.learnBroker(found.NodeID, found.Host, found.Port)
	c.coordinators[k] = found.NodeID
	return found.NodeID, nil
}

// topicsOf lists the topics that the routing of req depends on.
func topicsOf(req protocol.Message) (topics []string) {
	switch r := req.(type) {
	case *rawproduce.Request:
		for i := range r.Topics {
			topics = append(topics, r.Topics[i].Topic)
		}
	case *produce.Request:
		for i := range r.Topics {
			topics = append(topics, r.Topics[i].Topic)
		}
	case *fetch.Request:
		for i := range r.Topics {
			topics = append(topics, r.Topics[i].Topic)
		}
	case *listoffsets.Request:
		for i := range r.Topics {
			topics = append(topics, r.Topics[i].Topic)
		}
	}
	return topics
}

// timeout is how long req and its answer may take: what the broker was told to wait, and requestTimeout.
func (c *Client) timeout(req protocol.Message) time.Duration {
	var wait int32
	switch r := req.(type) {
	case *rawproduce.Request:
		wait = r.Timeout
	case *produce.Request:
		wait = r.Timeout
	case *fetch.Request:
		wait = r.MaxWaitTime
	}
	return c.cfg.requestTimeout + time.Duration(max(0, wait))*time.Millisecond
}

// throttleTime is the answer's ThrottleTimeMs, if it has one.
func throttleTime(res protocol.Message) time.Duration {
	f := reflect.ValueOf(res).Elem().FieldByName("ThrottleTimeMs")
	if !f.IsValid() {
		return 0
	}
	return time.Duration(f.Int()) * time.Millisecond
}

// anyCode reports whether an ErrorCode anywhere in the answer is one of those.
func anyCode(v reflect.Value, of func(kafka.Error) bool) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && anyCode(v.Elem(), of)
	case reflect.Slice:
		for i := range v.Len() {
			if v.Index(i).Kind() == reflect.Struct && anyCode(v.Index(i), of) {
				return true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if f.Name == "ErrorCode" && f.Type.Kind() == reflect.Int16 {
				if of(kafka.Error(v.Field(i).Int())) {
					return true
				}
			} else if f.Type.Kind() == reflect.Slice && anyCode(v.Field(i), of) {
				return true
			}
		}
	}
	return false
}
