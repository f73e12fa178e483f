package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// modelCluster answers like brokers do, in memory: leaders, logs, limits, and the
// checks of producer id, epoch and sequence (ProducerAppendInfo of Kafka 4). It fails
// the test when two requests carry the same partition at once.
type modelCluster struct {
	t *testing.T

	mu        sync.Mutex
	topics    map[string]*modelTopic
	hosts     []string // of the brokers; index = node id
	nextID    int64
	ids       int // producer ids given out
	looks     int // calls of Metadata
	refreshed int
	down      bool  // nobody answers but to requests in flight
	refusal   error // nobody lets us in, and why

	// fault decides what happens to a batch; nil = it is appended.
	fault func(at arrival) fault
	// idCode answers the next requests for a producer id.
	idCodes []kafka.Error
	// delay is how long a broker takes to answer.
	delay func() time.Duration
	// unlisted requests for the list of brokers go unanswered.
	unlisted int
	// createCode refuses to create topics.
	createCode kafka.Error
}

type modelTopic struct {
	err    error
	id     [16]byte
	parts  []*modelPart
	config map[string]string
	denied bool // DescribeConfigs is not allowed
}

type modelPart struct {
	leader    int32
	replicas  []int32
	records   []record
	base      int64 // offset of records[0]
	producers map[int64]*modelProducer
	attempts  int
	busy      bool
	sent      [][]byte // every batch that came, as it came
}

type modelProducer struct {
	epoch   int16
	last    int32
	batches []modelBatch // the last five
}

type modelBatch struct {
	first, last int32
	offset      int64
}

// arrival is one batch on arrival.
type arrival struct {
	broker    int32
	topic     string
	partition int32
	attempt   int // of this partition, from 1
	records   []record
}

// fault is what goes wrong with a batch: the answer's code or, if link is set, the
// connection, and whether the batch is appended nevertheless.
type fault struct {
	code     kafka.Error
	link     error
	appended bool
	silent   bool          // no answer until the caller gives up
	slow     time.Duration // before the answer
	errors   []produce.ResponseError
}

var errLink = errors.New("connection reset by peer")

func newModelCluster(t *testing.T) *modelCluster {
	return &modelCluster{t: t, topics: make(map[string]*modelTopic), nextID: 1000, hosts: []string{"kafka-0", "kafka-1", "kafka-2"}}
}

// create makes a topic, its partitions led by the brokers in turn.
func (f *modelCluster) create(name string, partitions int, config ...string) *modelTopic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.createLocked(name, partitions, config...)
}

func (f *modelCluster) createLocked(name string, partitions int, config ...string) *modelTopic {
	f.nextID++
	ft := &modelTopic{config: map[string]string{"max.message.bytes": "1048588", "min.insync.replicas": "2", "cleanup.policy": "delete"}}
	ft.id[0], ft.id[1] = byte(f.nextID), byte(f.nextID>>8)
	for i := 0; i < len(config); i += 2 {
		ft.config[config[i]] = config[i+1]
	}
	f.topics[name] = ft
	f.grow(ft, partitions)
	return ft
}

func (f *modelCluster) grow(ft *modelTopic, partitions int) {
	for i := len(ft.parts); i < partitions; i++ {
		ft.parts = append(ft.parts, &modelPart{leader: int32(i % 3), replicas: []int32{0, 1, 2}, producers: make(map[int64]*modelProducer)})
	}
}

func (f *modelCluster) Refresh(topics ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshed++
}

func (f *modelCluster) Reset() {}

func (f *modelCluster) Metadata(ctx context.Context, topics ...string) (map[string]Topic, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	out := make(map[string]Topic)
	for _, name := range topics {
		ft := f.topics[name]
		switch {
		case ft == nil:
			out[name] = Topic{Name: name, Err: kafka.UnknownTopicOrPartition}
		case ft.err != nil:
			out[name] = Topic{Name: name, Err: ft.err}
		default:
			t := Topic{Name: name, ID: ft.id}
			for _, p := range ft.parts {
				t.Partitions = append(t.Partitions, Partition{Leader: p.leader, Replicas: p.replicas, ISR: p.replicas})
			}
			out[name] = t
		}
	}
	return out, nil
}

