package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/decode"
)

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newTestProducer(t *testing.T, f *modelCluster, cfg Config) (*Producer, *logBuffer) {
	t.Helper()
	log := new(logBuffer)
	cfg.Log = zerolog.New(log)
	if cfg.Allowed == nil {
		cfg.Allowed = func(topic string) bool { return !strings.HasPrefix(topic, "_") }
	}
	p, err := newProducer(cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	p.checkErr = nil // as after the first Check
	return p, log
}

// numbered makes n events of one topic with the keys k0 … and distinct values.
func numbered(topic string, n, keys int) []decode.Event {
	events := make([]decode.Event, n)
	for i := range events {
		events[i] = decode.Event{
			Topic: topic, Key: fmt.Append(nil, "k", i%keys), Value: fmt.Append(nil, "value ", i),
			ID: fmt.Append(nil, "event-", i), Timestamp: 1700000000000, Partition: -1, Commit: 0x1000, Seq: uint64(i),
		}
	}
	return events
}

// expect is what the cluster has to hold after the events: each once, in order, on its partition.
func (f *modelCluster) expect(events []decode.Event) map[string][]record {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string][]record)
	for i := range events {
		ev := &events[i]
		part, _ := partitionOf(ev, int32(len(f.topics[ev.Topic].parts)))
		at := fmt.Sprintf("%s-%d", ev.Topic, part)
		r := recordOf(ev)
		r.offset = int64(len(out[at]))
		out[at] = append(out[at], r)
	}
	return out
}

// same compares what is in the cluster with what should be.
func same(t *testing.T, got, want map[string][]record) {
	t.Helper()
	for at, records := range want {
		for i, r := range records {
			if i >= len(got[at]) {
				t.Errorf("%s: %d records, want %d", at, len(got[at]), len(records))
				break
			}
			if got[at][i] != r {
				t.Errorf("%s: record %d:\n got %+v\nwant %+v", at, i, got[at][i], r)
				break
			}
		}
		if len(got[at]) > len(records) {
			t.Errorf("%s: %d records, want %d", at, len(got[at]), len(records))
		}
	}
	for at := range got {
		if want[at] == nil {
			t.Errorf("%s: nothing should be here", at)
		}
	}
}

// G1, G2, G5: under random faults of both kinds, those before and those after an append, with
// leaders that move and brokers that stay silent, every event is there once and in order.
func TestG2RandomFaultsLoseRepeatAndReorderNothing(t *testing.T) {
	var codesToRetry []kafka.Error
	for _, c := range codes {
		if c.action == retry || c.action == refresh || c.action == operator {
			codesToRetry = append(codesToRetry, kafka.Error(c.number))
		}
	}
	for seed := range uint64(25) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			f := newModelCluster(t)
			f.create("a", 4)
			f.create("b", 1)
			f.create("c", 7)
			rate := rng.Float64() * .6
			f.fault = func(at arrival) fault {
				part := f.topics[at.topic].parts[at.partition]
				if rng.Float64() >= rate {
					return fault{}
				}
				if rng.IntN(3) == 0 {
					part.leader = rng.Int32N(4) - 1 // also none
				}
				if rng.IntN(4) == 0 { // a moment later there is one again
					part.leader = rng.Int32N(3)
				}
				switch rng.IntN(4) {
				case 0:
					return fault{link: errLink, appended: rng.IntN(2) == 0}
				case 1:
					return fault{silent: true, appended: rng.IntN(2) == 0}
				default:
					return fault{code: codesToRetry[rng.IntN(len(codesToRetry))], appended: rng.IntN(2) == 0}
				}
			}
			f.delay = func() time.Duration {
				f.mu.Lock()
				defer f.mu.Unlock()
				for _, ft := range f.topics { // elections end
					for _, p := range ft.parts {
						if p.leader < 0 && rng.IntN(3) == 0 {
							p.leader = rng.Int32N(3)
						}
					}
				}
				return time.Duration(rng.IntN(20)) * time.Millisecond
			}
			p, log := newTestProducer(t, f, Config{BatchBytes: 2 << 10})
			var all []decode.Event
			for range 6 {
				events := randomEvents(rng, 1+rng.IntN(200), "a", "b", "c")
				for i := range events {
					events[i].Seq = uint64(len(all) + i)
				}
				n, err := p.Write(t.Context(), events)
				if n != len(events) || err != nil {
					t.Fatalf("seed %d: %d of %d events, %v", seed, n, len(events), err)
				}
				all = append(all, events...)
			}
			same(t, f.contents(), f.expect(all))
			if t.Failed() {
				t.Fatalf("seed %d\n%s", seed, log)
			}
		})
	}
}

