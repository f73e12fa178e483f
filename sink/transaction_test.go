package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/addpartitionstotxn"
	"github.com/segmentio/kafka-go/protocol/endtxn"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/walrelay/walrelay/decode"
)

// txnCluster is a modelCluster with a transaction coordinator. It fails the test where a
// transactional request comes that a coordinator would not expect of a correct producer.
type txnCluster struct {
	*modelCluster
	epoch   int16
	joined  map[place]int      // partition → length of its log when it joined
	visible map[place][]record // what a read_committed consumer sees
	asked   []string           // the coordinator's requests, in order

	codes []kafka.Error // answers to the coordinator's next requests; 0 = as it should be
	lose  protocol.ApiKey
	mute  protocol.ApiKey // requests of this kind are done, and not answered
}

func newTxnCluster(t *testing.T) *txnCluster {
	return &txnCluster{modelCluster: newModelCluster(t), joined: map[place]int{}, visible: map[place][]record{}, lose: -1, mute: -1}
}

func (f *txnCluster) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	key := req.ApiKey()
	switch r := req.(type) {
	case *initproducerid.Request:
		if r.TransactionalID == "" {
			f.t.Error("a producer id without a transactional id")
		}
	case *addpartitionstotxn.Request, *endtxn.Request:
	default:
		return f.modelCluster.RoundTrip(ctx, addr, req)
	}
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, key.String())
	if f.lose == key {
		f.lose = -1
		return nil, &BrokerError{Op: "connect", Err: errLink}
	}
	res := f.coordinate(req)
	if f.mute == key {
		f.mute = -1
		return nil, &BrokerError{Op: key.String(), Err: io.ErrUnexpectedEOF}
	}
	return res, nil
}

func (f *txnCluster) coordinate(req kafka.Request) kafka.Response {
	var code kafka.Error
	if len(f.codes) > 0 {
		code, f.codes = f.codes[0], f.codes[1:]
	}
	switch r := req.(type) {
	case *initproducerid.Request:
		if code == 0 {
			f.epoch++
			clear(f.joined)
		}
		return &initproducerid.Response{ErrorCode: int16(code), ProducerID: 7, ProducerEpoch: f.epoch}
	case *addpartitionstotxn.Request:
		if code == 0 && r.ProducerEpoch != f.epoch {
			code = kafka.InvalidProducerEpoch
		}
		res := &addpartitionstotxn.Response{}
		for _, t := range r.Topics {
			out := addpartitionstotxn.ResponseResult{Name: t.Name}
			for _, p := range t.Partitions {
				at := place{t.Name, p}
				if _, again := f.joined[at]; code == 0 && !again {
					f.joined[at] = len(f.part(t.Name, p).records)
				}
				out.Results = append(out.Results, addpartitionstotxn.ResponsePartition{PartitionIndex: p, ErrorCode: int16(code)})
			}
			res.Results = append(res.Results, out)
		}
		return res
	case *endtxn.Request:
		if code == 0 && r.ProducerEpoch != f.epoch {
			code = kafka.InvalidProducerEpoch
		}
		if code == 0 {
			for at, from := range f.joined {
				if r.Committed {
					f.visible[at] = append(f.visible[at], f.part(at.topic, at.partition).records[from:]...)
				}
			}
			clear(f.joined)
		}
		return &endtxn.Response{ErrorCode: int16(code)}
	}
	return nil
}

func (f *txnCluster) Send(ctx context.Context, broker int32, msg protocol.Message) (protocol.Message, error) {
	req := msg.(*rawproduce.Request)
	f.mu.Lock()
	if req.TransactionalID == "" {
		f.t.Error("a produce request without a transactional id")
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if _, ok := f.joined[place{t.Topic, p.Partition}]; !ok {
				f.t.Errorf("%s-%d is written to and in no transaction", t.Topic, p.Partition)
			}
		}
	}
	f.mu.Unlock()
	return f.modelCluster.Send(ctx, broker, msg)
}

// sees compares what a read_committed consumer sees with events, in their order.
func (f *txnCluster) sees(events ...decode.Event) {
	f.t.Helper()
	want := map[string][]record{}
	if len(events) > 0 {
		want = f.expect(events)
	}
	got := map[string][]record{}
	for at, list := range f.visible {
		for i, r := range list {
			r.offset = want0(want[fmt.Sprintf("%s-%d", at.topic, at.partition)], i)
			got[fmt.Sprintf("%s-%d", at.topic, at.partition)] = append(got[fmt.Sprintf("%s-%d", at.topic, at.partition)], r)
		}
	}
	if !reflect.DeepEqual(got, want) {
		f.t.Errorf("visible: %v\nwant: %v", got, want)
	}
}

