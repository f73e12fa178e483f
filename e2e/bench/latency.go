package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/proc"
)

// Latency is how long after its commit returned to the writer an event was in a
// consumer's hands, in milliseconds. Of the plain producer it is the time from the call
// of Produce. AckBelow are upper ends of the relay's own buckets from commit to acknowledgement.
type Latency struct {
	Rate      int     `json:"events_per_second"`
	Rows      int     `json:"rows_per_transaction"`
	Events    int     `json:"events"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Max       float64 `json:"max_ms"`
	CPUMicros float64 `json:"relay_cpu_us"` // per event
	AckBelow  struct {
		P50 float64 `json:"p50_ms"`
		P99 float64 `json:"p99_ms"`
	} `json:"commit_to_ack_below"`
}

// lane is an outbox with a relay and a consumer, and a plain producer that writes to
// the same topic.
type lane struct {
	b      *bench
	name   string
	topic  string
	http   string
	relay  *child
	plain  *kgo.Client
	seen   *seen
	writer []*pgx.Conn
	window int

	// Of the newest window, by event.
	written []time.Time
	took    []time.Duration
}

const latencyWriters = 16

func (b *bench) newLane(ctx context.Context, binary string) (_ *lane, err error) {
	b.backlogs++
	l := &lane{b: b, name: fmt.Sprintf("bench%d", b.backlogs)}
	l.topic = "outbox.event." + l.name
	if err := b.newOutbox(ctx, l.name); err != nil {
		return nil, err
	}
	if err := b.kafka.CreateTopics(ctx, 8, nil, l.topic); err != nil {
		return nil, err
	}
	ports, err := proc.FreePorts(1)
	if err != nil {
		return nil, err
	}
	l.http = proc.Addr(ports[0])
	defer func() {
		if err != nil {
			l.close(ctx)
		}
	}()
	backlog := &backlog{Workload: Workload{Codec: "none"}, b: b, name: l.name}
	argv, env := backlog.relay(binary, l.name, b.kafka.Bootstrap(), "--http", l.http)
	if l.relay, err = start(b.dir, env, argv...); err != nil {
		return nil, err
	}
	if err := l.relay.await(streamingLine, 20*time.Second); err != nil {
		return nil, err
	}
	for range latencyWriters {
		conn, err := pgx.Connect(ctx, b.pg.Direct(l.name))
		if err != nil {
			return nil, err
		}
		l.writer = append(l.writer, conn)
	}
	l.plain, err = kgo.NewClient(kgo.SeedBrokers(b.kafka.Bootstrap()), kgo.DefaultProduceTopic(l.topic), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	l.seen, err = newSeen(b.kafka.Bootstrap(), l.topic)
	return l, err
}

func (l *lane) close(ctx context.Context) (err error) {
	for _, conn := range l.writer {
		conn.Close(ctx)
	}
	if l.plain != nil {
		l.plain.Close()
	}
	if l.seen != nil {
		l.seen.close()
	}
	if l.relay != nil {
		err = l.relay.stop()
	}
	drop := &backlog{b: l.b, name: l.name}
	return errors.Join(err, drop.dropSlot(ctx, l.name), l.b.deleteTopics(ctx, l.topic), l.b.exec(ctx, "postgres", "DROP DATABASE "+l.name+" WITH (FORCE)"))
}

// seen notes when each event of the present window was read: its id is the header
// event-id, "WINDOW-NUMBER".
type seen struct {
	client *kgo.Client
	done   chan struct{}
	mu     sync.Mutex
	window int
	at     []time.Time
	left   int
	all    chan struct{}
}

func newSeen(brokers, topic string) (*seen, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	s := &seen{client: client, done: make(chan struct{})}
	go s.read()
	return s, nil
}

func (s *seen) read() {
	defer close(s.done)
	for {
		fetches := s.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		now := time.Now()
		s.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				window, n := 0, 0
				if h.Key != "event-id" {
					continue
				}
				fmt.Sscanf(string(h.Value), "%d-%d", &window, &n)
				if window == s.window && n < len(s.at) && s.at[n].IsZero() {
					s.at[n] = now
					if s.left--; s.left == 0 {
						close(s.all)
					}
				}
			}
		})
		s.mu.Unlock()
	}
}

func (s *seen) close() {
	s.client.Close()
	<-s.done
}

// expect begins a window of n events.
func (s *seen) expect(window, n int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window, s.at, s.left, s.all = window, make([]time.Time, n), n, make(chan struct{})
	return s.all
}

// run writes rows×(rate/rows) events a second for d by write, which returns when the n-th
// transaction is committed, and measures when they are seen.
func (l *lane) run(rate, rows int, d time.Duration, write func(window, first, rows int, at *[]time.Time) error) (Latency, error) {
	l.window++
	txns := int(d.Seconds() * float64(rate) / float64(rows))
	n := txns * rows
	all := l.seen.expect(l.window, n)
	written := make([]time.Time, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, latencyWriters)
	begun := time.Now().Add(50 * time.Millisecond)
	for range latencyWriters {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= txns {
					return
				}
				time.Sleep(time.Until(begun.Add(time.Duration(float64(i) * float64(rows) / float64(rate) * float64(time.Second)))))
				if err := write(l.window, i*rows, rows, &written); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return Latency{}, err
	default:
	}
	select {
	case <-all:
	case <-time.After(30 * time.Second):
		return Latency{}, fmt.Errorf("bench: %d events of %d did not arrive: %s", l.seen.left, n, l.relay.tail())
	}
	took := make([]time.Duration, n)
	for i := range took {
		took[i] = l.seen.at[i].Sub(written[i])
	}
	l.written, l.took = written, slices.Clone(took)
	slices.Sort(took)
	ms := func(q float64) float64 { return took[min(int(q*float64(n)), n-1)].Seconds() * 1000 }
	return Latency{Rate: rate, Rows: rows, Events: n, P50: ms(.5), P99: ms(.99), P999: ms(.999), Max: ms(1)}, nil
}

// relayed measures from the commit.
func (l *lane) relayed(ctx context.Context, rate, rows int, d time.Duration) (Latency, error) {
	pool := make(chan *pgx.Conn, len(l.writer))
	for _, conn := range l.writer {
		pool <- conn
	}
	before, err := scrape(ctx, l.http)
	if err != nil {
		return Latency{}, err
	}
	used, _ := cpu(l.relay.pid())
	m, err := l.run(rate, rows, d, func(window, first, rows int, at *[]time.Time) error {
		conn := <-pool
		defer func() { pool <- conn }()
		_, err := conn.Exec(ctx, `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
			SELECT $1::int || '-' || i, $2, 'key-' || i % 1000, 'OrderPlaced', jsonb_build_object('n', i, 'text', $3::text) FROM generate_series($4::int, $5::int) i`,
			window, l.name, text300, first, first+rows-1)
		now := time.Now()
		for i := first; i < first+rows; i++ {
			(*at)[i] = now
		}
		return err
	})
	if err != nil {
		return m, err
	}
	now, _ := cpu(l.relay.pid())
	m.CPUMicros = float64((now - used).Nanoseconds()) / 1e3 / float64(m.Events)
	after, err := scrape(ctx, l.http)
	acks := between(before.ack, after.ack)
	m.AckBelow.P50, m.AckBelow.P99 = quantile(acks, .5)*1000, quantile(acks, .99)*1000
	return m, err
}

// produced measures from the call of Produce, of a plain idempotent producer.
func (l *lane) produced(ctx context.Context, rate, rows int, d time.Duration) (Latency, error) {
	return l.run(rate, rows, d, func(window, first, rows int, at *[]time.Time) error {
		var wg sync.WaitGroup
		errs := make([]error, rows)
		for i := range rows {
			n := first + i
			r := &kgo.Record{Key: fmt.Appendf(nil, "key-%d", n%1000), Value: fmt.Appendf(nil, `{"n": %d, "text": "%s"}`, n, text300),
				Headers: []kgo.RecordHeader{{Key: "event-id", Value: fmt.Appendf(nil, "%d-%d", window, n)}, {Key: "event-type", Value: []byte("OrderPlaced")}}}
			wg.Add(1)
			(*at)[n] = time.Now()
			l.plain.Produce(ctx, r, func(_ *kgo.Record, err error) { errs[i] = err; wg.Done() })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

var text300 = func() string {
	b := make([]byte, 275)
	for i := range b {
		b[i] = 'a' + byte(i*7%26)
	}
	return string(b)
}()
