package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/walrelay/walrelay/e2e/sim/simkafka"
	"github.com/walrelay/walrelay/e2e/sim/simpg"
)

var columns = []simpg.Column{
	{Name: "event_id", Type: 25}, {Name: "aggregate_type", Type: 25}, {Name: "aggregate_id", Type: 25}, {Name: "event_type", Type: 25},
	{Name: "payload", Type: 3802}, {Name: "topic", Type: 25}, {Name: "headers", Type: 3802},
	{Name: "correlation_id", Type: 25}, {Name: "idempotency_key", Type: 25}, {Name: "created_at", Type: 1184},
}

func topicName(i int) string { return fmt.Sprintf("outbox.event.type%d", i) }

// do carries an operation out.
func (w *world) do(op Op) {
	r := stream(op.Seed, 9)
	switch op.Kind {
	case Other:
		w.pg.Write(op.Other * 100)
		return
	case AddColumn:
		w.pg.AddColumn(simpg.Column{Name: fmt.Sprintf("extra_%d", r.IntN(1e6)), Type: 25})
		return
	}
	rows := make([]simpg.Row, op.Rows)
	for i := range rows {
		rows[i] = w.row(r, op, i)
		if op.Kind == Poison && i == len(rows)-1 {
			rows[i].Values["topic"] = []byte("somebody.elses")
			e := rows[i].Tag.(*event)
			e.poison, e.topic, e.partition = true, "walrelay.DLT", -1
		}
		if op.Kind == Savepoint && i > 0 && r.IntN(3) == 0 {
			rows[i].Undone = true
		}
	}
	t := w.pg.Begin(rows, op.Other)
	if t == nil {
		return // the server is not there
	}
	end := func() {
		if op.Kind == RolledBack {
			w.pg.Abort(t)
		} else {
			w.pg.Commit(t)
		}
	}
	if op.Open == 0 {
		end()
		return
	}
	time.AfterFunc(op.Open, end)
}

// row is one event: what the columns hold, and what the record has to hold.
func (w *world) row(r *rand.Rand, op Op, i int) simpg.Row {
	kind := r.IntN(w.plan.Topics)
	id := fmt.Sprintf("%x-%d", op.Seed, i)
	e := &event{id: id, topic: topicName(kind), partition: -1}
	v := map[string][]byte{
		"event_id":       []byte(id),
		"aggregate_type": fmt.Appendf(nil, "type%d", kind),
		"event_type":     fmt.Appendf(nil, "happened-%d", r.IntN(4)),
	}
	add := func(name, column string) {
		if v[column] != nil {
			e.headers = append(e.headers, simkafka.Header{Key: name, Value: v[column]})
		}
	}
	switch r.IntN(12) {
	case 0: // no key
	case 1:
		v["aggregate_id"] = []byte{}
	default:
		v["aggregate_id"] = fmt.Appendf(nil, "key-%d", r.IntN(9))
	}
	e.key = v["aggregate_id"]
	largest := op.Large
	if !w.plan.DeadLetters {
		largest = min(largest, w.plan.MaxBytes-2000) // what no topic takes would end the relay
	}
	if v["payload"] = payload(r, op, i, largest); r.IntN(30) == 0 {
		v["payload"] = nil
	}
	e.value = v["payload"]
	e.large = len(e.value) > w.plan.MaxBytes-2000
	if r.IntN(5) == 0 {
		v["topic"] = []byte(e.topic)
	}
	if r.IntN(4) == 0 {
		v["correlation_id"] = fmt.Appendf(nil, "request-%d", r.IntN(100))
	}
	if r.IntN(4) == 0 {
		v["idempotency_key"] = fmt.Appendf(nil, "once-%d", r.IntN(1e6))
	}
	for _, h := range [][2]string{{"event-id", "event_id"}, {"event-type", "event_type"}, {"aggregate-type", "aggregate_type"},
		{"aggregate-id", "aggregate_id"}, {"correlation-id", "correlation_id"}, {"idempotency-key", "idempotency_key"}} {
		add(h[0], h[1])
	}
	if v["idempotency_key"] == nil {
		e.headers = append(e.headers, simkafka.Header{Key: "idempotency-key", Value: v["event_id"]})
	}
	if r.IntN(4) == 0 {
		own := map[string]string{"tenant": fmt.Sprint(r.IntN(9)), "note": "größer \"als\" \\ 🚀"}
		v["headers"], _ = json.Marshal(own)
		for name, text := range own {
			e.headers = append(e.headers, simkafka.Header{Key: name, Value: []byte(text)})
		}
	}
	if r.IntN(3) > 0 {
		at := time.Now().Add(-time.Duration(r.Int64N(int64(time.Hour)))).UTC()
		v["created_at"] = []byte(at.Format("2006-01-02 15:04:05.999999+00"))
		e.timestamp = at.UnixMilli()
	}
	w.truth.written(e)
	return simpg.Row{Values: v, Tag: e}
}

func payload(r *rand.Rand, op Op, i, largest int) []byte {
	n := r.IntN(100)
	if op.Large > 200 && r.IntN(3) == 0 {
		n = r.IntN(largest)
	}
	b := fmt.Appendf(nil, `{"n": %d, "text": "`, i)
	for range n {
		b = append(b, 'a'+byte(r.Uint32()%26))
	}
	return append(b, `"}`...)
}
