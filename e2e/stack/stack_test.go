package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A killed server starts again on its data, a stopped one in every mode, a paused one
// goes on.
func TestPostgresRestarts(t *testing.T) {
	versions := []string{"15", "16", "17", "18"}
	if testing.Short() {
		versions = []string{""}
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			ctx := testContext(t)
			p, err := StartPostgres(ctx, PostgresOptions{Version: version})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := sql(ctx, p, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)"); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(p.Kill(), p.Start(ctx)); err != nil {
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
			p.Pause()
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			if err := sql(short, p, "SELECT"); err == nil {
				t.Error("a paused server answers")
			}
			p.Resume()
			if err := sql(ctx, p, "SELECT n FROM t"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A restored copy is the cluster as it was.
func TestPostgresFileCopy(t *testing.T) {
	ctx := testContext(t)
	p, err := StartPostgres(ctx, PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Copy(ctx); err == nil {
		t.Error("copied a running server")
	}
	if err := p.Stop(ctx, Fast); err != nil {
		t.Fatal(err)
	}
	copied, err := p.Copy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(p.Start(ctx), sql(ctx, p, "CREATE TABLE later ()"), p.Stop(ctx, Fast), p.Restore(ctx, copied), p.Start(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if err := sql(ctx, p, "CREATE TABLE later ()"); err != nil {
		t.Error("the copy knows what came after it:", err)
	}
}

func sql(ctx context.Context, p *Postgres, query string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, query)
	return err
}

func TestKafkaRestarts(t *testing.T) {
	sizes := []int{1, 3}
	if testing.Short() {
		sizes = []int{1}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ctx := testContext(t)
			k, err := StartKafka(ctx, KafkaOptions{Brokers: n, Proxy: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := k.Close(); err != nil {
					t.Error(err)
				}
			}()
			b := k.Broker(n)
			err = errors.Join(k.CreateTopics(ctx, 4, nil, "a", "b"), b.Kill(), b.Start(ctx), b.Stop(ctx), b.Start(ctx), k.CreateTopics(ctx, 1, nil, "c"))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestMain is also the program that dies with a server in its hands.
func TestMain(m *testing.M) {
	if os.Getenv("STACK_TEST_DIE") == "" {
		os.Exit(m.Run())
	}
	p, err := StartPostgres(context.Background(), PostgresOptions{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.scope.Dir)
	select {}
}

// Nothing outlives a kill -9 of the program that started it.
func TestNothingOutlivesItsProgram(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STACK_TEST_DIE=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	dir := lines.Text()
	if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); err != nil {
		t.Fatalf("no server in %q: %v", dir, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s is still there", dir)
		}
	}
}

// Programs that want the same artifact at once fetch it once; a failed attempt leaves
// nothing that looks like one.
func TestCacheIsFilledOnce(t *testing.T) {
	t.Setenv("WALRELAY_E2E_CACHE", t.TempDir())
	var fills atomic.Int32
	fail := func(context.Context, string) error { return errors.New("no network") }
	if _, err := cached(t.Context(), "thing", fail); err == nil {
		t.Error("the failure is hidden")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := cached(t.Context(), "thing", func(_ context.Context, dir string) error {
				fills.Add(1)
				return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
			})
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, "file"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("filled %d times", n)
	}
}
