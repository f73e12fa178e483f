package checker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A small world: six transactions of two events each, over two keys, in a topic of two
// partitions, published as they should be.
type world struct {
	truth    []Event
	observed Observed
	samples  []Sample
}

const topic = "outbox.event.order"

func newWorld() *world {
	w := &world{observed: Observed{{topic, 0}: nil, {topic, 1}: nil}}
	for t := range 6 {
		for seq := range 2 {
			w.commit(pglogrepl.LSN(100*t+50), uint64(seq), []string{"k0", "k7"}[seq])
		}
	}
	for i := range w.truth {
		w.publish(i)
		w.sample(w.truth[i].Commit) // its end is higher: not confirmed
	}
	w.sample(w.truth[len(w.truth)-1].End)
	return w
}

func (w *world) commit(lsn pglogrepl.LSN, seq uint64, key string) {
	id := fmt.Sprintf("e%d", len(w.truth))
	w.truth = append(w.truth, Event{Commit: lsn, End: lsn + 20, Seq: seq, Content: Content{
		ID: id, Topic: topic, Partition: -1, Key: key, Value: digest([]byte(id)),
		Headers: []Header{{"event-id", digest([]byte(id))}, {"event-type", digest(nil)}}, Timestamp: int64(lsn),
	}})
}

func (w *world) home(i int) Place {
	e := w.truth[i]
	if e.Partition >= 0 {
		return Place{e.Topic, e.Partition}
	}
	p := kgo.StickyKeyPartitioner(nil).ForTopic(topic).Partition(&kgo.Record{Key: []byte(e.Key)}, 2)
	return Place{topic, int32(p)}
}

func (w *world) publish(i int) { w.publishTo(w.home(i), i) }

func (w *world) publishTo(p Place, i int) {
	e := w.truth[i]
	r := Record{Topic: p.Topic, Partition: p.Partition, Offset: int64(len(w.observed[p])),
		Positioned: true, Commit: e.Commit, Seq: e.Seq, Source: "0123abcd", Content: e.Content}
	r.Headers = slices.Clone(e.Headers)
	w.observed[p] = append(w.observed[p], r)
}

func (w *world) sample(confirmed pglogrepl.LSN) {
	s := Sample{Taken: time.Unix(0, 0), Confirmed: confirmed, Ends: map[Place]int64{}}
	for p, list := range w.observed {
		s.Ends[p] = int64(len(list))
	}
	w.samples = append(w.samples, s)
}

// publishBy publishes events by a relay; what was published before was relay 1's.
func (w *world) publishBy(relay int64, events ...int) {
	for p, list := range w.observed {
		for i := range list {
			if list[i].Producer.ID == 0 {
				w.observed[p][i].Producer.ID = 1
			}
		}
	}
	for _, i := range events {
		w.publish(i)
		list := w.observed[w.home(i)]
		list[len(list)-1].Producer.ID = relay
	}
}

// record is the last record of event i.
func (w *world) record(i int) *Record {
	for _, list := range w.observed {
		for j := len(list) - 1; j >= 0; j-- {
			if list[j].ID == w.truth[i].ID {
				return &list[j]
			}
		}
	}
	return nil
}

func (w *world) remove(i int) {
	p := w.home(i)
	w.observed[p] = slices.DeleteFunc(w.observed[p], func(r Record) bool { return r.ID == w.truth[i].ID })
	for j := range w.observed[p] {
		w.observed[p][j].Offset = int64(j)
	}
}

func (w *world) swap(i, j int) {
	a, b := w.record(i), w.record(j)
	a.Offset, b.Offset = b.Offset, a.Offset
	*a, *b = *b, *a
}

func TestSoundWorldHasNoFinding(t *testing.T) {
	w := newWorld()
	r := Compare(w.truth, w.observed, w.samples)
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Delivered != 12 || r.Records != 12 || r.Repeats != 0 || r.Samples != 13 {
		t.Error(r)
	}
	if w.home(0) == w.home(1) {
		t.Error("the keys share a partition: the tests of order are empty")
	}
}

