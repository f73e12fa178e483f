package sink

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/walrelay/walrelay/decode"
)

// knows makes a producer without a cluster that knows one topic.
func knows(t testing.TB, cfg Config, topic string, partitions int) *Producer {
	t.Helper()
	p, err := newProducer(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learn(Topic{Name: topic, Partitions: make([]Partition, partitions)})
	return p
}

// sealed returns the record batches of a Prepared as they would be sent.
func sealed(pr *Prepared, id identity, sequence int32) [][]byte {
	var out [][]byte
	for _, b := range pr.batches {
		seal(b.buf, id, sequence)
		sequence = nextSequence(sequence, b.count)
		out = append(out, b.buf[sizePrefix:])
	}
	return out
}

// vectors are the events whose record batches testdata/recordbatch.tsv has.
func vectors() map[string][]decode.Event {
	const at = 1700000000000
	ev := func(time int64, key, value []byte, headers ...decode.Header) decode.Event {
		return decode.Event{Topic: "t", Key: key, Value: value, Timestamp: time, Headers: decode.NewHeaders(headers...), Partition: -1}
	}
	many := make([]decode.Event, 200)
	for i := range many {
		time := int64(at + i)
		if i%2 == 1 {
			time = int64(at - 1000*i)
		}
		many[i] = ev(time, fmt.Append(nil, "key-", i), []byte(strings.Repeat("v", i)), decode.Header{Key: "event-id", Value: fmt.Append(nil, i)})
	}
	return map[string][]decode.Event{
		"one":                    {ev(at, []byte("k"), []byte("v"))},
		"no key":                 {ev(at, nil, []byte("v"))},
		"empty key, empty value": {ev(at, []byte{}, []byte{})},
		"tombstone":              {ev(at, []byte("k"), nil)},
		"headers": {ev(at, []byte("order-1"), []byte(`{"a":1}`),
			decode.Header{Key: "event-id", Value: []byte("e1")}, decode.Header{Key: "null"},
			decode.Header{Key: "empty", Value: []byte{}}, decode.Header{Key: "zürich", Value: []byte("東京")})},
		"many": many,
	}
}

// G6: a record batch is byte for byte that of the Java client (made by kafka-clients 4.3.1).
func TestG6RecordBatchIsThatOfTheJavaClient(t *testing.T) {
	_, rows := table(t, "recordbatch.tsv")
	events := vectors()
	for _, row := range rows {
		want, err := hex.DecodeString(row[1])
		if err != nil {
			t.Fatal(err)
		}
		var b protocol.RecordSet
		if _, err := b.ReadFrom(bytes.NewReader(prefixed(want))); err != nil {
			t.Fatal(err)
		}
		head := b.Records.(*protocol.RecordStream).Records[0].(*protocol.RecordBatch)
		p := knows(t, Config{}, "t", 1)
		got := sealed(p.Prepare(events[row[0]]), identity{head.ProducerID, head.ProducerEpoch}, head.BaseSequence)
		if len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("%s:\n got %x\nwant %x", row[0], got, want)
		}
		delete(events, row[0])
	}
	if len(events) > 0 {
		t.Errorf("no golden bytes for %v", events)
	}
}

func prefixed(batch []byte) []byte {
	n := len(batch)
	return append([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, batch...)
}

// record is a record as a consumer reads it.
type record struct {
	offset  int64
	time    int64
	key     string // "nil" for no key, else quoted
	value   string
	headers string
}

func quote(p []byte) string {
	if p == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", p)
}

func recordOf(ev *decode.Event) record {
	var h strings.Builder
	for _, kv := range ev.Headers.List() {
		fmt.Fprintf(&h, "%q=%s ", kv.Key, quote(kv.Value))
	}
	return record{time: ev.Timestamp, key: quote(ev.Key), value: quote(ev.Value), headers: h.String()}
}

// readBatches decodes a size-prefixed record set with kafka-go's reader.
func readBatches(set []byte) (records []record, heads []*protocol.RecordBatch, err error) {
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(bytes.NewReader(set)); err != nil {
		return nil, nil, err
	}
	for _, b := range rs.Records.(*protocol.RecordStream).Records {
		head := b.(*protocol.RecordBatch)
		heads = append(heads, head)
		for {
			r, err := head.ReadRecord()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, nil, err
			}
			ev := decode.Event{Timestamp: r.Time.UnixMilli()}
			if ev.Key, err = protocol.ReadAll(r.Key); err != nil {
				return nil, nil, err
			}
			if ev.Value, err = protocol.ReadAll(r.Value); err != nil {
				return nil, nil, err
			}
			for _, h := range r.Headers {
				ev.Headers.Add(h.Key, h.Value)
			}
			got := recordOf(&ev)
			got.offset = r.Offset
			records = append(records, got)
		}
	}
	return records, heads, nil
}