// wait takes the time of a request, and fails when the cluster is down.
func (f *modelCluster) wait(ctx context.Context) error {
	f.mu.Lock()
	delay, down, refusal := f.delay, f.down, f.refusal
	f.mu.Unlock()
	if delay != nil {
		if err := pause(ctx, delay()); err != nil {
			return err
		}
	}
	if refusal != nil {
		return refusal
	}
	if down {
		return &BrokerError{Node: 0, Addr: "kafka-0:9092", Op: "connect", Err: errLink}
	}
	return ctx.Err()
}

func (f *modelCluster) RoundTrip(ctx context.Context, _ net.Addr, req kafka.Request) (kafka.Response, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req := req.(type) {
	case *initproducerid.Request:
		if req.ProducerID != -1 || req.ProducerEpoch != -1 {
			f.t.Errorf("InitProducerID %d/%d", req.ProducerID, req.ProducerEpoch)
		}
		if len(f.idCodes) > 0 {
			code := f.idCodes[0]
			f.idCodes = f.idCodes[1:]
			return &initproducerid.Response{ErrorCode: int16(code)}, nil
		}
		f.nextID++
		f.ids++
		return &initproducerid.Response{ProducerID: f.nextID}, nil
	case *createtopics.Request:
		res := &createtopics.Response{}
		for _, t := range req.Topics {
			if f.createCode == 0 {
				ft := f.createLocked(t.Name, int(t.NumPartitions))
				for _, c := range t.Configs {
					ft.config[c.Name] = c.Value
				}
			}
			res.Topics = append(res.Topics, createtopics.ResponseTopic{Name: t.Name, ErrorCode: int16(f.createCode)})
		}
		return res, nil
	case *describeconfigs.Request:
		res := &describeconfigs.Response{}
		for _, r := range req.Resources {
			out := describeconfigs.ResponseResource{ResourceName: r.ResourceName}
			if ft := f.topics[r.ResourceName]; ft == nil || ft.denied {
				out.ErrorCode = int16(kafka.TopicAuthorizationFailed)
			} else {
				for _, name := range r.ConfigNames {
					out.ConfigEntries = append(out.ConfigEntries, describeconfigs.ResponseConfigEntry{ConfigName: name, ConfigValue: ft.config[name]})
				}
			}
			res.Resources = append(res.Resources, out)
		}
		return res, nil
	case *metadata.Request:
		if f.unlisted > 0 && req.TopicNames != nil {
			f.unlisted--
			return nil, io.EOF
		}
		res := &metadata.Response{}
		for i, h := range f.hosts {
			res.Brokers = append(res.Brokers, metadata.ResponseBroker{NodeID: int32(i), Host: h})
		}
		if req.TopicNames == nil {
			for name, ft := range f.topics {
				t := metadata.ResponseTopic{Name: name}
				for i, p := range ft.parts {
					t.Partitions = append(t.Partitions, metadata.ResponsePartition{PartitionIndex: int32(i), ReplicaNodes: p.replicas})
				}
				res.Topics = append(res.Topics, t)
			}
		}
		return res, nil
	}
	f.t.Errorf("unexpected request %T", req)
	return nil, io.EOF
}

