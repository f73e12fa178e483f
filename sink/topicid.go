package sink

import (
	"encoding/binary"
	"fmt"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// kafka-go's metadata messages end with version 8; topic ids, by which a topic that was deleted and created
// again is told from the old one (KIP-516), come with version 10. So this one request is laid out
// here, in version 12 (Kafka 3.1), the first that is whole; older brokers are asked through kafka-go.
const topicsVersion = 12

// topicsRequest asks for topics by name. Its answer is a *topicsAnswer.
type topicsRequest struct{ names []string }

//lint:ignore ST1003 the name is protocol.Message's
func (*topicsRequest) ApiKey() protocol.ApiKey { return protocol.Metadata }

// topicsAnswer is the cluster and the topics, with their ids where the broker knows ids.
type topicsAnswer struct {
	metadata.Response
	ids map[string][16]byte
}

// older is the request for brokers that do not know version 12. Topics are created by us or by nobody.
func (r *topicsRequest) older() *metadata.Request {
	return &metadata.Request{TopicNames: append([]string{}, r.names...)} // not nil, which asks for all
}

// append lays the request out, with its header (v2).
func (r *topicsRequest) append(b []byte, id int32, clientID string) []byte {
	b = append(b, 0, 0, 0, 0) // size
	b = binary.BigEndian.AppendUint16(b, uint16(protocol.Metadata))
	b = binary.BigEndian.AppendUint16(b, topicsVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(id))
	b = appendString(b, clientID)
	b = append(b, 0) // tags
	b = binary.AppendUvarint(b, uint64(len(r.names)+1))
	for _, name := range r.names {
		b = append(b, make([]byte, 16)...) // by name, not by id
		b = binary.AppendUvarint(b, uint64(len(name)+1))
		b = append(b, name...)
		b = append(b, 0)
	}
	b = append(b, 0, 0, 0) // create none, no authorized operations, tags
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// decodeTopics reads a version 12 answer behind its correlation id.
func decodeTopics(frame []byte) (*topicsAnswer, error) {
	r := &wireReader{b: frame[4:]}
	res := &topicsAnswer{ids: make(map[string][16]byte)}
	r.tags()
	res.ThrottleTimeMs = r.int32()
	for n := r.count(); n > 0 && !r.bad; n-- {
		res.Brokers = append(res.Brokers, metadata.ResponseBroker{NodeID: r.int32(), Host: r.string(), Port: r.int32(), Rack: r.string()})
		r.tags()
	}
	res.ClusterID = r.string()
	res.ControllerID = r.int32()
	for n := r.count(); n > 0 && !r.bad; n-- {
		t := metadata.ResponseTopic{ErrorCode: r.int16(), Name: r.string()}
		id := [16]byte(r.take(16))
		r.take(1) // internal
		for n := r.count(); n > 0 && !r.bad; n-- {
			t.Partitions = append(t.Partitions, metadata.ResponsePartition{
				ErrorCode: r.int16(), PartitionIndex: r.int32(), LeaderID: r.int32(), LeaderEpoch: r.int32(),
				ReplicaNodes: r.int32s(), IsrNodes: r.int32s(), OfflineReplicas: r.int32s(),
			})
			r.tags()
		}
		r.int32() // authorized operations
		r.tags()
		res.Topics = append(res.Topics, t)
		res.ids[t.Name] = id
	}
	r.tags()
	if r.bad {
		return nil, fmt.Errorf("%w: malformed Metadata answer", errProtocol)
	}
	return res, nil
}

// wireReader reads flexible messages. Behind the end all values are zero, all arrays
// empty, and bad is set.
type wireReader struct {
	b   []byte
	bad bool
}

func (r *wireReader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return make([]byte, min(n, 16))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *wireReader) int16() int16 { return int16(binary.BigEndian.Uint16(r.take(2))) }
func (r *wireReader) int32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }

// count is a compact length; null is 0. No element is smaller than a byte.
func (r *wireReader) count() int {
	n, rest, ok := compactLength(r.b)
	if r.bad || !ok || n > len(rest) {
		r.bad = true
		return 0
	}
	r.b = rest
	return n
}

func (r *wireReader) string() string { return string(r.take(r.count())) }

func (r *wireReader) int32s() []int32 {
	n := r.count()
	if 4*n > len(r.b) {
		r.bad = true
		return nil
	}
	v := make([]int32, n)
	for i := range v {
		v[i] = r.int32()
	}
	return v
}

func (r *wireReader) tags() {
	rest, ok := tagsLayout(r.b)
	r.b, r.bad = rest, r.bad || !ok
}