// randomEvents makes events with all that a row can have.
func randomEvents(rng *rand.Rand, n int, topics ...string) []decode.Event {
	blob := func(most int) []byte {
		if rng.IntN(10) == 0 {
			return nil
		}
		b := make([]byte, rng.IntN(most+1))
		for i := range b {
			b[i] = byte(rng.IntN(7)) // compressible
		}
		return b
	}
	events := make([]decode.Event, n)
	for i := range events {
		events[i] = decode.Event{
			Topic: topics[rng.IntN(len(topics))], Key: blob(20), Value: blob(400),
			ID: fmt.Append(nil, "event-", i), Timestamp: 1700000000000 + rng.Int64N(1000) - 500, Partition: -1,
			Commit: 0x100, Seq: uint64(i),
		}
		events[i].Headers.Add("event-id", events[i].ID)
		for range rng.IntN(4) {
			events[i].Headers.Add("h"+fmt.Sprint(rng.IntN(99)), blob(30))
		}
	}
	return events
}

// G6: what kafka-go reads from a batch of any codec is what went in, in order, and no
// batch is larger than allowed.
func TestG6EveryCodecIsReadBack(t *testing.T) {
	for codec := range codecs {
		t.Run(codec, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			events := randomEvents(rng, 500, "t")
			p := knows(t, Config{Compression: codec, BatchBytes: 8 << 10}, "t", 1)
			for range 3 { // also over memory that has been used
				pr := p.Prepare(events)
				var got []record
				raw := 0
				for _, b := range sealed(pr, identity{5, 1}, 10) {
					records, heads, err := readBatches(prefixed(b))
					if err != nil {
						t.Fatal(err)
					}
					if heads[0].ProducerID != 5 || heads[0].ProducerEpoch != 1 || int(heads[0].BaseSequence) != 10+len(got) {
						t.Errorf("identity %d/%d/%d behind %d records", heads[0].ProducerID, heads[0].ProducerEpoch, heads[0].BaseSequence, len(got))
					}
					if len(b) > 8<<10 {
						t.Errorf("batch of %d bytes", len(b))
					}
					got = append(got, records...)
					raw += len(b)
				}
				for i := range events {
					want := recordOf(&events[i])
					got[i].offset = 0
					if got[i] != want {
						t.Fatalf("record %d:\n got %+v\nwant %+v", i, got[i], want)
					}
				}
				if len(got) != len(events) {
					t.Fatalf("%d records of %d", len(got), len(events))
				}
				p.recycle(pr)
			}
		})
	}
}

// G2: sequences wrap at 2^31 as the brokers' do (DefaultRecordBatch.incrementSequence).
func TestG2SequenceWraps(t *testing.T) {
	for _, c := range [][3]int32{{0, 1, 1}, {1<<31 - 1, 1, 0}, {1<<31 - 3, 5, 2}, {1<<31 - 1, 1<<31 - 1, 1<<31 - 2}} {
		if got := nextSequence(c[0], c[1]); got != c[2] {
			t.Errorf("%d + %d = %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

// G6: every 64-bit number is as long as varintSize says.
func TestG6Varints(t *testing.T) {
	for shift := range 64 {
		for _, v := range []int64{1 << shift, -1 << shift, 1<<shift - 1, -(1 << shift) - 1} {
			if got := len(appendVarint(nil, v)); got != varintSize(v) {
				t.Errorf("%d takes %d bytes, expected %d", v, got, varintSize(v))
			}
		}
	}
}

// BenchmarkEncode is one record of 500 bytes, routed, encoded, sealed with its checksum.
func BenchmarkEncodeRecordBatch(b *testing.B) {
	for _, partitions := range []int{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const n = 10000
			events := make([]decode.Event, n)
			for i := range events {
				id := fmt.Appendf(nil, "4f2c1b1e-7d1b-4a52-9a55-%012d", i)
				events[i] = decode.Event{
					Topic: "outbox.event.order", Key: fmt.Append(nil, "order-", i%977), Value: bytes.Repeat([]byte("x"), 330),
					ID: id, Timestamp: 1700000000000 + int64(i/10), Partition: -1, Commit: 1, Seq: uint64(i),
					Headers: decode.NewHeaders(
						decode.Header{Key: "event-id", Value: id}, decode.Header{Key: "event-type", Value: []byte("OrderPlaced")},
						decode.Header{Key: "walrelay-lsn", Value: []byte("16/B374D848")}, decode.Header{Key: "walrelay-seq", Value: []byte("12")},
						decode.Header{Key: "walrelay-source", Value: []byte("0a1b2c3d")},
					),
				}
			}
			p := knows(b, Config{}, "outbox.event.order", partitions)
			var size int
			b.ReportAllocs()
			for b.Loop() {
				pr := p.Prepare(events)
				size = 0
				for _, x := range pr.batches {
					seal(x.buf, identity{1, 0}, 0)
					size += len(x.buf)
				}
				p.recycle(pr)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/record")
			b.ReportMetric(float64(size)/n, "B/record")
		})
	}
}