// want0 is the offset that is expected; aborted records have taken others.
func want0(want []record, i int) int64 {
	if i < len(want) {
		return want[i].offset
	}
	return -1
}

func (f *txnCluster) requests(key protocol.ApiKey) (n int) {
	for _, k := range f.asked {
		if k == key.String() {
			n++
		}
	}
	return n
}

func fenced(t *testing.T, f *txnCluster, cfg Config) *Producer {
	t.Helper()
	cfg.Transactional = true
	p, _ := newTestProducer(t, f.modelCluster, cfg)
	p.cluster = f
	f.create("a", 4)
	if err := p.Fence(t.Context(), "id"); err != nil {
		t.Fatal(err)
	}
	return p
}

// G5: a transaction's partitions join it once, before they are written to, and it ends once.
func TestTransactionsJoinWriteAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		all := numbered("a", 90, 40)
		for i := range 3 {
			if n, err := p.Transact(t.Context(), all[i*30:i*30+30]); n != 30 || err != nil {
				t.Fatal(n, err)
			}
		}
		f.sees(all...)
		want := []string{"InitProducerId"}
		for range 3 {
			want = append(want, "AddPartitionsToTxn", "EndTxn")
		}
		if !slices.Equal(f.asked, want) {
			t.Errorf("asked %v", f.asked)
		}
	})
}

// G5: an EndTxn without an answer is not sent again, and nothing else is, until the
// epoch is another one: a late one would end the next transaction.
func TestAnUnansweredEndSpendsTheProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		all := numbered("a", 20, 9)
		f.mute = protocol.EndTxn
		if _, err := p.Transact(t.Context(), all[:10]); err == nil {
			t.Fatal("the outcome is unknown")
		}
		asked := len(f.asked)
		if _, err := p.Transact(t.Context(), all[10:]); !errors.Is(err, errSpent) {
			t.Errorf("%v", err)
		}
		if len(f.asked) != asked || f.requests(protocol.EndTxn) != 1 {
			t.Errorf("asked %v", f.asked)
		}
		if err := p.Fence(t.Context(), "id"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Transact(t.Context(), all[10:]); err != nil {
			t.Fatal(err)
		}
		f.sees(all...) // the first was committed after all
	})
}

// G8: an EndTxn that never left, or that the coordinator did not act on, is sent again.
func TestAnEndThatWasNotReceivedIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		all := numbered("a", 20, 9)
		f.lose = protocol.EndTxn
		if _, err := p.Transact(t.Context(), all[:10]); err != nil {
			t.Fatal(err)
		}
		f.codes = []kafka.Error{0, kafka.NotCoordinatorForGroup, kafka.GroupLoadInProgress, codeConcurrent}
		if _, err := p.Transact(t.Context(), all[10:]); err != nil {
			t.Fatal(err)
		}
		f.sees(all...)
	})
}

// G5: who is fenced is told so by any of its requests, and is spent.
func TestAFencedProducerIsSpent(t *testing.T) {
	for _, code := range []kafka.Error{47, 90, 48, 49} {
		for at := range 2 { // AddPartitionsToTxn, EndTxn
			synctest.Test(t, func(t *testing.T) {
				f := newTxnCluster(t)
				p := fenced(t, f, Config{})
				f.codes = append(make([]kafka.Error, at), code)
				var refused *CodeError
				if _, err := p.Transact(t.Context(), numbered("a", 10, 9)); !errors.As(err, &refused) || refused.Code != int16(code) || refused.Fatal() {
					t.Errorf("%v", err)
				}
				if _, err := p.Transact(t.Context(), numbered("a", 10, 9)); !errors.Is(err, errSpent) {
					t.Errorf("%v", err)
				}
				f.sees()
			})
		}
	}
	for _, code := range []kafka.Error{45, 47, 59, 90} { // Produce
		synctest.Test(t, func(t *testing.T) {
			f := newTxnCluster(t)
			p := fenced(t, f, Config{})
			f.fault = func(arrival) fault { return fault{code: code} }
			if _, err := p.Transact(t.Context(), numbered("a", 10, 9)); !errors.As(err, new(*CodeError)) {
				t.Errorf("%v", err)
			}
			if _, err := p.Transact(t.Context(), numbered("a", 10, 9)); !errors.Is(err, errSpent) {
				t.Errorf("%v", err)
			}
			f.sees()
		})
	}
}

