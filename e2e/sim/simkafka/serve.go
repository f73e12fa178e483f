package simkafka

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// offered are the APIs and their newest versions, as ApiVersions tells them.
var offered = map[int16]int16{
	int16(kmsg.Produce):         9,
	int16(kmsg.Metadata):        12,
	int16(kmsg.ApiVersions):     3,
	int16(kmsg.CreateTopics):    7,
	int16(kmsg.InitProducerID):  4,
	int16(kmsg.DescribeConfigs): 4,
}

// serve answers the requests of one connection, strictly in their order.
func (c *Cluster) serve(b *broker, conn *simnet.Conn) {
	conn.Link().SetLabel("kafka")
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, frame); err != nil {
			return
		}
		answer := c.request(b, conn, frame)
		if answer == nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// request returns the bytes of the answer; nil: the connection is cut.
func (c *Cluster) request(b *broker, conn *simnet.Conn, frame []byte) []byte {
	be := binary.BigEndian
	if len(frame) < 10 {
		c.hooks.Fault("kafka: a request of %d bytes", len(frame))
		return nil
	}
	key, version, id := int16(be.Uint16(frame)), int16(be.Uint16(frame[2:])), be.Uint32(frame[4:])
	rest := frame[10:]
	if n := int16(be.Uint16(frame[8:])); n > 0 {
		rest = rest[min(int(n), len(rest)):]
	}
	req := kmsg.RequestForKey(key)
	newest, ok := offered[key]
	if req == nil || !ok || version > newest {
		c.hooks.Fault("kafka: request %d version %d is not offered", key, version)
		return nil
	}
	req.SetVersion(version)
	if req.IsFlexible() && len(rest) > 0 {
		rest = rest[1:] // no tags
	}
	if err := req.ReadFrom(rest); err != nil {
		c.hooks.Fault("kafka: %s version %d: %v", kmsg.NameForKey(key), version, err)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.awake(b) {
		return nil
	}
	res := c.answer(b, conn.Link().From, req)
	if res == nil || !b.up || c.closed {
		return nil
	}
	out := be.AppendUint32(make([]byte, 4, 256), id)
	if res.IsFlexible() && key != int16(kmsg.ApiVersions) {
		out = append(out, 0)
	}
	out = res.AppendTo(out)
	be.PutUint32(out, uint32(len(out)-4))
	return out
}

// awake waits until a mute broker speaks again. It reports whether it is still there.
func (c *Cluster) awake(b *broker) bool {
	for b.up && !c.closed && time.Now().Before(b.mute) {
		c.wait(b.mute)
	}
	return b.up && !c.closed
}

// wait blocks until something changes, or until a moment.
func (c *Cluster) wait(until time.Time) {
	t := time.AfterFunc(time.Until(until), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cond.Broadcast()
	})
	c.cond.Wait()
	t.Stop()
}

func (c *Cluster) answer(b *broker, client string, req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		res := req.ResponseKind().(*kmsg.ApiVersionsResponse)
		for key, newest := range offered {
			res.ApiKeys = append(res.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: newest})
		}
		return res
	case *kmsg.MetadataRequest:
		return c.metadata(b, req)
	case *kmsg.InitProducerIDRequest:
		res := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		if req.TransactionalID != nil {
			c.hooks.Fault("kafka: a transactional producer")
			return nil
		}
		if c.rng.IntN(12) == 0 {
			res.ErrorCode = kerr.CoordinatorLoadInProgress.Code
			return res
		}
		c.nextID++
		res.ProducerID, res.ProducerEpoch = c.nextID, 0
		return res
	case *kmsg.DescribeConfigsRequest:
		return c.describe(req)
	case *kmsg.CreateTopicsRequest:
		return c.createTopics(req)
	case *kmsg.ProduceRequest:
		return c.produce(b, client, req)
	}
	c.hooks.Fault("kafka: unexpected request %T", req)
	return nil
}
