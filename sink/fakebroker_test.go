package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// fakeCluster is a network of scripted brokers in memory. It works inside a
// synctest bubble. A broker's script answers what the cluster does not answer itself:
// ApiVersions, and Metadata from the fields below.
type fakeCluster struct {
	t *testing.T

	mu       sync.Mutex
	brokers  map[string]*fakeBroker // by address
	leaders  map[string][]int32     // topic → leader of each partition
	listed   []int32                // node ids in metadata answers; nil = all brokers
	control  int32
	tcp      bool // real sockets on loopback instead of pipes: not for bubbles
	sessions sync.WaitGroup
	conns    map[net.Conn]struct{}
}

// script answers a request. nil, nil = say nothing; an error closes the connection.
type script func(s *fakeSession, req protocol.Message) (protocol.Message, error)

type fakeBroker struct {
	node    int32
	addr    string
	script  script
	down    bool                                     // dials are refused
	wrap    func(net.Conn) net.Conn                  // TLS, for one
	ranges  func(key protocol.ApiKey) (lo, hi int16) // versions offered; hi < 0 = not at all
	dials   int
	asked   map[protocol.ApiKey]int
	arrived chan protocol.ApiKey // gets each request's key, if not nil
}

// fakeSession is one connection, on the broker's side.
type fakeSession struct {
	broker  *fakeBroker
	conn    net.Conn
	version int16 // of the request at hand
	id      int32 // its correlation id
	nth     int   // how many of its kind the broker has got, with it
	state   any   // the script's own
}

var errHangUp = errors.New("hang up")

// pass lets virtual time go by.
func pass(d time.Duration) { <-time.After(d) }

func newFakeCluster(t *testing.T, nodes int, s script) *fakeCluster {
	f := &fakeCluster{t: t, brokers: make(map[string]*fakeBroker), leaders: make(map[string][]int32), control: 1, conns: make(map[net.Conn]struct{})}
	for i := range int32(nodes) {
		f.add(i+1, s)
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fakeCluster) add(node int32, s script) *fakeBroker {
	b := &fakeBroker{node: node, addr: fmt.Sprintf("b%d:9092", node), script: s, asked: make(map[protocol.ApiKey]int)}
	f.brokers[b.addr] = b
	return b
}

func (f *fakeCluster) broker(node int32) *fakeBroker { return f.brokers[fmt.Sprintf("b%d:9092", node)] }

// set changes what the brokers do, under the lock.
func (f *fakeCluster) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeCluster) count(node int32, key protocol.ApiKey) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broker(node).asked[key]
}

// dials is how often anybody was connected to.
func (f *fakeCluster) dials() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.brokers {
		n += b.dials
	}
	return n
}

func (f *fakeCluster) stop() {
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.sessions.Wait()
}

// hangUp closes all connections of a broker.
func (f *fakeCluster) hangUp(node int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if c.(*fakeConn).broker.node == node {
			c.Close()
		}
	}
}

type fakeConn struct {
	net.Conn
	broker *fakeBroker
}

func (f *fakeCluster) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.brokers[addr]
	if b != nil {
		b.dials++
	}
	if b == nil || b.down {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	if f.tcp {
		client, server = tcpPair(f.t)
	}
	c := &fakeConn{server, b}
	f.conns[c] = struct{}{}
	f.sessions.Go(func() {
		defer func() {
			c.Close()
			f.mu.Lock()
			delete(f.conns, c)
			f.mu.Unlock()
		}()
		f.serve(b, c)
	})
	return client, nil
}

