package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
)

// Events and their repeats are applied once, in order on each partition, by a consumer that is
// stopped and started; the committed offsets end at the end.
func TestOnceAndInOrder(t *testing.T) {
	r := newRig(t)
	const n = 150
	var records []*kgo.Record
	for i := range n {
		records = append(records, r.record(i))
		if i%50 == 49 { // a repeat: a run that ends at the newest event
			for j := i - 10; j <= i; j++ {
				records = append(records, r.record(j))
			}
		}
	}
	r.produce(records...)
	stop := r.consume(effect, nil)
	r.await("some effects", func() bool { return r.effects() > n/4 })
	stop()
	stop = r.consume(effect, nil)
	r.await("all effects", func() bool { return r.effects() == n })
	r.await("the end", func() bool { return r.committed() == n+n/50*11 })
	stop()
	if distinct := r.count("SELECT count(DISTINCT event_id) FROM effect"); distinct != n || r.effects() != n {
		t.Errorf("%d effects of %d events, want %d", r.effects(), distinct, n)
	}
	disorder := r.count(`SELECT count(*) FROM (SELECT substr(event_id, 2)::int < lag(substr(event_id, 2)::int) OVER (PARTITION BY partition ORDER BY at) AS bad FROM effect) x WHERE bad`)
	if disorder > 0 {
		t.Errorf("%d effects out of order", disorder)
	}
	if handled := r.metric("walrelay_consumer_handled_total"); handled != n {
		t.Errorf("handled: %v", handled)
	}
	if d := r.metric("walrelay_consumer_duplicates_total"); d < n/50*11 {
		t.Errorf("duplicates: %v", d)
	}
	if lag := r.metric("walrelay_consumer_lag"); lag != 0 {
		t.Errorf("lag: %v", lag)
	}
}

// What fails goes to the dead-letter topic after its attempts, or at once; its successors go on. The
// offset moves when the letter is acknowledged, and not before.
func TestParking(t *testing.T) {
	r := newRig(t)
	var tries [9]atomic.Int32
	handle := func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
		var n int
		fmt.Sscanf(m.ID, "e%d", &n)
		tries[n].Add(1)
		switch n {
		case 3:
			return errors.New("no such order")
		case 4:
			return kafkaconsumer.Permanent(errors.New("cannot be read"))
		case 5:
			if tries[n].Load() < 3 {
				return errors.New("comes right")
			}
		case 6: // an error of the statement that the handler passes over
			tx.Exec(ctx, "SELECT 1/0")
			return nil
		}
		return effect(ctx, tx, m)
	}
	for i := range 9 {
		r.produce(r.record(i))
	}
	nameless := r.record(0)
	nameless.Headers = nil
	r.produce(nameless)
	stop := r.consume(handle, func(c *kafkaconsumer.Config) { c.Attempts = 3 })
	r.await("effects", func() bool { return r.effects() == 6 })
	letters := r.letters(4)
	r.await("the end", func() bool { return r.committed() == 10 })
	stop()

	causes := map[string]string{}
	for _, l := range letters {
		h := headersOf(l)
		causes[h["event-id"]] = h["walrelay-attempts"] + " " + h["walrelay-error"]
		if h["walrelay-original-topic"] != r.name || h["walrelay-original-partition"] != fmt.Sprint(l.Partition) || h["walrelay-parked-by"] != "test" {
			t.Errorf("letter on partition %d: headers %v", l.Partition, h)
		}
		if h["event-id"] == "e4" && (string(l.Key) != "key-4" || string(l.Value) != "4" || h["colour"] != "blue" || h["walrelay-original-offset"] != "1" || l.Partition != 1) {
			t.Errorf("letter of e4: %q %q %v", l.Key, l.Value, h)
		}
	}
	want := map[string]string{"e3": "3 no such order", "e4": "1 cannot be read", "e6": "3 inbox: commit: commit unexpectedly resulted in rollback", "": "1 inbox: the event has no id"}
	if !maps.Equal(causes, want) {
		t.Errorf("letters %v", causes)
	}
	if r.metric("walrelay_consumer_parked_total") != 4 || tries[4].Load() != 1 || tries[5].Load() != 3 {
		t.Errorf("parked %v; e4 tried %d times, e5 %d", r.metric("walrelay_consumer_parked_total"), tries[4].Load(), tries[5].Load())
	}
	if n := r.count("SELECT count(*) FROM consumed_event WHERE parked_at IS NOT NULL"); n != 3 {
		t.Errorf("%d events are recorded as parked", n)
	}

	// Sent again, marked, it is applied; once.
	for range 2 {
		again := r.record(3)
		again.Headers = append(again.Headers, kgo.RecordHeader{Key: "walrelay-redrive", Value: []byte("1")}, kgo.RecordHeader{Key: "walrelay-parked-by", Value: []byte("test")})
		r.produce(again)
	}
	r.consume(effect, nil)
	r.await("the end", func() bool { return r.committed() == 12 })
	if n := r.count("SELECT count(*) FROM effect WHERE event_id = 'e3'"); n != 1 {
		t.Errorf("the redriven event is applied %d times", n)
	}
}

