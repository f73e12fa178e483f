package sink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func frameOf(payload ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// G7: whatever comes back costs memory in proportion to the bytes that came, and ends in an error.
func TestG7GarbageAnswersCostLittle(t *testing.T) {
	huge := []byte{0x7f, 0xff, 0xff, 0xff}
	for name, raw := range map[string][]byte{
		"negative length":            {0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 1},
		"shorter than its id":        {0, 0, 0, 3, 0, 0, 1},
		"oversized":                  append(huge, 0, 0, 0, 1),
		"large and cut":              append(binary.BigEndian.AppendUint32(nil, maxFrame), 0, 0, 0, 1),
		"wrong correlation id":       frameOf(0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0),
		"an array of 2^31 topics":    frameOf(append([]byte{0, 0, 0, 1}, huge...)...),
		"a name longer than the end": frameOf(0, 0, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 'a'),
		"empty":                      frameOf(0, 0, 0, 1),
		"a TLS alert":                {0x15, 3, 3, 0, 2, 2, 80},
		"HTTP":                       []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
	} {
		var err error
		cost := allocated(func() {
			var frame []byte
			if frame, err = readFrame(bytes.NewReader(raw), nil); err == nil {
				_, err = decodeResponse(frame, 1, protocol.Produce, 8)
			}
		})
		if err == nil || cost > 256<<10 {
			t.Errorf("%s: %d bytes, %v", name, cost, err)
		}
		if name == "a TLS alert" && !errors.Is(err, errWantsTLS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A garbage answer ends the request and the connection; the next request gets a new one.
func TestG8GarbageEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Produce && s.nth == 1 {
				s.conn.Write([]byte{0xff, 0xff, 0xff, 0xff})
				return nil, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); !errors.Is(err, errProtocol) {
			t.Errorf("%v", err)
		}
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// An answer in many small pieces is read whole; the buffer is used again.
func TestReadFrameInPieces(t *testing.T) {
	payload := bytes.Repeat([]byte("abcdefgh"), 20_000)
	frame, err := readFrame(iotest.OneByteReader(bytes.NewReader(frameOf(payload...))), make([]byte, 0, 16))
	if err != nil || !bytes.Equal(frame, payload) {
		t.Errorf("%d bytes, %v", len(frame), err)
	}
	again, err := readFrame(bytes.NewReader(frameOf(1, 2, 3, 4)), frame)
	if err != nil || &again[0] != &frame[0] || len(again) != 4 {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := readFrame(bytes.NewReader(nil), nil); err != io.EOF {
		t.Errorf("a clean end: %v", err)
	}
}

// The produce request is laid out as protocol.WriteRequest does, and its records are not copied.
func TestEncodeProduceIsTheProtocolsLayout(t *testing.T) {
	records := [][]byte{recordSet(t, "one"), recordSet(t, "two"), recordSet(t, "three")}
	request := func(txn string) *rawproduce.Request {
		r := func(i int) protocol.RawRecordSet {
			return protocol.RawRecordSet{Reader: bytes.NewReader(records[i])}
		}
		return &rawproduce.Request{TransactionalID: txn, Acks: -1, Timeout: 1234, Topics: []rawproduce.RequestTopic{
			{Topic: "orders", Partitions: []rawproduce.RequestPartition{{Partition: 3, RecordSet: r(0)}, {Partition: 4, RecordSet: r(1)}}},
			{Topic: "billing", Partitions: []rawproduce.RequestPartition{{Partition: 0, RecordSet: r(2)}}},
		}}
	}
	for _, txn := range []string{"", "relay-1"} {
		for version := int16(3); version <= 8; version++ {
			var want bytes.Buffer
			if err := protocol.WriteRequest(&want, version, 7, "id", request(txn)); err != nil {
				t.Fatal(err)
			}
			c := &conn{peer: &peer{client: &Client{cfg: ClientConfig{ClientID: "id"}}}}
			if err := c.encode(&call{id: 7, version: version}, request(txn)); err != nil {
				t.Fatal(err)
			}
			if got := bytes.Join(c.pieces, nil); !bytes.Equal(got, want.Bytes()) {
				t.Errorf("v%d:\n%x\n%x", version, got, want.Bytes())
			}
			if &c.pieces[1][0] != &records[0][0] {
				t.Error("the records were copied")
			}
		}
	}
	c := &conn{peer: &peer{client: &Client{}}}
	for _, reader := range []io.Reader{nil, bytes.NewReader(nil), io.LimitReader(bytes.NewReader(records[0]), 0)} {
		r := request("")
		r.Topics[1].Partitions[0].RecordSet.Reader = reader
		if err := c.encode(&call{}, r); !errors.Is(err, protocol.ErrNoRecord) {
			t.Errorf("%v: %v", reader, err)
		}
	}
	r := request("")
	r.Acks = 0
	if err := c.encode(&call{}, r); !errors.Is(err, errAcksNone) {
		t.Errorf("%v", err)
	}
}

// A reader that lends nothing is copied.
func TestEncodeProduceFromAnyReader(t *testing.T) {
	records := recordSet(t, "x")
	got, err := recordBytes(io.LimitReader(bytes.NewReader(records), 1<<20))
	if err != nil || !bytes.Equal(got, records) {
		t.Errorf("%x, %v", got, err)
	}
	buffers := net.Buffers{records[:5], records[5:]}
	if got, err = recordBytes(&buffers); err != nil || !bytes.Equal(got, records) {
		t.Errorf("%x, %v", got, err)
	}
}

// The layouts follow kafka-go's codec in every answer and version: what it encodes, they
// accept, and not a byte less.
func TestLayoutsOfEveryAnswer(t *testing.T) {
	n := 0
	for key := range protocol.ApiKey(52) {
		for version := key.MinVersion(); version <= key.MaxVersion(); version++ {
			msg := emptyAnswer(key, version)
			if msg == nil {
				continue
			}
			fill(reflect.ValueOf(msg).Elem(), 3)
			if f, ok := msg.(*fetch.Response); ok {
				for i := range f.Topics {
					for j := range f.Topics[i].Partitions {
						f.Topics[i].Partitions[j].RecordSet = protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{})}
					}
				}
			}
			var b bytes.Buffer
			if err := protocol.WriteResponse(&b, version, 1, msg); err != nil {
				t.Errorf("%s v%d: %v", key, version, err)
				continue
			}
			frame := b.Bytes()[4:]
			if err := checkLayout(frame, key, version); err != nil {
				t.Errorf("%s v%d: %v", key, version, err)
			}
			l, _ := responseLayout(key, version)
			if rest, ok := l(frame[4:]); !ok || len(rest) != 0 {
				t.Errorf("%s v%d: %d bytes left", key, version, len(rest))
			}
			if _, ok := l(frame[4 : len(frame)-1]); ok && len(frame) > 4 {
				t.Errorf("%s v%d: a cut answer passes", key, version)
			}
			n++
		}
	}
	if n < 60 {
		t.Errorf("only %d layouts", n)
	}
}

// emptyAnswer is nil for what is not imported here.
func emptyAnswer(key protocol.ApiKey, version int16) (msg protocol.Message) {
	defer func() { recover() }()
	_, msg, _ = protocol.ReadResponse(bytes.NewReader([]byte{0, 0, 0, 4, 0, 0, 0, 0}), key, version)
	return msg
}

// fill puts something into every field, arrays get n elements.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("kafka") != "-" && !reflect.PointerTo(f.Type).Implements(readerFrom) {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("bytes"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), n-1)
		}
	case reflect.String:
		v.SetString("string")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// No message has a field in the tag buffer, which is why layouts skip it.
func TestNoTaggedFields(t *testing.T) {
	for key := range protocol.ApiKey(52) {
		msg := emptyAnswer(key, key.MaxVersion())
		if msg == nil {
			continue
		}
		var walk func(reflect.Type)
		walk = func(typ reflect.Type) {
			for i := range typ.NumField() {
				f := typ.Field(i)
				if strings.Contains(f.Tag.Get("kafka"), "tag=") || f.Name != "_" && strings.Contains(f.Tag.Get("kafka"), ",tag") {
					t.Errorf("%s: %s.%s", key, typ, f.Name)
				}
				e := f.Type
				for e.Kind() == reflect.Slice {
					e = e.Elem()
				}
				if e.Kind() == reflect.Struct && !reflect.PointerTo(e).Implements(readerFrom) {
					walk(e)
				}
			}
		}
		walk(reflect.TypeOf(msg).Elem())
	}
}

// FuzzResponse: no answer panics, hangs, or costs more than a multiple of its size.
func FuzzResponse(f *testing.F) {
	for _, seed := range []struct {
		key     protocol.ApiKey
		version int16
		msg     protocol.Message
	}{
		{protocol.Metadata, 8, &metadata.Response{Brokers: []metadata.ResponseBroker{{Host: "h"}}, Topics: []metadata.ResponseTopic{{Name: "t", Partitions: []metadata.ResponsePartition{{IsrNodes: []int32{1}}}}}}},
		{protocol.Produce, 8, &produce.Response{Topics: []produce.ResponseTopic{{Topic: "t", Partitions: []produce.ResponsePartition{{ErrorCode: 3}}}}}},
		{protocol.Fetch, 11, &fetch.Response{Topics: []fetch.ResponseTopic{{Topic: "t", Partitions: []fetch.ResponsePartition{{RecordSet: protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{})}}}}}}},
	} {
		var b bytes.Buffer
		if err := protocol.WriteResponse(&b, seed.version, 1, seed.msg); err != nil {
			f.Fatal(err)
		}
		f.Add(int16(seed.key), seed.version, b.Bytes())
	}
	f.Add(int16(protocol.Metadata), int16(topicsVersion), frameOf(topicsFrame...))
	f.Fuzz(func(t *testing.T, key, version int16, raw []byte) {
		cost := allocated(func() {
			frame, err := readFrame(bytes.NewReader(raw), nil)
			if err == nil {
				decodeResponse(frame, 1, protocol.ApiKey(key), version)
			}
		})
		if limit := uint64(1<<20 + 200*len(raw)); cost > limit {
			t.Errorf("%d bytes of answer cost %d", len(raw), cost)
		}
	})
}

