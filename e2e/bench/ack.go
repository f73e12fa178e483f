package bench

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ServeAcks is a broker that acknowledges every record batch at once and keeps none, to
// tell the relay's cost from Kafka's. It leads all partitions of every topic that it
// is asked for. It prints its address and serves until its standard input ends.
func ServeAcks(addr string, partitions int) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b := &acker{conn: conn, in: bufio.NewReaderSize(conn, 256<<10), addr: listener.Addr().(*net.TCPAddr), partitions: partitions}
			go b.serve()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	return nil
}

type acker struct {
	conn       net.Conn
	in         *bufio.Reader
	addr       *net.TCPAddr
	partitions int
	offset     int64
}

// What it speaks, highest versions. None of them is flexible, except ApiVersions'.
var ackerVersions = map[int16]int16{
	int16(kmsg.Produce): 8, int16(kmsg.Metadata): 8, int16(kmsg.ApiVersions): 2, int16(kmsg.InitProducerID): 1, int16(kmsg.DescribeConfigs): 3,
}

func (b *acker) serve() {
	defer b.conn.Close()
	var frame, out []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(b.in, head[:]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(head[:]))
		if cap(frame) < size {
			frame = make([]byte, size)
		}
		frame = frame[:size]
		if _, err := io.ReadFull(b.in, frame); err != nil || size < 10 {
			return
		}
		resp := b.answer(frame)
		if resp == nil {
			return
		}
		out = append(out[:0], 0, 0, 0, 0)
		out = append(out, frame[4:8]...) // correlation id
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := b.conn.Write(out); err != nil {
			return
		}
	}
}

func (b *acker) answer(frame []byte) kmsg.Response {
	key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
	client := max(int(int16(binary.BigEndian.Uint16(frame[8:]))), 0)
	if highest, ok := ackerVersions[key]; !ok || len(frame) < 10+client {
		return nil
	} else if version > highest { // only ApiVersions may be asked for blindly
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = 35
		return resp
	}
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	if err := req.ReadFrom(frame[10+client:]); err != nil {
		return nil
	}
	resp := req.ResponseKind()
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		b.produce(req, resp.(*kmsg.ProduceResponse))
	case *kmsg.MetadataRequest:
		b.metadata(req, resp.(*kmsg.MetadataResponse))
	case *kmsg.ApiVersionsRequest:
		for key, highest := range ackerVersions {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MaxVersion = key, highest
			resp.(*kmsg.ApiVersionsResponse).ApiKeys = append(resp.(*kmsg.ApiVersionsResponse).ApiKeys, k)
		}
	case *kmsg.InitProducerIDRequest:
		resp.(*kmsg.InitProducerIDResponse).ProducerID = 1
	case *kmsg.DescribeConfigsRequest:
		for _, r := range req.Resources {
			answer := kmsg.NewDescribeConfigsResponseResource()
			answer.ResourceType, answer.ResourceName = r.ResourceType, r.ResourceName
			for name, value := range map[string]string{"max.message.bytes": "1048588", "min.insync.replicas": "1", "cleanup.policy": "delete"} {
				c := kmsg.NewDescribeConfigsResponseResourceConfig()
				c.Name, c.Value = name, kmsg.StringPtr(value)
				answer.Configs = append(answer.Configs, c)
			}
			resp.(*kmsg.DescribeConfigsResponse).Resources = append(resp.(*kmsg.DescribeConfigsResponse).Resources, answer)
		}
	}
	return resp
}

func (b *acker) produce(req *kmsg.ProduceRequest, resp *kmsg.ProduceResponse) {
	for _, t := range req.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.Partition, partition.BaseOffset = p.Partition, b.offset
			if len(p.Records) >= 61 {
				b.offset += int64(binary.BigEndian.Uint32(p.Records[57:]))
			}
			topic.Partitions = append(topic.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

func (b *acker) metadata(req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
	broker := kmsg.NewMetadataResponseBroker()
	broker.NodeID, broker.Host, broker.Port = 1, b.addr.IP.String(), int32(b.addr.Port)
	resp.Brokers = append(resp.Brokers, broker)
	resp.ControllerID = 1
	for _, t := range req.Topics {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = t.Topic
		for i := range b.partitions {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.Replicas, p.ISR = int32(i), 1, []int32{1}, []int32{1}
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

// startAcks starts ServeAcks as a process of its own.
func startAcks(addr string, partitions int) (*child, string, error) {
	c, err := startSelf(nil, "acks", addr, strconv.Itoa(partitions))
	if err != nil {
		return nil, "", err
	}
	select {
	case addr, ok := <-c.lines:
		if ok {
			return c, addr, nil
		}
	case <-timeout(5):
	}
	c.kill()
	return nil, "", fmt.Errorf("bench: the broker that only acknowledges did not start: %s", c.tail())
}