// G5: answers to Produce and AddPartitionsToTxn that are lost are asked for again, and nothing lands twice.
func TestLostAnswersWithinATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		lost := map[string]bool{}
		f.fault = func(at arrival) fault {
			if key := fmt.Sprint(at.partition); !lost[key] {
				lost[key] = true
				return fault{link: errLink, appended: true}
			}
			return fault{}
		}
		f.mute = protocol.AddPartitionsToTxn
		all := numbered("a", 40, 20)
		if _, err := p.Transact(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		f.sees(all...)
	})
}

// The transaction before is often still being completed: milliseconds, not a back-off, are waited for it.
func TestConcurrentTransactionsAreRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		p.Check(t.Context(), "a")
		f.codes = []kafka.Error{codeConcurrent, codeConcurrent, codeConcurrent}
		begun := time.Now()
		if _, err := p.Transact(t.Context(), numbered("a", 10, 9)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < 6*time.Millisecond || took > 10*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// G2 G5: what can never be published aborts its transaction; what comes before it is published by the next.
func TestPoisonAbortsTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		all := numbered("a", 20, 9)
		all[12].Value = make([]byte, 3<<20)
		n, err := p.Transact(t.Context(), all)
		if n != 12 || !errors.As(err, new(*decode.PoisonError)) {
			t.Fatal(n, err)
		}
		f.sees()
		if n, err := p.Transact(t.Context(), all[:12]); n != 12 || err != nil {
			t.Fatal(n, err)
		}
		f.sees(all[:12]...)
	})
}

// A dead letter is in the transaction of the events around it.
func TestDeadLettersAreInTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{Poison: PoisonDeadLetter})
		f.create("a.DLT", 1)
		all := numbered("a", 20, 9)
		all[12].Value = make([]byte, 3<<20)
		f.mute = protocol.EndTxn
		p.Transact(t.Context(), all)
		if f.requests(protocol.EndTxn) != 1 || len(f.visible[place{"a.DLT", 0}]) != 1 {
			t.Errorf("%v: %v", f.asked, f.visible)
		}
	})
}

// What can't be mended by waiting is said at once, what an operator can, after a minute.
func TestFenceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTxnCluster(t)
		p := fenced(t, f, Config{})
		f.codes = []kafka.Error{50}
		var refused *CodeError
		if err := p.Fence(t.Context(), "id"); !errors.As(err, &refused) || !refused.Fatal() {
			t.Errorf("transaction timeout: %v", err)
		}
		f.codes = slices.Repeat([]kafka.Error{53}, 10_000)
		begun := time.Now()
		if err := p.Fence(t.Context(), "id"); !errors.As(err, new(*AuthError)) {
			t.Errorf("permission: %v", err)
		}
		if took := time.Since(begun); took < refusedPatience || took > 2*refusedPatience {
			t.Errorf("gave up after %s", took)
		}
	})
}

// What a reader of the log must not take for a position: aborted records, those of
// transactions that hang, and what comes behind the end.
func TestReadDropsWhatIsNotCommitted(t *testing.T) {
	var got []string
	s := sorter{open: map[int64][]keyValue{}, each: func(key, value []byte) { got = append(got, string(key)+"="+string(value)) }}
	offset := int64(0)
	batch := func(producer int64, inTxn bool, key, value string) protocol.RecordReader {
		b := &protocol.RecordBatch{ProducerID: producer, Records: protocol.NewRecordReader(protocol.Record{
			Offset: offset, Key: protocol.NewBytes([]byte(key)), Value: protocol.NewBytes([]byte(value))})}
		if inTxn {
			b.Attributes = protocol.Transactional
		}
		offset++
		return b
	}
	end := func(producer int64, kind int16) protocol.RecordReader {
		c := protocol.NewControlBatch(protocol.ControlRecord{Offset: offset, Type: kind})
		c.ProducerID = producer
		offset++
		return c
	}
	set := &protocol.RecordStream{Records: []protocol.RecordReader{
		batch(9, true, "other", "hangs"),
		batch(1, true, "k", "1"), end(1, 1),
		batch(1, true, "k", "aborted"), end(1, 0),
		batch(1, true, "k", "2"), batch(2, true, "other", "3"), end(2, 1), end(1, 1),
		batch(-1, false, "k", "plain"),
		batch(1, true, "k", "behind the end"), end(1, 1),
	}}
	next, err := s.take(set, 0, offset-2)
	if err != nil || next != offset {
		t.Errorf("next %d of %d, %v", next, offset, err)
	}
	if want := []string{"k=1", "other=3", "k=2", "k=plain"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

var _ cluster = (*txnCluster)(nil)
