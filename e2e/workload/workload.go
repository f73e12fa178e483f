// Package workload writes into an outbox table the way services do, and worse: many
// writers, interleaved transactions, rollbacks, savepoints, COPY, rows deleted where
// they were inserted, every kind of payload. What a writer does follows from the seed;
// how the writers interleave does not.
package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Options say what is written. URL is required, the rest has a default.
type Options struct {
	URL     string
	Table   string   // "": public.outbox_event
	Types   []string // aggregate types, so as many topics; nil: "order"
	Keys    int      // distinct keys of each type; 0: 50
	Seed    uint64
	Writers int // 0: 4
	MaxRows int // of an ordinary transaction; 0: 8
	Large   int // bytes of the largest payload; 0: 100 kB

	Transactions int           // of each writer; 0: until Stop
	Every        time.Duration // pause between a writer's transactions; 0: none
	Single       bool          // single-row inserts only
}

// Stats counts what the writers know to have happened.
type Stats struct {
	Transactions int // committed
	Rows         int // committed, with those that were deleted again
	RolledBack   int // rows of rollbacks and savepoints
	Unknown      int // commits whose outcome a lost connection hides
}

func (s *Stats) add(t Stats) {
	s.Transactions += t.Transactions
	s.Rows += t.Rows
	s.RolledBack += t.RolledBack
	s.Unknown += t.Unknown
}

// Workload is a set of running writers.
type Workload struct {
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu    sync.Mutex
	stats Stats
	err   error
}

// Start starts the writers. They outlive restarts of the server and end with their
// bound, with Stop or with ctx.
func Start(ctx context.Context, o Options) *Workload {
	o = o.withDefaults()
	w := &Workload{stop: make(chan struct{})}
	for i := range o.Writers {
		w.wg.Go(func() {
			writer := newWriter(o, i)
			err := writer.run(ctx, w.stop)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.stats.add(writer.stats)
			w.err = errors.Join(w.err, err)
		})
	}
	return w
}

func (o Options) withDefaults() Options {
	if o.Table == "" {
		o.Table = "public.outbox_event"
	}
	if len(o.Types) == 0 {
		o.Types = []string{"order"}
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&o.Keys, 50}, {&o.Writers, 4}, {&o.MaxRows, 8}, {&o.Large, 100_000}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return o
}

// Wait returns when the bound is reached; the error is the first one that is not a lost
// connection.
func (w *Workload) Wait() (Stats, error) {
	w.wg.Wait()
	return w.stats, w.err
}

// Stop lets every writer finish its transaction, and waits.
func (w *Workload) Stop() (Stats, error) {
	w.once.Do(func() { close(w.stop) })
	return w.Wait()
}

// writer is one connection and its random numbers.
type writer struct {
	o     Options
	id    int
	rng   *rand.Rand
	conn  *pgx.Conn
	rows  int // made so far, for ids
	stats Stats
}

func newWriter(o Options, id int) *writer {
	return &writer{o: o, id: id, rng: rand.New(rand.NewPCG(o.Seed, uint64(id)))}
}

func (w *writer) run(ctx context.Context, stop <-chan struct{}) error {
	defer w.close()
	var pace <-chan time.Time
	if w.o.Every > 0 {
		tick := time.NewTicker(w.o.Every)
		defer tick.Stop()
		pace = tick.C
	}
	for n := 0; w.o.Transactions == 0 || n < w.o.Transactions; n++ {
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return nil
		default:
		}
		if err := w.transaction(ctx); err != nil {
			return fmt.Errorf("workload: writer %d: %w", w.id, err)
		}
		if pace != nil {
			select {
			case <-pace:
			case <-stop:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// transaction runs one; a lost connection or a server that restarts is no error.
func (w *writer) transaction(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if w.conn == nil {
		conn, err := pgx.Connect(ctx, w.o.URL)
		if err != nil {
			w.rest(ctx)
			return nil
		}
		w.conn = conn
	}
	err := w.act(ctx)
	if err == nil {
		return nil
	}
	w.close()
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code[:2] != "57" && pgErr.Code[:2] != "08" && pgErr.Code[:2] != "53" {
		return err
	}
	w.rest(ctx)
	return nil
}

// rest waits a moment before the next attempt at a server that is away.
func (w *writer) rest(ctx context.Context) {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *writer) close() {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w.conn.Close(ctx)
		w.conn = nil
	}
}