func (f *modelCluster) Send(ctx context.Context, broker int32, msg protocol.Message) (protocol.Message, error) {
	req := msg.(*rawproduce.Request)
	if req.Acks != -1 || req.Timeout <= 0 {
		f.t.Errorf("acks %d, timeout %d", req.Acks, req.Timeout)
	}
	release := f.occupy(req)
	defer release()
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	res := &produce.Response{}
	var link error
	silent := false
	var slow time.Duration
	f.mu.Lock()
	for _, t := range req.Topics {
		rt := produce.ResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			set, err := io.ReadAll(p.RecordSet.Reader)
			if err != nil {
				f.t.Error(err)
			}
			rp, ft := f.append(broker, t.Topic, p.Partition, set)
			if ft.link != nil {
				link = ft.link
			}
			silent = silent || ft.silent
			slow = max(slow, ft.slow)
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	f.mu.Unlock()
	if silent {
		slow = time.Hour
	}
	if err := pause(ctx, slow); err != nil {
		return nil, &BrokerError{Node: broker, Op: protocol.Produce.String(), Err: err}
	}
	if link != nil {
		return nil, &BrokerError{Node: broker, Op: protocol.Produce.String(), Err: link}
	}
	return res, nil
}

// occupy checks that no partition is in two requests at once.
func (f *modelCluster) occupy(req *rawproduce.Request) (release func()) {
	set := func(busy bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, t := range req.Topics {
			for _, p := range t.Partitions {
				if part := f.part(t.Topic, p.Partition); part != nil {
					if busy && part.busy {
						f.t.Errorf("two batches in flight for %s-%d", t.Topic, p.Partition)
					}
					part.busy = busy
				}
			}
		}
	}
	set(true)
	return func() { set(false) }
}

func (f *modelCluster) part(topic string, partition int32) *modelPart {
	if ft := f.topics[topic]; ft != nil && ft.err == nil && int(partition) < len(ft.parts) {
		return ft.parts[partition]
	}
	return nil
}

// append is a leader's append with all its checks.
func (f *modelCluster) append(broker int32, topic string, partition int32, set []byte) (produce.ResponsePartition, fault) {
	res := produce.ResponsePartition{Partition: partition, BaseOffset: -1}
	fail := func(code kafka.Error) (produce.ResponsePartition, fault) {
		res.ErrorCode = int16(code)
		return res, fault{}
	}
	part := f.part(topic, partition)
	if part == nil {
		return fail(kafka.UnknownTopicOrPartition)
	}
	if part.leader != broker {
		return fail(kafka.NotLeaderForPartition)
	}
	part.attempts++
	part.sent = append(part.sent, bytes.Clone(set))
	records, heads, err := readBatches(set)
	if err != nil || len(heads) != 1 {
		f.t.Errorf("%s-%d: %d batches, %v", topic, partition, len(heads), err)
		return fail(kafka.InvalidMessage)
	}
	var ft fault
	if f.fault != nil {
		ft = f.fault(arrival{broker, topic, partition, part.attempts, records})
	}
	if ft.code != 0 && !ft.appended {
		res.RecordErrors = ft.errors
		res.ErrorCode = int16(ft.code)
		return res, ft
	}
	if ft.link != nil && !ft.appended || ft.silent && !ft.appended {
		return res, ft
	}
	if most, _ := strconv.Atoi(f.topics[topic].config["max.message.bytes"]); len(set)-sizePrefix > most {
		return fail(kafka.MessageSizeTooLarge)
	}
	if strings.Contains(f.topics[topic].config["cleanup.policy"], "compact") {
		for i, r := range records {
			if r.key == "nil" {
				res.RecordErrors = append(res.RecordErrors, produce.ResponseError{BatchIndex: int32(i), BatchIndexErrorMessage: "no key"})
			}
		}
		if len(res.RecordErrors) > 0 {
			return fail(kafka.InvalidRecord)
		}
	}
	code, offset := part.number(heads[0], records)
	res.ErrorCode, res.BaseOffset = int16(code), offset
	if code == 0 && ft.code != 0 {
		res.ErrorCode, res.BaseOffset = int16(ft.code), -1
	}
	return res, ft
}

// number checks the batch's sequence and appends it if it is the next one.
func (p *modelPart) number(head *protocol.RecordBatch, records []record) (kafka.Error, int64) {
	first, n := head.BaseSequence, int32(len(records))
	last := nextSequence(first, n-1)
	state := p.producers[head.ProducerID]
	if state != nil && head.ProducerEpoch > state.epoch && first == 0 {
		state = nil // a newer epoch counts from 0
	}
	if state != nil {
		for _, b := range state.batches {
			if b.first == first && b.last == last && state.epoch == head.ProducerEpoch {
				return 0, b.offset
			}
		}
		if first != nextSequence(state.last, 1) {
			return kafka.OutOfOrderSequenceNumber, -1
		}
	} else {
		state = &modelProducer{epoch: head.ProducerEpoch}
		p.producers[head.ProducerID] = state
	}
	offset := p.base + int64(len(p.records))
	state.last = last
	state.batches = append(state.batches, modelBatch{first, last, offset})
	if len(state.batches) > 5 {
		state.batches = state.batches[1:]
	}
	for i, r := range records {
		r.offset = offset + int64(i) - p.base
		p.records = append(p.records, r)
	}
	return 0, offset
}

// contents returns what the cluster holds, by topic-partition.
func (f *modelCluster) contents() map[string][]record {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string][]record)
	for name, t := range f.topics {
		for i, p := range t.parts {
			if len(p.records) > 0 {
				out[fmt.Sprintf("%s-%d", name, i)] = p.records
			}
		}
	}
	return out
}

// empty forgets all records; sequences go on.
func (f *modelCluster) empty() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.topics {
		for _, p := range t.parts {
			p.base += int64(len(p.records))
			p.records = nil
		}
	}
}
