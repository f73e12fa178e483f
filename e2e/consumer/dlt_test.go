package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
	"github.com/walrelay/walrelay/sink"
)

// dlt runs walrelay dlt on the test's dead-letter topic.
func (r *rig) dlt(code int, args ...string) string {
	r.t.Helper()
	full := append([]string{"dlt", args[0], "--kafka-brokers", r.kafka.Bootstrap(), "--from", r.name + ".DLT", "--log-format", "console"}, args[1:]...)
	res, err := harness.Command(r.ctx, r.t.TempDir(), nil, full...)
	r.must(err)
	if res.Code != code {
		r.t.Fatalf("walrelay %v: exit %d, want %d\n%s%s", full, res.Code, code, res.Stdout, res.Stderr)
	}
	return res.Stdout + res.Stderr
}

// Dead letters of a consumer and of the relay are listed, shown without their payload unless it is asked for, and sent again: to the
// same place with the same content and a mark, in order, once, and applied once.
func TestDeadLetters(t *testing.T) {
	r := newRig(t)
	const n = 30
	var records []*kgo.Record
	for i := range n {
		records = append(records, r.record(i))
	}
	r.produce(records...)
	stop := r.consume(func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
		return kafkaconsumer.Permanent(errors.New("out of order\nfor today"))
	}, nil)
	r.await("all parked", func() bool { return r.metric("walrelay_consumer_parked_total") == n })
	stop()
	r.parkByRelay()

	list := r.dlt(0, "list")
	if lines := strings.Count(list, "\n"); lines != n+1 || !strings.Contains(list, "out of order for today") || !strings.Contains(list, r.name+"-1@4") {
		t.Errorf("list of %d lines:\n%s", lines, list)
	}
	shown := r.dlt(0, "show", "--at", "0:0")
	if !strings.Contains(shown, "colour: blue") || !strings.Contains(shown, "event-id: e0") || strings.Contains(shown, "key-0") {
		t.Errorf("show:\n%s", shown)
	}
	if shown := r.dlt(0, "show", "--at", "0:0", "--payload"); !strings.Contains(shown, "key: key-0\n\n0\n") {
		t.Errorf("show --payload:\n%s", shown)
	}
	r.dlt(1, "show", "--at", "0:999")
	r.dlt(2, "show", "--at", "zero")
	if out := r.dlt(1, "redrive"); !strings.Contains(out, "--topic-allow") {
		t.Errorf("a topic that is not allowed: %s", out)
	}

	// Interrupted, it goes on where it was.
	for left := n + 1; left > 0; left -= 12 {
		if out := r.dlt(0, "redrive", "--topic-allow", r.name, "--max", "12"); !strings.Contains(out, fmt.Sprintf("redriven %d\n", min(left, 12))) {
			t.Errorf("redrive, %d left: %s", left, out)
		}
	}
	if out := r.dlt(0, "redrive", "--topic-allow", r.name) + r.dlt(0, "list"); !strings.HasPrefix(out, "redriven 0\n") || strings.Contains(out, ":") {
		t.Errorf("afterwards: %s", out)
	}
	if all := r.dlt(0, "list", "--all", "--json"); strings.Count(all, `"redriven":true`) != n+1 {
		t.Errorf("list --all:\n%s", all)
	}

	next := map[int32]int{}
	for _, rec := range r.read(r.name, 2*n+1) {
		h := headersOf(rec)
		if h["walrelay-redrive"] == "" {
			continue
		}
		if h["event-id"] == "relay" {
			if string(rec.Key) != "k" || string(rec.Value) != "v" || h["walrelay-error"] != "" {
				t.Errorf("the relay's letter: %q %q %v", rec.Key, rec.Value, h)
			}
			continue
		}
		i := 3*next[rec.Partition] + int(rec.Partition)
		next[rec.Partition]++
		if h["event-id"] != fmt.Sprint("e", i) || string(rec.Key) != fmt.Sprint("key-", i) || string(rec.Value) != fmt.Sprint(i) || h["colour"] != "blue" || h["walrelay-parked-by"] != "test" || h["walrelay-error"] != "" {
			t.Fatalf("partition %d: %s in the place of e%d: %q %q %v", rec.Partition, h["event-id"], i, rec.Key, rec.Value, h)
		}
	}
	r.consume(effect, nil)
	r.await("the end", func() bool { return r.committed() == 2*n+1 })
	if applied := r.effects(); applied != n+1 {
		t.Errorf("%d are applied", applied)
	}
}

// parkByRelay has the relay's own producer write a dead letter.
func (r *rig) parkByRelay() {
	client, err := sink.NewClient(sink.ClientConfig{Brokers: strings.Split(r.kafka.Bootstrap(), ",")})
	r.must(err)
	defer client.Close()
	p, err := sink.NewProducer(sink.Config{Client: client, Poison: sink.PoisonDeadLetter, Allowed: func(topic string) bool { return topic == r.name }})
	r.must(err)
	_, err = p.Write(r.ctx, []decode.Event{{Topic: r.name, Key: []byte("k"), Value: []byte("v"), ID: []byte("relay"), Timestamp: time.Now().UnixMilli(), Partition: -1, Poison: &decode.PoisonError{EventID: "relay", Reason: "headers are no object"}}})
	r.must(err)
}