// G2, G5: a retry sends the same bytes.
func TestG2RetryIsByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 1)
		f.fault = func(at arrival) fault {
			switch at.attempt {
			case 1:
				return fault{link: errLink, appended: true}
			case 2:
				return fault{code: kafka.NotEnoughReplicasAfterAppend, appended: true}
			case 3:
				return fault{code: kafka.NotLeaderForPartition}
			}
			return fault{}
		}
		p, _ := newTestProducer(t, f, Config{})
		events := numbered("a", 50, 5)
		if n, err := p.Write(t.Context(), events); n != 50 || err != nil {
			t.Fatal(n, err)
		}
		if got := ft.parts[0].sent; len(got) != 4 || !bytes.Equal(got[0], got[1]) || !bytes.Equal(got[0], got[2]) || !bytes.Equal(got[0], got[3]) {
			t.Errorf("%d attempts, not all with the same bytes", len(got))
		}
		same(t, f.contents(), f.expect(events))
	})
}

// G8: for each row of the table: what the code does, once answered before an append
// and once after it, and that the events are there exactly as often as they should be.
func TestG8EachCodeDoesWhatItsRowSays(t *testing.T) {
	for _, c := range codes[:] {
		for _, appended := range []bool{false, true} {
			if c.number == 0 || c.action == done && !appended {
				continue // a broker that says so has appended
			}
			t.Run(fmt.Sprintf("%s/appended=%v", c.name, appended), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newModelCluster(t)
					f.create("a", 2)
					f.create("walrelay.DLT", 1)
					f.fault = func(at arrival) fault {
						if at.topic == "a" && at.partition == 1 && at.attempt == 2 {
							return fault{code: kafka.Error(c.number), appended: appended}
						}
						return fault{}
					}
					p, _ := newTestProducer(t, f, Config{})
					first, events := numbered("a", 10, 10), numbered("a", 40, 10)
					if _, err := p.Write(t.Context(), first); err != nil {
						t.Fatal(err)
					}
					ids := f.ids
					n, err := p.Write(t.Context(), events)
					switch c.action {
					case done, retry, refresh, operator:
						if n != 40 || err != nil || f.ids != ids {
							t.Fatalf("%d events, %v, %d new ids", n, err, f.ids-ids)
						}
						same(t, f.contents(), f.expect(append(first, events...)))
					case newID:
						if n != 40 || err != nil || f.ids != ids+1 {
							t.Fatalf("%d events, %v, %d new ids", n, err, f.ids-ids)
						}
						if !appended {
							same(t, f.contents(), f.expect(append(first, events...)))
						}
					case fatal, endSession:
						var code *CodeError
						if !errors.As(err, &code) || code.Code != c.number || code.Fatal() != (c.action == fatal) || n == 40 {
							t.Fatalf("%d events, %v", n, err)
						}
					case tooLarge:
						if n != 40 || err != nil {
							t.Fatalf("%d events, %v", n, err)
						}
						if !appended { // else an impossible answer
							same(t, f.contents(), f.expect(append(first, events...)))
						}
					case poison:
						// Without a word which record it is, the batch is halved, and the halves pass.
						var bad *decode.PoisonError
						if c.number == int16(kafka.InvalidTopic) {
							if !errors.As(err, &bad) || n != int(bad.Seq) {
								t.Fatalf("%d events, %v", n, err)
							}
							return
						}
						if n != 40 || err != nil {
							t.Fatalf("%d events, %v", n, err)
						}
					}
				})
			})
		}
	}
}

// G8: a partition that waits holds up no other, and Write says what is acknowledged from the front.
func TestG8PartitionsWaitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2)
		blocked := true
		f.fault = func(at arrival) fault {
			if at.topic == "a" && at.partition == 1 && blocked {
				return fault{code: kafka.NotEnoughReplicas}
			}
			return fault{}
		}
		p, log := newTestProducer(t, f, Config{BatchBytes: 1 << 10})
		events := numbered("a", 400, 10)
		first := -1 // the first event of partition 1
		for i := range events {
			if part, _ := partitionOf(&events[i], 2); part == 1 {
				first = i
				break
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n, err := p.Write(ctx, events)
		if n != first || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("n = %d, want %d; %v", n, first, err)
		}
		want := f.expect(events)
		delete(want, "a-1")
		same(t, f.contents(), want)
		if ok, reason := p.Healthy(); ok || !strings.Contains(reason, "NOT_ENOUGH_REPLICAS") {
			t.Errorf("healthy %v: %s", ok, reason)
		}
		blocked = false
		if _, err := p.Write(t.Context(), events[n:]); err != nil {
			t.Fatal(err)
		}
		if ok, reason := p.Healthy(); !ok {
			t.Error(reason)
		}
		for line, want := range map[string]int{"can't be delivered": 1, "delivered again": 1} {
			if got := log.count(line); got != want {
				t.Errorf("%d lines %q, want %d:\n%s", got, line, want, log)
			}
		}
		if got := f.contents()["a-1"]; len(got) != len(f.expect(events)["a-1"]) {
			t.Errorf("partition 1 has %d records", len(got))
		}
	})
}

// G8: events of a topic that is not there are not counted as acknowledged when Write is interrupted.
func TestG1InterruptedWhileATopicIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2)
		p, _ := newTestProducer(t, f, Config{})
		events := append(numbered("a", 7, 3), append(numbered("missing", 2, 1), numbered("a", 7, 3)...)...)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n, err := p.Write(ctx, events); n != 7 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("n = %d, %v", n, err)
		}
	})
}

