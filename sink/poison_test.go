package sink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/walrelay/walrelay/decode"
)

// large makes the value of an event n bytes long. It does not compress.
func large(ev *decode.Event, n int) {
	ev.Value = make([]byte, n)
	x := uint32(1)
	for i := range ev.Value {
		x = x*1664525 + 1013904223
		ev.Value[i] = byte(x >> 24)
	}
}

// without leaves some events out.
func without(events []decode.Event, drop ...int) []decode.Event {
	var out []decode.Event
	for i := range events {
		if !slices.Contains(drop, i) {
			out = append(out, events[i])
		}
	}
	return out
}

// poisons are the ways in which event 70 of 200 can turn out to be unpublishable.
var poisons = map[string]struct {
	cfg   Config
	setup func(f *modelCluster, events []decode.Event)
	// exact: it is known before anything behind it is sent.
	exact bool
}{
	"said by the decoder": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		events[70].Poison = &decode.PoisonError{EventID: "event-70", Commit: 0x1000, Seq: 70, Reason: "broken headers"}
	}},
	"above the configured limit": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["max.message.bytes"] = "20000"
		large(&events[70], 30000)
	}},
	"above the limit, which we may not read": {setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["max.message.bytes"] = "20000"
		f.topics["a"].denied = true
		large(&events[70], 30000)
	}},
	"above the limit, also compressed": {cfg: Config{Compression: "gzip"}, setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["max.message.bytes"] = "20000"
		large(&events[70], 30000)
	}},
	"larger than any request": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["max.message.bytes"] = "2000000000"
		events[70].Value = make([]byte, frameLimit)
	}},
	"a partition that does not exist": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		events[70].Partition = 3
	}},
	"no key on a compacted topic": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["cleanup.policy"] = "compact,delete"
		events[70].Key = nil
	}},
	"no key on a compacted topic, which we may not read": {setup: func(f *modelCluster, events []decode.Event) {
		f.topics["a"].config["cleanup.policy"] = "compact"
		f.topics["a"].denied = true
		events[70].Key = nil
	}},
	"a name that Kafka refuses": {exact: true, setup: func(f *modelCluster, events []decode.Event) {
		events[70].Topic = "a/b"
	}},
	"a name that only the broker refuses": {exact: false, setup: func(f *modelCluster, events []decode.Event) {
		events[70].Topic = "odd"
		f.topics["odd"] = &modelTopic{err: kafka.InvalidTopic}
	}},
	"a timestamp that the topic refuses": {setup: func(f *modelCluster, events []decode.Event) {
		events[70].Timestamp = 9
		f.fault = func(at arrival) fault {
			for i, r := range at.records {
				if r.time == 9 { // also the dead-letter topic
					return fault{code: kafka.InvalidTimestamp, errors: []produce.ResponseError{{BatchIndex: int32(i)}}}
				}
			}
			return fault{}
		}
	}},
	"a record that the broker refuses without saying which": {setup: func(f *modelCluster, events []decode.Event) {
		events[70].Timestamp = 9
		f.fault = func(at arrival) fault {
			for _, r := range at.records {
				if r.time == 9 && at.topic == "a" {
					return fault{code: kafka.InvalidRecord}
				}
			}
			return fault{}
		}
	}},
}

// G1, G2: under stop, Write ends at the first event that can never be published: n is its index, all before it is
// acknowledged, on all partitions, and it and its neighbours come to no harm.
func TestG1PoisonStops(t *testing.T) {
	run := func(name string, warm bool) {
		c := poisons[name]
		t.Run(fmt.Sprintf("%s/warm=%v", name, warm), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				f.create("a", 3)
				f.create("b", 2)
				events := numbered("a", 200, 20)
				for i := range events {
					if i%3 == 0 {
						events[i].Topic = "b"
					}
				}
				c.setup(f, events)
				p, _ := newTestProducer(t, f, c.cfg)
				if warm { // then what is known of the topics is from before
					for _, topic := range []string{"a", "b"} {
						if _, err := p.Write(t.Context(), numbered(topic, 1, 1)); err != nil {
							t.Fatal(err)
						}
					}
					f.empty()
				}
				n, err := p.Write(t.Context(), events)
				var bad *decode.PoisonError
				if n != 70 || !errors.As(err, &bad) {
					t.Fatalf("n = %d, %v", n, err)
				}
				if bad.EventID != "event-70" || bad.Seq != 70 || bad.Commit != 0x1000 || bad.Reason == "" {
					t.Errorf("%+v", bad)
				}
				if c.exact {
					same(t, f.contents(), f.expect(events[:70]))
					return
				}
				// The broker found out: what was in flight beside it may be there, in order.
				got, want, all := f.contents(), f.expect(events[:70]), f.expect(without(events, 70))
				for at := range got {
					if len(got[at]) < len(want[at]) || !slices.Equal(got[at], all[at][:len(got[at])]) {
						t.Errorf("%s: %d records, %d of them before the poison event", at, len(got[at]), len(want[at]))
					}
				}
			})
		})
	}
	for name := range poisons {
		run(name, false)
		run(name, true)
	}
}