func tcpPair(t *testing.T) (client, server net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func (f *fakeCluster) serve(b *fakeBroker, c net.Conn) {
	if b.wrap != nil {
		c = b.wrap(c)
	}
	s := &fakeSession{broker: b, conn: c}
	in := bufio.NewReader(c)
	for {
		if size, err := in.Peek(4); err != nil || binary.BigEndian.Uint32(size) > 100<<20 {
			return // socket.request.max.bytes
		}
		version, id, _, req, err := protocol.ReadRequest(in)
		if err != nil {
			return
		}
		s.version, s.id = version, id
		f.mu.Lock()
		b.asked[req.ApiKey()]++
		s.nth = b.asked[req.ApiKey()]
		arrived, play := b.arrived, b.script
		f.mu.Unlock()
		if arrived != nil {
			arrived <- req.ApiKey()
		}
		res, err := f.answer(s, req, play)
		if err != nil {
			return
		}
		if res != nil {
			if err := protocol.WriteResponse(c, version, id, res); err != nil {
				return
			}
		}
	}
}

var errDefault = errors.New("the cluster answers")

// answer asks the script first, if it has a say.
func (f *fakeCluster) answer(s *fakeSession, req protocol.Message, play script) (protocol.Message, error) {
	if play != nil {
		if res, err := play(s, req); !errors.Is(err, errDefault) {
			return res, err
		}
	}
	switch r := req.(type) {
	case *apiversions.Request:
		return f.apiVersions(s.broker), nil
	case *metadata.Request:
		return f.metadata(r), nil
	case *produce.Request:
		return produced(r), nil
	}
	return nil, errHangUp
}

func (f *fakeCluster) apiVersions(b *fakeBroker) *apiversions.Response {
	res := new(apiversions.Response)
	for key := range protocol.ApiKey(52) {
		lo, hi := key.MinVersion(), key.MaxVersion()
		if b.ranges != nil {
			lo, hi = b.ranges(key)
		}
		if hi >= 0 {
			res.ApiKeys = append(res.ApiKeys, apiversions.ApiKeyResponse{ApiKey: int16(key), MinVersion: lo, MaxVersion: hi})
		}
	}
	return res
}

func (f *fakeCluster) metadata(r *metadata.Request) *metadata.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &metadata.Response{ControllerID: f.control}
	for _, b := range f.brokers {
		listed := f.listed == nil
		for _, n := range f.listed {
			listed = listed || n == b.node
		}
		if listed {
			host, _, _ := net.SplitHostPort(b.addr)
			res.Brokers = append(res.Brokers, metadata.ResponseBroker{NodeID: b.node, Host: host, Port: 9092})
		}
	}
	for _, name := range r.TopicNames {
		t := metadata.ResponseTopic{Name: name}
		leaders, ok := f.leaders[name]
		if !ok {
			t.ErrorCode = 3
		}
		for i, l := range leaders {
			p := metadata.ResponsePartition{PartitionIndex: int32(i), LeaderID: l, ReplicaNodes: []int32{1}, IsrNodes: []int32{1}}
			if l < 0 {
				p.ErrorCode = 5
			}
			t.Partitions = append(t.Partitions, p)
		}
		res.Topics = append(res.Topics, t)
	}
	return res
}

func produced(r *produce.Request) *produce.Response {
	res := new(produce.Response)
	for _, t := range r.Topics {
		out := produce.ResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, produce.ResponsePartition{Partition: p.Partition, BaseOffset: 7})
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// client makes a client of the cluster; seeds default to all brokers.
func (f *fakeCluster) client(change func(*ClientConfig)) *Client {
	f.t.Helper()
	cfg := ClientConfig{Dial: f.dial}
	for addr := range f.brokers {
		cfg.Brokers = append(cfg.Brokers, addr)
	}
	if change != nil {
		change(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close) // before the cluster's own: clients hang up first
	return c
}

// recordSet is a record set of one record, with its size in front.
func recordSet(t testing.TB, value string) []byte {
	var b bytes.Buffer
	set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{Time: time.UnixMilli(1), Value: protocol.NewBytes([]byte(value))})}
	if _, err := set.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func produceTo(topic string, partition int32, records []byte) *rawproduce.Request {
	return &rawproduce.Request{Acks: -1, Timeout: 1000, Topics: []rawproduce.RequestTopic{{
		Topic: topic,
		Partitions: []rawproduce.RequestPartition{{
			Partition: partition, RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(records)},
		}},
	}}}
}

var _ io.Closer = (*fakeConn)(nil)
