package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

const table = "public.outbox_event"

// fixture is one test's world: a database with an outbox, topics, a relay, and a checker
// that watches from before the first row.
type fixture struct {
	t     *testing.T
	ctx   context.Context
	pg    *stack.Postgres
	kafka *stack.Kafka
	relay *harness.Relay
	once  bool     // what counts is what a read_committed consumer sees
	name  string   // database, slot and publication
	types []string // aggregate types
	truth checker.Truth

	sampler *checker.Sampler
}

type option struct {
	pg         *stack.Postgres
	kafka      *stack.Kafka
	positions  string // topic of a checkpoint in Kafka
	direct     bool   // the relay reaches both servers past the proxies
	partitions int32
	args       []string
	unprepared bool // neither setup nor checker
}

var fixtures atomic.Int32

func newFixture(t *testing.T, o option) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), size(4*time.Minute, 30*time.Minute))
	t.Cleanup(cancel)
	f := &fixture{t: t, ctx: ctx, pg: o.pg, name: fmt.Sprintf("outbox_%d", fixtures.Add(1))}
	var err error
	if f.pg == nil {
		f.pg, err = sharedPostgres()
		f.must(err)
	}
	if f.kafka = o.kafka; f.kafka == nil {
		f.kafka, err = sharedKafka()
		f.must(err)
	}
	f.types = []string{f.name + ".order", f.name + ".payment"}
	f.exec("postgres", "CREATE DATABASE "+f.name)
	t.Cleanup(f.dropDatabase)
	if o.partitions == 0 {
		o.partitions = 3
	}
	f.must(f.kafka.CreateTopics(ctx, o.partitions, nil, f.topics()...))

	config := harness.Config{Postgres: f.pg.URL(f.name), Brokers: f.kafka.Bootstrap(), Slot: f.name, Topic: o.positions, Args: o.args}
	if o.direct {
		config.Postgres, config.Brokers = f.url(), f.kafka.Direct()
	}
	f.relay, err = harness.New(config)
	f.must(err)
	t.Cleanup(f.closeRelay)
	if !o.unprepared {
		f.setup()
		f.watch()
	}
	return f
}

// setup is what an operator does first.
func (f *fixture) setup() {
	f.t.Helper()
	r, err := f.relay.Command(f.ctx, "setup", "--create-table")
	f.must(err)
	if r.Code != 0 {
		f.t.Fatalf("setup: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// watch starts the checker's side.
func (f *fixture) watch() {
	f.t.Helper()
	f.truth = checker.Truth{URL: f.url(), Table: table, Slot: f.name + "_truth"}
	f.must(f.truth.Create(f.ctx))
	var err error
	f.sampler, err = checker.StartSampler(f.url(), f.name, f.kafka.Direct(), f.topics())
	f.must(err)
	f.t.Cleanup(func() { f.sampler.Stop() })
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// url is the database's, past the proxy.
func (f *fixture) url() string { return f.pg.Direct(f.name) }

func (f *fixture) topics() []string {
	var list []string
	for _, kind := range f.types {
		list = append(list, "outbox.event."+kind)
	}
	return list
}

func (f *fixture) exec(db string, sql string, args ...any) {
	f.t.Helper()
	conn, err := pgx.Connect(f.ctx, f.pg.Direct(db))
	f.must(err)
	defer conn.Close(f.ctx)
	_, err = conn.Exec(f.ctx, sql, args...)
	f.must(err)
}

// query reads one value of the test's database.
func query[T any](f *fixture, sql string, args ...any) (v T) {
	f.t.Helper()
	conn, err := pgx.Connect(f.ctx, f.url())
	f.must(err)
	defer conn.Close(f.ctx)
	f.must(conn.QueryRow(f.ctx, sql, args...).Scan(&v))
	return v
}

// insert writes one plain row.
func (f *fixture) insert(id string) {
	f.t.Helper()
	f.exec(f.name, "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, 'key', 'test', '{}')", id, f.types[0])
}

// published is how many records the topics hold.
func (f *fixture) published() int64 {
	f.t.Helper()
	n, err := f.records().Count(f.ctx)
	f.must(err)
	return n
}

func (f *fixture) records() checker.Topics {
	return checker.Topics{Brokers: f.kafka.Direct(), Names: f.topics(), Committed: f.once}
}

// check holds Kafka against the commit order, and logs the counts.
func (f *fixture) check() *checker.Report {
	f.t.Helper()
	samples := f.sampler.Stop()
	truth, err := f.truth.Read(f.ctx)
	f.must(err)
	observed, err := f.records().Read(f.ctx)
	f.must(err)
	live, _ := observed.Split()
	report := checker.Compare(truth, live, samples)
	if err := report.Err(); err != nil {
		f.t.Errorf("%v\n%s", err, lastLines(f.relay.Log(), 20))
	} else {
		f.t.Log(report)
	}
	if report.Committed == 0 || report.Samples == 0 {
		f.t.Error("nothing was checked")
	}
	return report
}

// noRepeats is check for runs after which G5 allows none.
func (f *fixture) noRepeats() {
	f.t.Helper()
	if r := f.check(); r.Repeats > 0 {
		f.t.Errorf("G5: %d repeats\n%s", r.Repeats, lastLines(f.relay.Log(), 20))
	}
}

func (f *fixture) load(o workload.Options) *workload.Workload {
	o.URL, o.Types, o.Seed = f.url(), f.types, seed()
	return workload.Start(f.ctx, o)
}

// end stops writers.
func (f *fixture) end(w *workload.Workload) workload.Stats {
	f.t.Helper()
	stats, err := w.Stop()
	f.must(err)
	return stats
}

func (f *fixture) closeRelay() {
	if f.t.Failed() {
		f.t.Logf("last of the relay's log:\n%s", lastLines(f.relay.Log(), 30))
	}
	if err := f.relay.Close(); err != nil {
		f.t.Error(err)
	}
}

const dropSlots = `SELECT count(d.done) FROM pg_replication_slots s,
	LATERAL (SELECT CASE WHEN s.active THEN pg_terminate_backend(s.active_pid)::text ELSE pg_drop_replication_slot(s.slot_name)::text END AS done) d
	WHERE s.database = $1`

// dropDatabase frees what the test holds in the shared server: its slots retain WAL.
func (f *fixture) dropDatabase() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.pg.Direct("postgres"))
	if err != nil {
		return // a server of the test's own, already gone
	}
	defer conn.Close(ctx)
	for left := 1; left > 0 && ctx.Err() == nil; {
		// A walsender takes a moment to end; an error is one that just began to.
		if err := conn.QueryRow(ctx, dropSlots, f.name).Scan(&left); err != nil {
			left = 1
		}
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+f.name+" WITH (FORCE)"); err != nil {
		f.t.Error(err)
	}
}