// topicsFrame is a Metadata answer of version 12, of a broker and a topic with one partition.
var topicsFrame = []byte("\x00\x00\x00\x01" + "\x00" + "\x00\x00\x00\x05" + // id, tags, throttled for 5 ms
	"\x02" + "\x00\x00\x00\x07" + "\x02h" + "\x00\x00\x23\x84" + "\x00" + "\x00" + // broker 7 at h:9092, no rack
	"\x03id" + "\x00\x00\x00\x07" + // cluster id, controller
	"\x02" + "\x00\x00" + "\x02t" + "0123456789abcdef" + "\x00" + // topic t
	"\x02" + "\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x07" + "\x00\x00\x00\x02" + // partition 0, leader 7, epoch 2
	"\x03\x00\x00\x00\x07\x00\x00\x00\x08" + "\x02\x00\x00\x00\x07" + "\x01" + "\x00" + // replicas 7 8, ISR 7
	"\x80\x00\x00\x00" + "\x00" + "\x00")

// The one answer that is not read by kafka-go: whole, and cut at every byte.
func TestTopicsAnswer(t *testing.T) {
	res, err := decodeTopics(topicsFrame)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%+v", res.Response); got != "{ThrottleTimeMs:5 Brokers:[{NodeID:7 Host:h Port:9092 Rack:}] ClusterID:id ControllerID:7 "+
		"Topics:[{ErrorCode:0 Name:t IsInternal:false Partitions:[{ErrorCode:0 PartitionIndex:0 LeaderID:7 LeaderEpoch:2 ReplicaNodes:[7 8] IsrNodes:[7] OfflineReplicas:[]}] "+
		"TopicAuthorizedOperations:0}] ClusterAuthorizedOperations:0}" {
		t.Error(got)
	}
	if id := res.ids["t"]; string(id[:]) != "0123456789abcdef" {
		t.Errorf("%q", id)
	}
	if throttleTime(res).Milliseconds() != 5 {
		t.Error(throttleTime(res))
	}
	for n := 4; n < len(topicsFrame); n++ {
		if _, err := decodeTopics(topicsFrame[:n]); !errors.Is(err, errProtocol) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

// BenchmarkEncode: 1 MiB of record batches for eight partitions, by our own gather list and by protocol.WriteRequest.
func BenchmarkEncode(b *testing.B) {
	value := recordSet(b, strings.Repeat("x", 128<<10))
	request := new(rawproduce.Request)
	readers := make([]*bytes.Reader, 8)
	reset := func() {
		request.Acks, request.Topics = -1, []rawproduce.RequestTopic{{Topic: "topic", Partitions: make([]rawproduce.RequestPartition, len(readers))}}
		for i := range readers {
			readers[i] = bytes.NewReader(value)
			request.Topics[0].Partitions[i] = rawproduce.RequestPartition{Partition: int32(i), RecordSet: protocol.RawRecordSet{Reader: readers[i]}}
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}); c.Close() }()
		}
	}()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	for _, way := range []string{"gather", "WriteRequest"} {
		b.Run(fmt.Sprintf("way=%s", way), func(b *testing.B) {
			c := &conn{peer: &peer{client: &Client{cfg: ClientConfig{ClientID: "id"}}}, net: nc}
			b.SetBytes(int64(8 * len(value)))
			b.ReportAllocs()
			for b.Loop() {
				reset()
				var err error
				if way == "gather" {
					if err = c.encode(&call{version: 8}, request); err == nil {
						err = c.writeOut()
					}
				} else {
					err = protocol.WriteRequest(nc, 8, 1, "id", request)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