// G1, G2: under dead-letter the event goes to the dead-letter topic, and all others to their own.
func TestG1PoisonIsParked(t *testing.T) {
	for name, c := range poisons {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				f.create("a", 3)
				f.create("a.DLT", 2)
				f.create("walrelay.DLT", 1)
				f.create("odd.DLT", 1)
				events := numbered("a", 200, 20)
				c.setup(f, events)
				cfg := c.cfg
				cfg.Poison = PoisonDeadLetter
				p, log := newTestProducer(t, f, cfg)
				n, err := p.Write(t.Context(), events)
				if n != 200 || err != nil {
					t.Fatalf("n = %d, %v", n, err)
				}
				got, want := f.contents(), f.expect(without(events, 70))
				dead := 0
				for at, records := range got {
					if !strings.Contains(at, ".DLT-") {
						continue
					}
					delete(got, at)
					dead += len(records)
					r := records[0]
					if r.key != quote(events[70].Key) {
						t.Errorf("key %s", r.key)
					}
					if len(events[70].Value) < 1<<20 && r.value != quote(events[70].Value) {
						t.Errorf("value of %d bytes", len(r.value))
					}
					for _, h := range []string{`"event-id"="event-70"`, `"walrelay-lsn"="0/1000"`, `"walrelay-seq"="70"`, `"walrelay-error"="`,
						fmt.Sprintf(`"walrelay-original-topic"=%q`, events[70].Topic)} {
						if !strings.Contains(r.headers, h) {
							t.Errorf("no header %s in %s", h, r.headers)
						}
					}
				}
				if dead != 1 {
					t.Errorf("%d dead letters", dead)
				}
				same(t, got, want)
				if log.count("goes to the dead-letter topic") != 1 {
					t.Error(log)
				}
			})
		})
	}
}

// G2: a limit that was raised since we read it is noticed before an event is condemned,
// and so is a partition that was added.
func TestG2DoubtIsLookedInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 2, "max.message.bytes", "5000")
		p, _ := newTestProducer(t, f, Config{})
		events := numbered("a", 10, 10)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		ft.config["max.message.bytes"] = "50000"
		f.mu.Lock()
		f.grow(ft, 3)
		f.mu.Unlock()
		f.empty()
		more := numbered("a", 30, 10)
		for i := range more {
			more[i].Partition = int32(i % 2)
		}
		more[15].Partition = 2
		large(&more[6], 20000)
		large(&more[9], 30000)
		if n, err := p.Write(t.Context(), more); n != 30 || err != nil {
			t.Fatal(n, err)
		}
		same(t, f.contents(), f.expect(more))
	})
}

// G2: many oversize events, known only by the broker's answers, leave all others in order.
func TestG2ManyOversizeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2, "max.message.bytes", "3000").denied = true
		f.create("a.DLT", 3)
		events := numbered("a", 300, 9)
		var bad []int
		for i := 7; i < 300; i += 41 {
			large(&events[i], 4000)
			bad = append(bad, i)
		}
		p, _ := newTestProducer(t, f, Config{Poison: PoisonDeadLetter, BatchBytes: 8 << 10})
		if n, err := p.Write(t.Context(), events); n != 300 || err != nil {
			t.Fatal(n, err)
		}
		got, dead := f.contents(), 0
		for at, r := range got {
			if strings.HasPrefix(at, "a.DLT") {
				dead += len(r)
				delete(got, at)
			}
		}
		if dead != len(bad) {
			t.Errorf("%d dead letters, want %d", dead, len(bad))
		}
		same(t, got, f.expect(without(events, bad...)))
	})
}
