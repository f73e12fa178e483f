package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const shopSchema = `
CREATE TABLE orders (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, customer text, cents int, state text DEFAULT 'placed');
CREATE TABLE prices (sku text PRIMARY KEY, cents int)`

const (
	tills = 3 // writers, so that transactions interleave
	pace  = 40 * time.Millisecond
)

// shop writes orders and, in the same transactions, their events.
type shop struct {
	url  string
	stop context.CancelFunc
	done sync.WaitGroup

	mu        sync.Mutex
	committed int             // events, as far as the shop knows: the answer to a commit can be lost
	takenBack map[string]bool // ids of events that ROLLBACK or a savepoint took back
	failed    error           // what is not to be expected
}

func newShop(url string) *shop {
	return &shop{url: url, stop: func() {}, takenBack: map[string]bool{}}
}

// open lets customers in.
func (s *shop) open() {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for n := range tills {
		s.done.Go(func() { s.till(ctx, rand.New(rand.NewPCG(2026, uint64(n)))) })
	}
}

// close ends the tills, each after its transaction.
func (s *shop) close() error {
	s.stop()
	s.done.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// till serves one customer after the other, on a connection of its own; when Postgres
// is away, it waits.
func (s *shop) till(ctx context.Context, rng *rand.Rand) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			conn.Close(context.Background())
		}
	}()
	for n := 0; ctx.Err() == nil; n++ {
		var err error
		if conn == nil || conn.IsClosed() {
			conn, err = pgx.Connect(ctx, s.url)
		}
		if err == nil {
			err = s.serve(conn, rng, n)
		}
		if err != nil && conn != nil && !conn.IsClosed() {
			s.fail(err)
			return
		}
		select {
		case <-time.After(pace/2 + rand.N(pace)):
		case <-ctx.Done():
		}
	}
}

func (s *shop) fail(err error) {
	s.mu.Lock()
	s.failed = errors.Join(s.failed, fmt.Errorf("demo: shop: %w", err))
	s.mu.Unlock()
}

// serve is one customer: one transaction. A transaction that has begun is not cut short.
func (s *shop) serve(conn *pgx.Conn, rng *rand.Rand, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // nothing after a commit
	c := &customer{ctx: ctx, tx: tx, request: fmt.Sprintf("cart-%d", rng.IntN(100_000)), cents: 100 + rng.IntN(20_000)}
	c.place()
	switch k := n % 8; {
	case k == 3:
		return s.takeBack(append(c.written, c.gone...), errors.Join(c.err, tx.Rollback(ctx)))
	case k == 5:
		c.pay(true)
	case k%2 == 0:
		c.pay(false)
	}
	if c.err != nil {
		return c.err
	}
	if err := tx.Commit(ctx); err != nil {
		return err // whether it is committed, the WAL will tell
	}
	s.mu.Lock()
	s.committed += len(c.written)
	s.mu.Unlock()
	return s.takeBack(c.gone, nil)
}

func (s *shop) takeBack(ids []string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.takenBack[id] = true
	}
	return err
}

// customer is what happens in one transaction; the first error stays.
type customer struct {
	ctx     context.Context
	tx      pgx.Tx
	request string
	order   int64
	cents   int

	written []string // ids of events
	gone    []string // those that a savepoint took back
	err     error
}

func (c *customer) place() {
	if c.err == nil {
		c.err = c.tx.QueryRow(c.ctx, "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id", c.request, c.cents).Scan(&c.order)
	}
	c.emit("order", "OrderPlaced")
}

// pay pays, after the attempt to redeem a voucher that turns out to be used up.
func (c *customer) pay(voucher bool) {
	if voucher && c.err == nil {
		outer, kept := c.tx, c.written
		if c.tx, c.err = outer.Begin(c.ctx); c.err != nil { // a savepoint
			return
		}
		c.emit("order", "VoucherRedeemed")
		c.gone, c.written = append(c.gone, c.written[len(kept):]...), kept
		c.err = errors.Join(c.err, c.tx.Rollback(c.ctx))
		c.tx = outer
	}
	if c.err == nil {
		_, c.err = c.tx.Exec(c.ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", c.order)
	}
	c.emit("order", "OrderPaid")
	c.emit("payment", "PaymentTaken")
}

// emit writes an event into the outbox.
func (c *customer) emit(aggregate, event string) {
	if c.err != nil {
		return
	}
	var id string
	c.err = c.tx.QueryRow(c.ctx, `INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, correlation_id)
		VALUES ($1, $2, $3, jsonb_build_object('order', $4::bigint, 'cents', $5::int), $6) RETURNING event_id`,
		aggregate, fmt.Sprintf("order-%d", c.order), event, c.order, c.cents, c.request).Scan(&id)
	c.written = append(c.written, id)
}

// importPrices changes n prices in one transaction, with an event for each.
func (s *shop) importPrices(ctx context.Context, n int) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, `WITH changed AS (
			INSERT INTO prices SELECT 'sku-' || i, 100 + i % 900 FROM generate_series(1, $1::int) i RETURNING sku, cents)
		INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, correlation_id)
		SELECT 'price', sku, 'PriceChanged', jsonb_build_object('sku', sku, 'cents', cents), 'spring-list' FROM changed`, n)
	if err != nil {
		return fmt.Errorf("demo: import prices: %w", err)
	}
	s.mu.Lock()
	s.committed += n
	s.mu.Unlock()
	return nil
}

// counts is what the shop knows of itself.
func (s *shop) counts() (committed, takenBack int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.committed, len(s.takenBack)
}
