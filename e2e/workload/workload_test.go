package workload_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

const table = `CREATE TABLE outbox_event (event_id text PRIMARY KEY DEFAULT gen_random_uuid()::text, aggregate_type text,
	aggregate_id text, event_type text, payload jsonb, topic text, headers jsonb, correlation_id text,
	idempotency_key text, created_at timestamptz DEFAULT clock_timestamp())`

// The writers' own count and the slot's must agree: neither the workload nor the truth
// may err, since every other test stands on them.
func TestTruthIsWhatTheWritersCommitted(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pg, err := stack.StartPostgres(ctx, stack.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close()
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, table); err != nil {
		t.Fatal(err)
	}
	truth := checker.Truth{URL: pg.URL("postgres"), Table: "outbox_event", Slot: "truth"}
	if err := truth.Create(ctx); err != nil {
		t.Fatal(err)
	}
	stats, err := workload.Start(ctx, workload.Options{URL: pg.URL("postgres"), Types: []string{"order", "payment"}, Seed: 1, Transactions: 60}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := workload.Copy(ctx, pg.URL("postgres"), "public.outbox_event", "order", "copied-", 500, 100); err != nil {
		t.Fatal(err)
	}
	if err := workload.Bulk(ctx, pg.URL("postgres"), "public.outbox_event", "order", "bulk-", 500, 100); err != nil {
		t.Fatal(err)
	}
	events, err := truth.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != stats.Rows+1000 || stats.RolledBack == 0 {
		t.Errorf("the truth has %d events; the writers say %+v, and 1000", len(events), stats)
	}
	for i := 1; i < len(events); i++ {
		a, b := events[i-1], events[i]
		if a.Commit > b.Commit || a.Commit == b.Commit && a.Seq+1 != b.Seq || a.Commit != b.Commit && b.Seq != 0 {
			t.Fatalf("order: %s/%d before %s/%d", a.Commit, a.Seq, b.Commit, b.Seq)
		}
	}
	t.Logf("%+v", stats)
}
