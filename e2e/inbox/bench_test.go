package inbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/inbox"
)

// What a claim costs beside its effect, one small update: compare with "no inbox". Commits are asynchronous, or the disk would be all that is
// measured; WAL-B/op has the same figure either way.
//
//	go test ./inbox -run '^$' -bench Claim -benchtime 3000x
func BenchmarkClaim(b *testing.B) {
	hints, _ := newHints(b)
	for _, c := range []struct {
		name string
		box  *inbox.Inbox
		seen bool
	}{
		{"no inbox", nil, false},
		{"ids", &inbox.Inbox{}, false},
		{"ids, Redis", &inbox.Inbox{Hints: hints}, false},
		{"positions", &inbox.Inbox{Positions: inbox.PositionsOnly}, false},
		{"positions, Redis", &inbox.Inbox{Positions: inbox.PositionsOnly, Hints: hints}, false},
		{"positions and ids", &inbox.Inbox{Positions: inbox.PositionsAndIDs}, false},
		{"duplicate, ids", &inbox.Inbox{}, true},
		{"duplicate, ids, Redis", &inbox.Inbox{Hints: hints}, true},
		{"duplicate, positions", &inbox.Inbox{Positions: inbox.PositionsOnly}, true},
		{"duplicate, positions, Redis", &inbox.Inbox{Positions: inbox.PositionsOnly, Hints: hints}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			pool := benchPool(b)
			ctx := context.Background()
			n := 0
			effect := func(ctx context.Context, tx pgx.Tx, _ *inbox.Claim) error {
				_, err := tx.Exec(ctx, "UPDATE stock SET n = n + 1 WHERE sku = $1", n%1000)
				return err
			}
			once := func() {
				if c.box == nil {
					must(b, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return effect(ctx, tx, nil) }))
					return
				}
				box := *c.box
				box.Consumer = "bench " + c.name
				_, err := box.Once(ctx, pool, inbox.Event{ID: fmt.Sprintf("8f14e45f-ceea-467f-a0e6-%012d", n), Topic: "outbox.event.order", Partition: n % 3,
					Source: "0a1b2c3d", LSN: fmt.Sprintf("16/%08X", n), Seq: 0}, effect)
				must(b, err)
			}
			if c.seen {
				for n = 1; n <= b.N; n++ {
					once()
				}
			}
			before := wal(b, pool)
			b.ResetTimer()
			for n = 1; n <= b.N; n++ {
				once()
			}
			b.StopTimer()
			b.ReportMetric(float64(wal(b, pool)-before)/float64(b.N), "WAL-B/op")
		})
	}
}

// benchPool is one connection, to a table with rows to change. A checkpoint first, so that the full pages after it are every case's.
func benchPool(b *testing.B) *pgxpool.Pool {
	pool := newPool(b)
	config := pool.Config()
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	one, err := pgxpool.NewWithConfig(context.Background(), config)
	must(b, err)
	b.Cleanup(one.Close)
	_, err = one.Exec(context.Background(), "CREATE TABLE stock (sku int PRIMARY KEY, n int) WITH (fillfactor = 50)")
	must(b, err)
	_, err = one.Exec(context.Background(), "INSERT INTO stock SELECT i, 0 FROM generate_series(0, 999) i")
	must(b, err)
	_, err = one.Exec(context.Background(), "VACUUM stock")
	must(b, err)
	_, err = one.Exec(context.Background(), "UPDATE stock SET n = n") // full pages are written by now
	must(b, err)
	return one
}

func wal(b *testing.B, pool *pgxpool.Pool) (bytes int64) {
	must(b, pool.QueryRow(context.Background(), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&bytes))
	return bytes
}