// Without parking a poison event holds its partition, and only that; its offset is not committed.
func TestForever(t *testing.T) {
	r := newRig(t)
	var mended atomic.Bool
	handle := func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
		if m.ID == "e1" && !mended.Load() {
			return kafkaconsumer.Permanent(errors.New("poison"))
		}
		return effect(ctx, tx, m)
	}
	for i := range 9 {
		r.produce(r.record(i))
	}
	r.consume(handle, func(c *kafkaconsumer.Config) { c.Attempts = kafkaconsumer.Forever })
	r.await("the other partitions", func() bool { return r.effects() == 6 && r.committed() == 6 })
	r.await("retries", func() bool { return r.metric("walrelay_consumer_retries_total") > 5 })
	mended.Store(true)
	r.await("all", func() bool { return r.effects() == 9 && r.committed() == 9 })
}

// An outage of the database parks nothing, and repeats nothing.
func TestDatabaseOutage(t *testing.T) {
	r := newRig(t)
	const n = 200
	var records []*kgo.Record
	for i := range n {
		records = append(records, r.record(i))
	}
	r.produce(records...)
	r.consume(effect, func(c *kafkaconsumer.Config) { c.Attempts = 1 })
	r.await("some effects", func() bool { return r.metric("walrelay_consumer_handled_total") > 20 })
	r.must(r.pg.Stop(r.ctx, stack.Immediate))
	r.must(r.pg.Start(r.ctx))
	r.await("the end", func() bool { return r.committed() == n })
	if distinct := r.count("SELECT count(DISTINCT event_id) FROM effect"); distinct != n || r.effects() != n || r.metric("walrelay_consumer_parked_total") != 0 {
		t.Errorf("%d effects of %d events, %v parked", r.effects(), distinct, r.metric("walrelay_consumer_parked_total"))
	}
}

// Records of aborted transactions are not shown, and the offset gets past them.
func TestAbortedTransactions(t *testing.T) {
	r := newRig(t)
	producer, err := r.kafka.Client(kgo.TransactionalID(r.name))
	r.must(err)
	defer producer.Close()
	for round, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		r.must(producer.BeginTransaction())
		for i := range 2 {
			r.must(producer.ProduceSync(r.ctx, r.record(10*round+3*i), r.record(10*round+3*i+1), r.record(10*round+3*i+2)).FirstErr())
			r.produce(r.record(100+10*round+3*i), r.record(101+10*round+3*i), r.record(102+10*round+3*i)) // between, without a transaction
		}
		r.must(producer.EndTransaction(r.ctx, end))
	}
	// By id: what the two producers write between each other has no rising positions.
	stop := r.consume(effect, func(c *kafkaconsumer.Config) { c.Inbox.Positions = inbox.IDsOnly })
	ends, err := r.admin.ListEndOffsets(r.ctx, r.name)
	r.must(err)
	var end int64
	for _, o := range ends[r.name] {
		end += o.Offset
	}
	r.await("the end", func() bool { return r.committed() >= end }) // a marker may be written after the end
	stop()
	if n, committed := r.effects(), r.count("SELECT count(*) FROM effect WHERE event_id ~ '^e1.$'"); n != 24 || committed != 6 {
		t.Errorf("%d effects, %d of the committed transaction", n, committed)
	}
}

// An effect that takes longer than the session does not cost the membership; when another member joins meanwhile, it is
// cancelled, rolled back and run again by whoever has the partition then, and the group comes to rest.
func TestLongEffects(t *testing.T) {
	if testing.Short() {
		t.Skip("a dozen seconds of effects that take long")
	}
	r := newRig(t)
	const session = 2 * time.Second
	var begun, ended atomic.Int32
	handle := func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
		begun.Add(1)
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", (2 * session).Seconds()); err != nil {
			return err
		}
		ended.Add(1)
		return effect(ctx, tx, m)
	}
	change := func(c *kafkaconsumer.Config) { c.Session, c.Attempts = session, 1 }
	r.produce(r.record(0))
	r.consume(handle, change)
	r.await("a long effect", func() bool { return r.effects() == 1 })
	if r.joined.Load() != 1 || begun.Load() != 1 {
		t.Errorf("%d generations, begun %d times: the effect cost the membership", r.joined.Load(), begun.Load())
	}
	r.produce(r.record(1), r.record(2), r.record(3))
	r.await("three effects at work", func() bool { return begun.Load() == 4 })
	r.consume(handle, change)
	r.await("all effects", func() bool { return r.effects() == 4 })
	if n := r.joined.Load(); n > 4 {
		t.Errorf("%d generations", n)
	}
	if r.metric("walrelay_consumer_parked_total") != 0 {
		t.Error("a cancelled effect was parked")
	}
}

// A stop lets the effect in hand end, commits its offset, and leaves the group.
func TestGracefulStop(t *testing.T) {
	r := newRig(t)
	begun := make(chan struct{}, 9)
	handle := func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
		begun <- struct{}{}
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.5)"); err != nil {
			return err
		}
		return effect(ctx, tx, m)
	}
	for i := range 9 {
		r.produce(r.record(3 * i))
	}
	stop := r.consume(handle, nil)
	<-begun
	<-begun
	stop()
	if n, at := r.effects(), r.committed(); n != 2 || at != 2 {
		t.Errorf("%d effects, offset %d after a stop in the second one", n, at)
	}
	groups, err := r.admin.DescribeGroups(r.ctx, r.name)
	r.must(err)
	if g := groups[r.name]; g.State != "Empty" {
		t.Errorf("the group is %s", g.State)
	}
}