// Events of one partition have even (or odd) numbers in the tests below.
func TestRulesFindPlantedAnomalies(t *testing.T) {
	for name, test := range map[string]struct {
		plant func(w *world)
		want  map[string]int // rule → count; every other rule finds nothing
	}{
		"G1 a lost event": {func(w *world) { w.remove(4); w.samples = nil }, map[string]int{"lost": 1}},
		"G1 a lost tail":  {func(w *world) { w.remove(11); w.samples = nil }, map[string]int{"lost": 1}},
		"G1 everything lost": {func(w *world) {
			w.observed, w.samples = Observed{}, nil
		}, map[string]int{"lost": 12}},
		"G4 a phantom": {func(w *world) {
			w.truth = slices.Delete(w.truth, 5, 6)
		}, map[string]int{"phantom": 1}},
		"G2 two first publications swapped": {func(w *world) {
			w.swap(4, 6)
			w.samples = nil
		}, map[string]int{"reordered": 1}},
		"G2 an event comes late": {func(w *world) {
			w.remove(2)
			w.publish(2)
			w.samples = nil
		}, map[string]int{"reordered": 1}},
		"G2 a run of repeats skips": {func(w *world) {
			for _, i := range []int{4, 8, 10} {
				w.publish(i)
			}
		}, map[string]int{"broken runs": 1}},
		"G2 a run of repeats stops short": {func(w *world) {
			for _, i := range []int{4, 6} {
				w.publish(i)
			}
		}, map[string]int{"broken runs": 1}},
		"G2 a run of repeats stops short before new events": {func(w *world) {
			w.commit(900, 0, "k0")
			w.publish(8)
			w.publish(12)
		}, map[string]int{"broken runs": 1}},
		"G2 a lone old repeat": {func(w *world) { w.publish(0) }, map[string]int{"broken runs": 1}},
		"G2 a paused relay adds what another has published": {func(w *world) {
			w.publishBy(2, 8, 10)
			w.publishBy(1, 8, 10)
		}, map[string]int{"late": 2}},
		"G2 a paused relay is ahead of its heir": {func(w *world) {
			w.commit(900, 0, "k0")
			w.publishBy(2, 10)
			w.publishBy(1, 10, 12)
			w.publishBy(2, 12)
		}, map[string]int{"late": 2}},
		"G2 a paused relay begins anew": {func(w *world) {
			w.commit(900, 0, "k0")
			w.publishBy(1, 12)
			w.publishBy(2, 6, 8)
			w.publishBy(3, 8, 10)
			w.publishBy(1)
		}, map[string]int{"late": 2}},
		"G2 a paused relay begins anew, and the other goes on": {func(w *world) {
			w.commit(900, 0, "k0")
			w.publishBy(2, 6, 8)
			w.publishBy(1, 12)
		}, map[string]int{"late": 2}},
		"G2 a paused relay leaves a gap": {func(w *world) {
			w.commit(900, 0, "k0")
			w.commit(900, 1, "k0")
			w.publishBy(2, 10)
			w.publishBy(1, 13)
			w.publishBy(2, 12, 13)
		}, map[string]int{"reordered": 1}},
		"G6 another partition": {func(w *world) {
			w.remove(10)
			w.publishTo(w.home(1), 10)
			w.samples = nil
		}, map[string]int{"wrong place": 1}},
		"G6 not the partition that the row chose": {func(w *world) {
			w.truth[10].Partition = 1 - w.home(10).Partition
			w.samples = nil
		}, map[string]int{"wrong place": 1}},
		"G6 another topic": {func(w *world) {
			w.remove(10)
			w.publishTo(Place{"elsewhere", 0}, 10)
			w.samples = nil
		}, map[string]int{"wrong place": 1}},
		"G6 a keyless event moves": {func(w *world) {
			i, other := 10, w.home(11)
			if other.Partition == 0 {
				i, other = 11, w.home(10)
			}
			w.truth[i].NoKey, w.truth[i].Key = true, ""
			w.record(i).NoKey, w.record(i).Key = true, ""
			w.publishTo(other, i)
		}, map[string]int{"wrong place": 1}},
		"G6 key":                {func(w *world) { w.record(3).Key = "k" }, map[string]int{"wrong key": 1}},
		"G6 null for empty key": {func(w *world) { w.truth[3].Key = ""; w.record(3).Key = ""; w.record(3).NoKey = true }, map[string]int{"wrong key": 1, "wrong place": -1}},
		"G6 value":              {func(w *world) { w.record(3).Value[0]++ }, map[string]int{"wrong value": 1}},
		"G6 null for empty":     {func(w *world) { w.truth[3].Value = digest([]byte{}); w.record(3).Value = digest(nil) }, map[string]int{"wrong value": 1}},
		"G6 header value":       {func(w *world) { w.record(3).Headers[0].Value[0]++ }, map[string]int{"wrong headers": 1}},
		"G6 header missing":     {func(w *world) { w.record(3).Headers = w.record(3).Headers[:1] }, map[string]int{"wrong headers": 1}},
		"G6 header too many": {func(w *world) {
			w.record(3).Headers = append(w.record(3).Headers, Header{Name: "x"})
		}, map[string]int{"wrong headers": 1}},
		"G6 timestamp": {func(w *world) { w.record(3).Timestamp++ }, map[string]int{"wrong timestamp": 1}},
		"position: end LSN for commit LSN": {func(w *world) {
			w.record(3).Commit = w.truth[3].End
		}, map[string]int{"wrong position": 1}},
		"position: ordinal":       {func(w *world) { w.record(3).Seq = 7 }, map[string]int{"wrong position": 1}},
		"position: neighbour's":   {func(w *world) { w.record(3).Seq = 0 }, map[string]int{"wrong position": 1}},
		"position: no headers":    {func(w *world) { w.record(3).Positioned = false }, map[string]int{"wrong position": 1}},
		"position: source form":   {func(w *world) { w.record(3).Source = "0123ABCD" }, map[string]int{"wrong position": 1}},
		"position: source change": {func(w *world) { w.observed[w.home(0)][5].Source = "01230000" }, map[string]int{"wrong position": -1}},
		"G3 confirmed before readable": {func(w *world) {
			w.samples[3].Confirmed = w.truth[4].End
		}, map[string]int{"confirmed ahead": 1}},
		"G3 confirmed within an open transaction": {func(w *world) {
			w.samples[2].Confirmed = w.truth[2].End // its second event, 3, is not there yet
		}, map[string]int{"confirmed ahead": 1}},
		"G3 confirmed and lost": {func(w *world) { w.remove(10) }, map[string]int{"lost": 1, "confirmed ahead": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.plant(w)
			r := Compare(w.truth, w.observed, w.samples)
			for _, f := range r.findings() {
				want := test.want[f.name]
				if f.Count != want && (want >= 0 || f.Count == 0 && f.name != "wrong place") {
					t.Errorf("%s: %d, want %d", f.name, f.Count, want)
				}
				if f.Count > 0 && !strings.Contains(r.Err().Error(), f.name) {
					t.Errorf("the error hides %s", f.name)
				}
			}
		})
	}
}

func TestRepeatsThatAreAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		plant            func(w *world)
		repeats, rewinds int
	}{
		"a run to the newest event": {func(w *world) {
			for _, i := range []int{6, 8, 10} {
				w.publish(i)
			}
		}, 3, 1},
		"a run that goes on with new events": {func(w *world) {
			w.commit(900, 0, "k0")
			for _, i := range []int{8, 10, 12} {
				w.publish(i)
			}
		}, 2, 1},
		"a run cut by a second crash": {func(w *world) {
			for _, i := range []int{4, 6, 4, 6, 8, 10} {
				w.publish(i)
			}
		}, 6, 2},
		"the newest event again": {func(w *world) { w.publish(10) }, 1, 1},
		"a relay that takes its place back": {func(w *world) {
			w.commit(900, 0, "k0")
			w.publishBy(2, 10)
			w.publishBy(1, 12)
		}, 1, 1},
		"both partitions": {func(w *world) {
			for i := range 12 {
				w.publish(i)
			}
		}, 12, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.plant(w)
			r := Compare(w.truth, w.observed, w.samples)
			if err := r.Err(); err != nil {
				t.Fatal(err)
			}
			if r.Repeats != test.repeats || r.Rewinds != test.rewinds {
				t.Errorf("%d repeats in %d rewinds, want %d in %d", r.Repeats, r.Rewinds, test.repeats, test.rewinds)
			}
		})
	}
}

func TestLayoutReadsTheRow(t *testing.T) {
	committed := time.UnixMilli(5000)
	content, err := Layout{Headers: map[string]string{"tenant": "tenant_id"}}.content(row{
		"event_id": []byte("e"), "aggregate_type": []byte("order"), "aggregate_id": []byte("k"), "payload": []byte(`{"a": 1}`),
		"headers":    []byte(`{"s": "text", "n": 1.0, "o": {"x": [1, 2]}, "z": null, "event-id": "forged", "walrelay-lsn": "0/0"}`),
		"created_at": []byte("2025-01-02 03:04:05.678901+00"), "tenant_id": []byte("t"),
	}, committed)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{
		"event-id": []byte("e"), "aggregate-type": []byte("order"), "aggregate-id": []byte("k"), "idempotency-key": []byte("e"),
		"s": []byte("text"), "n": []byte("1.0"), "o": []byte(`{"x": [1, 2]}`), "z": nil, "tenant": []byte("t"),
	}
	if len(content.Headers) != len(want) {
		t.Errorf("%d headers, want %d", len(content.Headers), len(want))
	}
	for _, h := range content.Headers {
		if v, ok := want[h.Name]; !ok || digest(v) != h.Value {
			t.Errorf("header %s", h.Name)
		}
	}
	if content.Topic != "outbox.event.order" || content.Timestamp != 1735787045678 {
		t.Error(content.Topic, content.Timestamp)
	}
	for _, when := range []string{"infinity", "-infinity", "1969-12-31 23:59:59+00", "0044-03-15 12:00:00+00 BC"} {
		content, _ := Layout{}.content(row{"event_id": []byte("e"), "created_at": []byte(when)}, committed)
		if content.Timestamp != 5000 {
			t.Errorf("created_at %s: %d, want the commit time", when, content.Timestamp)
		}
	}
}
