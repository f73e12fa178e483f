package shop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	shop "github.com/walrelay/walrelay/examples/shop"

	"github.com/walrelay/walrelay/e2e/stack"
)

// fault is something that happens to the shop; it is over when it returns.
type fault struct {
	name string
	do   func(*world, *rand.Rand)
}

func (w *world) either(rng *rand.Rand) *side {
	return []*side{w.order, w.product}[rng.IntN(2)]
}

var faults = []fault{
	{"kill -9 of a service", func(w *world, rng *rand.Rand) {
		s := w.either(rng)
		must(w.t, s.scope.Kill())
		w.start(s)
	}},
	{"kill -9 of a relay", func(w *world, rng *rand.Rand) {
		s := w.either(rng)
		must(w.t, s.relay.Kill(w.ctx))
		w.start(s)
	}},
	{"a window again", func(w *world, rng *rand.Rand) { w.again(rng, "") }},
	{"a window replayed", func(w *world, rng *rand.Rand) { w.again(rng, "walrelay-replay") }},
	{"Redis flushed", func(w *world, _ *rand.Rand) { must(w.t, w.redis.Command(w.ctx, "FLUSHALL")) }},
	{"Redis restarted", func(w *world, _ *rand.Rand) {
		must(w.t, w.redis.Kill())
		must(w.t, w.redis.Start(w.ctx))
	}},
	{"Postgres crashes", func(w *world, _ *rand.Rand) {
		must(w.t, w.pg.Stop(w.ctx, stack.Immediate))
		must(w.t, w.pg.Start(w.ctx))
	}},
	{"Kafka crashes", func(w *world, _ *rand.Rand) { // the last: only in long runs
		must(w.t, w.kafka.Broker(1).Kill())
		must(w.t, w.kafka.Broker(1).Start(w.ctx))
	}},
}

// again publishes the end of each partition once more.
func (w *world) again(rng *rand.Rand, mark string) {
	for _, topic := range topics {
		byPartition := map[int32][]*kgo.Record{}
		for _, r := range w.read(topic) {
			byPartition[r.Partition] = append(byPartition[r.Partition], r)
		}
		for _, records := range byPartition {
			var copies []*kgo.Record
			for _, r := range records[max(0, len(records)-1-rng.IntN(100)):] {
				headers := slices.Clone(r.Headers)
				if mark != "" {
					headers = append(headers, kgo.RecordHeader{Key: mark, Value: []byte("run")})
				}
				copies = append(copies, &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: headers, Timestamp: r.Timestamp})
			}
			must(w.t, w.client.ProduceSync(w.ctx, copies...).FirstErr())
		}
	}
}

// trade keeps the shop open for a while, with a fault from list every pause.
func (w *world) trade(rng *rand.Rand, open, pause time.Duration, list []fault) {
	w.start(w.order)
	w.start(w.product)
	ctx, closing := context.WithCancel(w.ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		shop.Trade(ctx, w.order.pool, seed(), 10*time.Millisecond)
	}()
	w.await("trade", func() bool { return w.audit().Claimed > 100 }) // there have to be windows that can come again
	until := time.Now().Add(open)
	order := rng.Perm(len(list)) // each once, before any comes twice
	for n := 0; time.Now().Before(until) || n < len(list); n++ {
		timer := time.NewTimer(pause/2 + rand.N(pause))
		<-timer.C
		if n == len(order) {
			order = append(order, rng.IntN(len(list)))
		}
		w.t.Logf("%s  %s", time.Now().Format("15:04:05.000"), list[order[n]].name)
		list[order[n]].do(w, rng)
	}
	closing()
	<-gone
}

func TestShop(t *testing.T) {
	open, pause, list := 5*time.Second, 500*time.Millisecond, faults[:len(faults)-1]
	if os.Getenv("WALRELAY_LONG") == "1" {
		open, pause, list = 30*time.Minute, 8*time.Second, faults
	}
	w := newWorld(t, "shop", open+3*time.Minute)
	w.trade(rand.New(rand.NewPCG(seed(), 2)), open, pause, list)
	if !w.settled(90 * time.Second) {
		t.Errorf("the shop does not come to rest: %+v, %d unknown commands\n%s\n%s", w.audit(), w.unknown(), w.order.proc.Tail(), w.product.proc.Tail())
	}
	books, unknown := w.audit(), w.unknown()
	for _, lost := range books.Lost {
		t.Error(lost)
	}
	letters := map[string]bool{}
	for _, r := range w.read(shop.OrderTopic + ".DLT") {
		letters[string(r.Key)] = true
	}
	if books.Parked != unknown || len(letters) != unknown || len(w.read(shop.ProductTopic+".DLT")) > 0 {
		t.Errorf("%d commands were not to be obeyed; %d are parked, %d in the dead-letter topic", unknown, books.Parked, len(letters))
	}
	records := len(w.read(topics[0])) + len(w.read(topics[1]))
	events := w.count(w.order, "SELECT count(*) FROM outbox_event") + w.count(w.product, "SELECT count(*) FROM outbox_event")
	if books.Claimed+books.Parked != events {
		t.Errorf("%d events were written, %d applied, %d parked", events, books.Claimed, books.Parked)
	}
	if records <= events || books.Orders["CANCELLED"] == 0 || books.Orders["CONFIRMED"] == 0 || books.Orders["REJECTED"] == 0 || unknown == 0 {
		t.Errorf("nothing is shown by %d records of %d events, %+v, %d unknown commands", records, events, books, unknown)
	}
	t.Logf("%d events, %d records; %+v", events, records, books)
}

// With the inbox switched off, by triggers that make every claim a new one, the same shop must go wrong.
func TestShopWithoutInbox(t *testing.T) {
	w := newWorld(t, "careless", 3*time.Minute)
	for _, s := range []*side{w.order, w.product} {
		_, err := s.pool.Exec(w.ctx, `CREATE FUNCTION forget_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.event_id := gen_random_uuid()::text; RETURN NEW; END $$;
			CREATE TRIGGER forget BEFORE INSERT ON consumed_event FOR EACH ROW EXECUTE FUNCTION forget_event();
			CREATE FUNCTION forget_position() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.source := gen_random_uuid()::text; RETURN NEW; END $$;
			CREATE TRIGGER forget BEFORE INSERT ON consumed_position FOR EACH ROW EXECUTE FUNCTION forget_position();`)
		must(t, err)
	}
	w.trade(rand.New(rand.NewPCG(seed(), 2)), 2*time.Second, 300*time.Millisecond, faults[2:3])
	w.settled(10 * time.Second)
	if lost := w.audit().Lost; len(lost) == 0 {
		t.Error("nothing is lost: the run with the inbox proves nothing")
	} else {
		t.Logf("%d, among them: %s", len(lost), fmt.Sprint(lost[0]))
	}
}
