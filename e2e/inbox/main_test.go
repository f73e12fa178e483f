// Package inbox proves package inbox on a real Postgres and a real Redis.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/inbox/redishint"
	schema "github.com/walrelay/walrelay/sql"
)

var postgres = sync.OnceValues(func() (*stack.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return stack.StartPostgres(ctx, stack.PostgresOptions{Version: os.Getenv("WALRELAY_E2E_POSTGRES")})
})

func TestMain(m *testing.M) {
	code := m.Run()
	if pg, err := postgres(); err == nil {
		if err := pg.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func seed() uint64 {
	if s, err := strconv.ParseUint(os.Getenv("WALRELAY_SEED"), 10, 64); err == nil {
		return s
	}
	return 20260101
}

var databases atomic.Int32

// newPool is a database of the test's own, with the inbox and a table for effects: how
// often each event was applied.
func newPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pg, err := postgres()
	must(t, err)
	name := fmt.Sprintf("inbox_%d", databases.Add(1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := pgx.Connect(ctx, pg.URL("postgres"))
	must(t, err)
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "CREATE DATABASE "+name)
	must(t, err)
	pool, err := pgxpool.New(ctx, pg.URL(name))
	must(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(ctx, schema.Inbox+"; CREATE TABLE effect (event_id text PRIMARY KEY, times int NOT NULL)")
	must(t, err)
	return pool
}

// newHints are hints on a Redis of the test's own.
func newHints(t testing.TB) (*redishint.Hints, *stack.Redis) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := stack.StartRedis(ctx)
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	hints := redishint.Open(redis.UniversalOptions{Addrs: []string{server.Addr()}})
	hints.Wait = 200 * time.Millisecond
	t.Cleanup(func() { hints.Close() })
	return hints, server
}

// apply is the effect: it counts itself.
func apply(id string) func(context.Context, pgx.Tx, *inbox.Claim) error {
	return func(ctx context.Context, tx pgx.Tx, _ *inbox.Claim) error {
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, 1) ON CONFLICT (event_id) DO UPDATE SET times = effect.times + 1", id)
		return err
	}
}

// times is how often each event was applied.
func times(t testing.TB, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT event_id, times FROM effect")
	must(t, err)
	counts := map[string]int{}
	var id string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { counts[id] = n; return nil })
	must(t, err)
	return counts
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errCrash = errors.New("crash")
