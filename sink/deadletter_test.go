package sink

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/decode"
)

// G2: dead letters keep the order of their events, whoever found out and when: the decoder, what is known of the
// topic, or the broker in several steps, under faults, with topics that come late.
func TestG2DeadLettersKeepTheirOrder(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			f := newModelCluster(t)
			for _, topic := range []string{"a", "b"} { // we may not read their limits
				f.create(topic, 1+rng.IntN(4), "max.message.bytes", "3000").denied = true
			}
			f.create("dead", 1+rng.IntN(2))
			f.create("c", 1, "max.message.bytes", "3000")
			if rng.IntN(2) == 0 { // c is not there yet, or the dead-letter topic
				late := []string{"c", "dead"}[rng.IntN(2)]
				topic := f.topics[late]
				delete(f.topics, late)
				f.after(5*time.Second, func() { f.topics[late] = topic })
			}
			rate := rng.Float64() * .5
			f.fault = func(arrival) fault {
				switch {
				case rng.Float64() >= rate:
					return fault{}
				case rng.IntN(3) == 0:
					return fault{link: errLink, appended: rng.IntN(2) == 0}
				}
				return fault{code: kafka.NotEnoughReplicas}
			}
			p, log := newTestProducer(t, f, Config{Poison: PoisonDeadLetter, DeadLetterTopic: "dead", BatchBytes: 4 << 10})
			var all, dead []decode.Event
			for range 3 {
				events := numbered("a", 150, 9)
				for i := range events {
					ev := &events[i]
					ev.Seq = uint64(len(all) + i)
					ev.ID = fmt.Append(nil, ev.Seq)
					ev.Topic = []string{"a", "b", "c"}[rng.IntN(3)]
					switch rng.IntN(12) {
					case 0:
						ev.Poison = &decode.PoisonError{EventID: string(ev.ID), Commit: ev.Commit, Seq: ev.Seq, Reason: "broken headers"}
					case 1:
						large(ev, 4000)
					case 2:
						ev.Partition = 7
					default:
						continue
					}
					dead = append(dead, *ev)
				}
				if n, err := p.Write(t.Context(), events); n != len(events) || err != nil {
					t.Fatal(n, err)
				}
				all = append(all, events...)
			}
			got := f.contents()
			want := f.expect(slices.DeleteFunc(all, func(ev decode.Event) bool { return ev.Poison != nil || len(ev.Value) == 4000 || ev.Partition == 7 }))
			found := 0
			for at, records := range got {
				if !strings.HasPrefix(at, "dead-") {
					continue
				}
				delete(got, at)
				found += len(records)
				last := -1
				for _, r := range records {
					_, rest, _ := strings.Cut(r.headers, `"walrelay-seq"="`)
					var seq int
					fmt.Sscan(strings.TrimRight(rest[:strings.IndexByte(rest, '"')], `"`), &seq)
					if seq <= last {
						t.Errorf("%s: the dead letter of event %d comes behind that of event %d", at, seq, last)
					}
					last = seq
				}
			}
			if found != len(dead) {
				t.Errorf("%d dead letters, want %d", found, len(dead))
			}
			same(t, got, want)
			if t.Failed() {
				t.Fatalf("seed %d\n%s", seed, log)
			}
		})
	}
}

// G7: a dead letter that is too large for its own topic loses its value, then its headers, then
// its key, and says so; it is never lost.
func TestG1DeadLetterIsMadeToFit(t *testing.T) {
	for _, known := range []bool{true, false} {
		for _, c := range []struct {
			limit string
			want  []string
			not   []string
		}{
			{"100000", []string{`"walrelay-error"`}, []string{"omitted"}},
			{"20000", []string{`"walrelay-value-omitted"="60000"`, `"note"=`}, []string{"key-omitted"}},
			{"5000", []string{`"walrelay-value-omitted"="60000"`, `"event-id"="event-3"`}, []string{`"note"=`, "key-omitted"}},
			{"700", []string{`"walrelay-value-omitted"="60000"`, `"walrelay-key-omitted"="1000"`, `"event-id"="event-3"`}, []string{`"note"=`}},
		} {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				f.create("a", 1, "max.message.bytes", "50000")
				f.create("a.DLT", 1, "max.message.bytes", c.limit).denied = !known
				events := numbered("a", 6, 2)
				large(&events[3], 60000)
				events[3].Key = bytes.Repeat([]byte("k"), 1000)
				events[3].Headers = decode.NewHeaders(decode.Header{Key: "event-id", Value: []byte("event-3")}, decode.Header{Key: "note", Value: bytes.Repeat([]byte("n"), 8000)})
				p, _ := newTestProducer(t, f, Config{Poison: PoisonDeadLetter})
				if n, err := p.Write(t.Context(), events); n != 6 || err != nil {
					t.Fatal(n, err)
				}
				dead := f.contents()["a.DLT-0"]
				if len(dead) != 1 {
					t.Fatalf("limit %s: %d dead letters", c.limit, len(dead))
				}
				for _, h := range c.want {
					if !strings.Contains(dead[0].headers, h) {
						t.Errorf("limit %s: no %s in %.300s", c.limit, h, dead[0].headers)
					}
				}
				for _, h := range c.not {
					if strings.Contains(dead[0].headers, h) {
						t.Errorf("limit %s: %s in %.300s", c.limit, h, dead[0].headers)
					}
				}
			})
		}
	}
}

// G1: a dead-letter topic is named after an event's topic only where that is legal and allowed.
func TestG1DeadLetterTopicNames(t *testing.T) {
	for _, c := range []struct{ template, topic, want string }{
		{"", "orders", "orders.DLT"},
		{"dead-{topic}", "orders", "dead-orders"},
		{"graveyard", "orders", "graveyard"},
		{"graveyard", "", "graveyard"},
		{"", "", "walrelay.DLT"},
		{"", "a b", "walrelay.DLT"},
		{"", "_schemas", "walrelay.DLT"},
		{"", strings.Repeat("x", 247), "walrelay.DLT"},
		{"", strings.Repeat("x", 245), strings.Repeat("x", 245) + ".DLT"},
	} {
		p, _ := newTestProducer(t, newModelCluster(t), Config{DeadLetterTopic: c.template})
		if got := p.deadLetterTopic(c.topic); got != c.want {
			t.Errorf("%q of %q: %q, want %q", c.template, c.topic, got, c.want)
		}
	}
}