// G8: a broker that takes long for a request is given the time in the end, and what
// was idle before does not count as stuck.
func TestG8SlowBrokerIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2)
		p, _ := newTestProducer(t, f, Config{})
		events := numbered("a", 10, 5)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		f.fault = func(arrival) fault { return fault{slow: 2 * time.Second, appended: true} }
		ready := healthyIn(time.Second, p)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if reason := <-ready; reason != "healthy" {
			t.Error(reason)
		}
		f.fault = func(arrival) fault { return fault{slow: 20 * time.Second, appended: true} }
		begin := time.Now()
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("took %v", took)
		}
		if len(p.patience) != 0 {
			t.Errorf("still %v after an answer in time", p.patience)
		}
		same(t, f.contents(), f.expect(append(append(events, events...), events...)))
	})
}

// G1: a number that an abandoned batch may have used is never used for other events:
// the broker would take them for the batch it has and throw them away.
func TestG1AbandonedBatchSpendsItsIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 1)
		p, _ := newTestProducer(t, f, Config{})
		f.fault = func(at arrival) fault { return fault{silent: true, appended: true} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		old := numbered("a", 3, 1)
		if n, err := p.Write(ctx, old); n != 0 || err == nil {
			t.Fatal(n, err)
		}
		f.fault = nil
		other := numbered("a", 3, 1)
		other[0].Value = []byte("another event")
		if n, err := p.Write(t.Context(), other); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		same(t, f.contents(), f.expect(append(old, other...)))
	})
}

// G1: nor is one that a batch may have used which was cut up afterwards.
func TestG1CutBatchSpendsItsIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 1)
		p, _ := newTestProducer(t, f, Config{})
		f.fault = func(at arrival) fault {
			switch at.attempt {
			case 1:
				return fault{link: errLink, appended: true}
			case 2: // the limit was lowered just now
				return fault{code: kafka.MessageSizeTooLarge}
			}
			return fault{code: kafka.NotEnoughReplicas}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		old := numbered("a", 4, 1)
		if n, err := p.Write(ctx, old); n != 0 || err == nil {
			t.Fatal(n, err)
		}
		f.fault = nil
		other := numbered("a", 4, 1)
		other[0].Value = []byte("another event")
		if n, err := p.Write(t.Context(), other); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		same(t, f.contents(), f.expect(append(old, other...)))
	})
}

// G8: a client that has been closed ends a Write; nothing would ever come of it.
func TestG8ClosedClientEndsWrite(t *testing.T) {
	client, err := NewClient(ClientConfig{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProducer(Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	if n, err := p.Write(t.Context(), numbered("a", 4, 1)); n != 0 || !errors.Is(err, errClientClosed) {
		t.Error(n, err)
	}
}

// G2: sequences go on over 2^31.
func TestG2WriteOverTheSequenceWrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 1)
		p, _ := newTestProducer(t, f, Config{BatchBytes: 1 << 10})
		if err := p.Check(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.id = identity{77, 0}
		*p.targets["a"].ledgers[0] = ledger{id: p.id, spent: noIdentity, next: 1<<31 - 25, offset: -1}
		events := numbered("a", 100, 3)
		if n, err := p.Write(t.Context(), events); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		same(t, f.contents(), f.expect(events))
		if got := p.targets["a"].ledgers[0].next; got != 75 {
			t.Errorf("next sequence %d, want 75", got)
		}
	})
}

// G2: the next events may be prepared while the ones before are delivered.
func TestG2PrepareBesideDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 3)
		f.delay = func() time.Duration { return 5 * time.Millisecond }
		p, _ := newTestProducer(t, f, Config{BatchBytes: 2 << 10})
		rng := rand.New(rand.NewPCG(3, 3))
		var all []decode.Event
		prepared := make(chan *Prepared, 1)
		go func() {
			defer close(prepared)
			for range 20 {
				events := randomEvents(rng, 100, "a")
				for i := range events {
					events[i].Seq = uint64(len(all) + i)
				}
				all = append(all, events...)
				prepared <- p.Prepare(events)
			}
		}()
		for pr := range prepared {
			if n, err := p.Deliver(t.Context(), pr); n != 100 || err != nil {
				t.Fatal(n, err)
			}
		}
		same(t, f.contents(), f.expect(all))
	})
}

// G8: a leader that stays silent while another takes over is left within two seconds.
func TestG8SilentLeaderIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 1)
		p, _ := newTestProducer(t, f, Config{})
		events := numbered("a", 5, 1)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		f.fault = func(at arrival) fault { return fault{silent: at.broker == 0} }
		begin := time.Now()
		var moved time.Time
		time.AfterFunc(9*time.Second, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			ft.parts[0].leader, moved = 1, time.Now()
		})
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(moved); late > 2*time.Second {
			t.Errorf("%v after the leader moved, %v in all", late, time.Since(begin))
		}
		same(t, f.contents(), f.expect(append(events, events...)))
	})
}
