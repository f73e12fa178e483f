// Package shop runs the example shop under faults, on real servers: stock is conserved, every order comes to an end, nothing is
// released twice, every parked command is accounted for; and without the inbox it is not so.
package shop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	shop "github.com/walrelay/walrelay/examples/shop"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/proc"
	"github.com/walrelay/walrelay/e2e/stack"
)

var topics = []string{shop.OrderTopic, shop.ProductTopic}

// servers are what both runs use.
type servers struct {
	pg    *stack.Postgres
	kafka *stack.Kafka
	redis *stack.Redis
	shop  string // the program
}

var shared = sync.OnceValues(func() (s servers, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "walrelay-e2e-shop-")
	if err != nil {
		return s, err
	}
	s.shop = filepath.Join(dir, "walrelay-shop")
	build := exec.CommandContext(ctx, "go", "build", "-o", s.shop, "github.com/walrelay/walrelay/examples/shop/cmd/shop")
	if out, err := build.CombinedOutput(); err != nil {
		return s, fmt.Errorf("build the shop: %w\n%s", err, out)
	}
	if s.pg, err = stack.StartPostgres(ctx, stack.PostgresOptions{Version: os.Getenv("WALRELAY_E2E_POSTGRES")}); err != nil {
		return s, err
	}
	if s.redis, err = stack.StartRedis(ctx); err != nil {
		return s, err
	}
	s.kafka, err = stack.StartKafka(ctx, stack.KafkaOptions{Config: map[string]string{"group.min.session.timeout.ms": "500"}})
	return s, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	s, _ := shared()
	var errs []error
	if s.pg != nil {
		errs = append(errs, s.pg.Close())
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Close())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	harness.RemoveBinary()
	os.RemoveAll(filepath.Dir(s.shop))
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// side is one of the two services: its database, its relay and its process.
type side struct {
	name  string
	db    string
	pool  *pgxpool.Pool
	relay *harness.Relay
	scope *proc.Scope
	proc  *proc.Process
}

// world is one run of the shop.
type world struct {
	t   *testing.T
	ctx context.Context
	servers
	order, product *side
	client         *kgo.Client
}

func newWorld(t *testing.T, name string, patience time.Duration) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s, err := shared()
	must(t, err)
	w := &world{t: t, ctx: ctx, servers: s}
	w.client, err = s.kafka.Client()
	must(t, err)
	t.Cleanup(w.client.Close)
	admin := kadm.NewClient(w.client)
	all := append([]string{shop.OrderTopic + ".DLT", shop.ProductTopic + ".DLT"}, topics...)
	must(t, s.kafka.CreateTopics(ctx, 3, nil, all...))
	t.Cleanup(func() { // the next run begins anew
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := admin.DeleteTopics(ctx, all...)
		must(t, err)
		_, err = admin.DeleteGroups(ctx, "shop-order", "shop-product")
		must(t, err)
	})
	w.order = w.newSide("order", name, shop.NewOrder(shop.Config{Postgres: s.pg.URL(name + "_order")}))
	w.product = w.newSide("product", name, shop.NewProduct(shop.Config{Postgres: s.pg.URL(name + "_product")}))
	return w
}

func (w *world) newSide(name, prefix string, service *shop.Service) *side {
	w.t.Helper()
	s := &side{name: name, db: prefix + "_" + name}
	admin, err := pgx.Connect(w.ctx, w.pg.URL("postgres"))
	must(w.t, err)
	defer admin.Close(w.ctx)
	_, err = admin.Exec(w.ctx, "CREATE DATABASE "+s.db)
	must(w.t, err)
	s.relay, err = harness.New(harness.Config{Postgres: w.pg.URL(s.db), Brokers: w.kafka.Bootstrap(), Slot: s.db})
	must(w.t, err)
	w.t.Cleanup(func() { s.relay.Close() })
	r, err := s.relay.Command(w.ctx, "setup", "--create-table")
	must(w.t, err)
	if r.Code != 0 {
		w.t.Fatalf("setup: %d\n%s", r.Code, r.Stderr)
	}
	s.pool, err = service.Open(w.ctx)
	must(w.t, err)
	w.t.Cleanup(s.pool.Close)
	s.scope, err = proc.NewScope("shop-" + name)
	must(w.t, err)
	w.t.Cleanup(func() { s.scope.Close() })
	return s
}

// start starts a service's process and its relay, those that do not run.
func (w *world) start(s *side) {
	w.t.Helper()
	if !s.relay.Running() {
		must(w.t, s.relay.Start())
	}
	if !s.proc.Running() {
		var err error
		s.proc, err = proc.Start(proc.Options{Name: s.name, Dir: s.scope.Dir, Log: filepath.Join(s.scope.Dir, "shop.log"), Env: append(os.Environ(),
			"SHOP_POSTGRES_URL="+w.pg.URL(s.db), "SHOP_KAFKA_BROKERS="+w.kafka.Bootstrap(), "SHOP_REDIS="+w.redis.Addr(), "SHOP_PAUSE=0")}, w.shop, s.name)
		must(w.t, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) audit() shop.Books {
	b, err := shop.Audit(w.ctx, w.order.pool, w.product.pool)
	must(w.t, err)
	return b
}

func (w *world) count(s *side, sql string) (n int) {
	w.t.Helper()
	must(w.t, s.pool.QueryRow(w.ctx, sql).Scan(&n))
	return n
}

// unknown is how many commands were given that nobody can obey.
func (w *world) unknown() int {
	return w.count(w.order, "SELECT count(*) FROM outbox_event WHERE aggregate_id LIKE 'unknown-%'")
}

// read returns all records of a topic.
func (w *world) read(topic string) (records []*kgo.Record) {
	w.t.Helper()
	ends, err := kadm.NewClient(w.client).ListEndOffsets(w.ctx, topic)
	must(w.t, err)
	var left int64
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	client, err := w.kafka.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(w.t, err)
	defer client.Close()
	for int64(len(records)) < left && w.ctx.Err() == nil {
		client.PollFetches(w.ctx).EachRecord(func(r *kgo.Record) { records = append(records, r) })
	}
	return records
}

// await polls until ok.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("%s: %v\n%s\n%s", what, w.ctx.Err(), w.order.proc.Tail(), w.product.proc.Tail())
		}
	}
}

// settled waits until everything that is under way has arrived; false: it does not.
func (w *world) settled(patience time.Duration) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	admin := kadm.NewClient(w.client)
	for {
		if b := w.audit(); b.Open == 0 && b.Parked >= w.unknown() && w.caughtUp(admin) {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
}

// caughtUp says whether both services have read their topics to the end.
func (w *world) caughtUp(admin *kadm.Client) bool {
	lags, err := admin.Lag(w.ctx, "shop-order", "shop-product")
	if err != nil || lags.Error() != nil {
		return false
	}
	for _, lag := range lags {
		if lag.Lag.Total() != 0 {
			return false
		}
	}
	return true
}

func seed() uint64 {
	if s, err := strconv.ParseUint(os.Getenv("WALRELAY_SEED"), 10, 64); err == nil {
		return s
	}
	return 20260101
}
