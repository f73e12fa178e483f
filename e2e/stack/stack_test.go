package stack

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestPostgresOutlivesItsRestarts(t *testing.T) {
	for _, version := range []string{"15", "16", "17", "18"} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			begin := time.Now()
			p, err := StartPostgres(ctx, PostgresOptions{Version: version})
			if err != nil {
				t.Fatal(err)
			}
			t.Log("started after", time.Since(begin))
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			execute(t, p, "create table t (n int); insert into t values (1)")
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := p.Start(ctx); err != nil {
				t.Fatal(err)
			}
			for _, mode := range []Mode{Immediate, Fast, Smart} {
				if err := p.Stop(ctx, mode); err != nil {
					t.Fatal(err)
				}
				if err := p.Start(ctx); err != nil {
					t.Fatal(err)
				}
			}
			execute(t, p, "select n from t")
		})
	}
}

func execute(t *testing.T, p *Postgres, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.Direct("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestKafka(t *testing.T) {
	for _, n := range []int{1, 3} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		begin := time.Now()
		k, err := StartKafka(ctx, KafkaOptions{Brokers: n})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("started after", time.Since(begin))
		if err := k.CreateTopics(ctx, 4, nil, "a", "b"); err != nil {
			t.Error(err)
		}
		t.Log("topics after", time.Since(begin))
		begin = time.Now()
		if err := k.Broker(n).Kill(); err != nil {
			t.Error(err)
		}
		if err := k.Broker(n).Start(ctx); err != nil {
			t.Error(err)
		}
		t.Log("restarted after", time.Since(begin))
		begin = time.Now()
		if err := k.Broker(n).Stop(ctx); err != nil {
			t.Error(err)
		}
		t.Log("stopped after", time.Since(begin))
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
}
