// Package consumer proves package inbox/kafkaconsumer on a real Postgres and a real Kafka.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
	schema "github.com/walrelay/walrelay/sql"
)

var postgres = sync.OnceValues(func() (*stack.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return stack.StartPostgres(ctx, stack.PostgresOptions{Version: os.Getenv("WALRELAY_E2E_POSTGRES")})
})

var broker = sync.OnceValues(func() (*stack.Kafka, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return stack.StartKafka(ctx, stack.KafkaOptions{Config: map[string]string{"group.min.session.timeout.ms": "500"}})
})

func TestMain(m *testing.M) {
	code := m.Run()
	harness.RemoveBinary()
	pg, _ := postgres()
	k, _ := broker()
	if err := errors.Join(pg.Close(), k.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// rig is a test's world: a database with an inbox, a topic of three partitions and its
// dead-letter topic, and consumers of one group.
type rig struct {
	t       *testing.T
	ctx     context.Context
	name    string // topic, group and database
	pg      *stack.Postgres
	kafka   *stack.Kafka
	pool    *pgxpool.Pool
	client  *kgo.Client
	admin   *kadm.Client
	metrics *prometheus.Registry
	joined  atomic.Int32 // generations that consumers have seen
}

var rigs atomic.Int32

func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, name: fmt.Sprintf("consumer_%d", rigs.Add(1)), metrics: prometheus.NewRegistry()}
	var err error
	r.pg, err = postgres()
	r.must(err)
	r.kafka, err = broker()
	r.must(err)
	admin, err := pgx.Connect(ctx, r.pg.URL("postgres"))
	r.must(err)
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "CREATE DATABASE "+r.name)
	r.must(err)
	r.pool, err = pgxpool.New(ctx, r.pg.URL(r.name))
	r.must(err)
	t.Cleanup(r.pool.Close)
	_, err = r.pool.Exec(ctx, schema.Inbox+"; CREATE TABLE effect (event_id text, partition int, at bigserial)")
	r.must(err)
	r.must(r.kafka.CreateTopics(ctx, 3, nil, r.name, r.name+".DLT"))
	r.client, err = r.kafka.Client()
	r.must(err)
	t.Cleanup(r.client.Close)
	r.admin = kadm.NewClient(r.client)
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// record is event number n, on partition n % 3.
func (r *rig) record(n int) *kgo.Record {
	header := func(k, v string) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: []byte(v)} }
	return &kgo.Record{Topic: r.name, Partition: int32(n % 3), Key: fmt.Append(nil, "key-", n), Value: fmt.Append(nil, n), Headers: []kgo.RecordHeader{
		header("event-id", fmt.Sprint("e", n)), header("colour", "blue"),
		header("walrelay-source", "aaaa0000"), header("walrelay-lsn", fmt.Sprintf("1/%X", n+1)), header("walrelay-seq", "0"),
	}}
}

func (r *rig) produce(records ...*kgo.Record) {
	r.t.Helper()
	r.must(r.client.ProduceSync(r.ctx, records...).FirstErr())
}

// effect notes that an event was applied.
func effect(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
	_, err := tx.Exec(ctx, "INSERT INTO effect (event_id, partition) VALUES ($1, $2)", m.ID, m.Partition)
	return err
}

// consume starts a member of the group; the returned function stops it and waits for it.
func (r *rig) consume(handle func(context.Context, pgx.Tx, *kafkaconsumer.Message) error, change func(*kafkaconsumer.Config)) (stop func()) {
	r.t.Helper()
	cfg := kafkaconsumer.Config{
		Brokers: strings.Split(r.kafka.Bootstrap(), ","), Group: r.name, Topics: []string{r.name},
		DB: r.pool, Inbox: inbox.Inbox{Consumer: "test", Positions: inbox.PositionsAndIDs}, Handle: handle,
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, CommitInterval: 100 * time.Millisecond,
		Session: 6 * time.Second, Metrics: r.metrics, Log: slog.New(slog.NewTextHandler(&logged{r}, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	c, err := kafkaconsumer.New(cfg)
	r.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// logged shows a consumer's log with the test's, and counts its generations.
type logged struct{ *rig }

func (l *logged) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "joined the group") {
		l.joined.Add(1)
	}
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// await polls until ok.
func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(40 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-patience:
			r.t.Fatalf("%s: not within 40 s", what)
		}
	}
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	r.must(r.pool.QueryRow(r.ctx, sql, args...).Scan(&n))
	return n
}

func (r *rig) effects() int { return r.count("SELECT count(*) FROM effect") }

// committed is the sum of the group's committed offsets.
func (r *rig) committed() (sum int64) {
	offsets, err := r.admin.FetchOffsets(r.ctx, r.name)
	if err != nil {
		return -1 // the coordinator is not there yet
	}
	offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
	return sum
}

// metric is the sum of a counter over its labels.
func (r *rig) metric(name string) (sum float64) {
	families, err := r.metrics.Gather()
	r.must(err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// letters reads the dead-letter topic.
func (r *rig) letters(n int) []*kgo.Record {
	r.t.Helper()
	return r.read(r.name+".DLT", n)
}

// read returns the first n records of a topic.
func (r *rig) read(topic string, n int) []*kgo.Record {
	r.t.Helper()
	client, err := r.kafka.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	r.must(err)
	defer client.Close()
	var records []*kgo.Record
	for len(records) < n && r.ctx.Err() == nil {
		client.PollFetches(r.ctx).EachRecord(func(rec *kgo.Record) { records = append(records, rec) })
	}
	return records
}

func headersOf(rec *kgo.Record) map[string]string {
	h := map[string]string{}
	for _, x := range rec.Headers {
		h[x.Key] = string(x.Value)
	}
	return h
}
