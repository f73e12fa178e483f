package shop

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Books is what both databases say, at rest or not.
type Books struct {
	Orders   map[string]int // by state
	Open     int            // orders that are not in a final state
	Lost     []string       // goods that are not where they should be, and moves that were made twice
	Parked   int            // commands that the services gave up on
	Claimed  int            // events applied
	Balances int            // kinds of goods looked at
}

// Audit compares what was bought and reserved with what is in stock. It is meaningful when nothing is under way.
func Audit(ctx context.Context, order, product *pgxpool.Pool) (Books, error) {
	b := Books{Orders: map[string]int{}}
	bought, wanted, err := b.orders(ctx, order)
	if err != nil {
		return b, fmt.Errorf("audit of orders: %w", err)
	}
	if err := b.products(ctx, product, bought, wanted); err != nil {
		return b, fmt.Errorf("audit of products: %w", err)
	}
	return b, nil
}

func (b *Books) orders(ctx context.Context, pool *pgxpool.Pool) (bought map[string]int, state map[string]string, err error) {
	bought, state = map[string]int{}, map[string]string{}
	var key, text string
	var n int
	rows, _ := pool.Query(ctx, "SELECT sku, sum(quantity)::int FROM purchase GROUP BY sku")
	if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error { bought[key] = n; return nil }); err != nil {
		return nil, nil, err
	}
	rows, _ = pool.Query(ctx, "SELECT id, state FROM orders")
	_, err = pgx.ForEachRow(rows, []any{&key, &text}, func() error {
		state[key] = text
		b.Orders[text]++
		if text == "PLACED" || text == "CANCELLING" {
			b.Open++
		}
		return nil
	})
	if err == nil {
		err = b.inbox(ctx, pool)
	}
	return bought, state, err
}

func (b *Books) products(ctx context.Context, pool *pgxpool.Pool, bought map[string]int, wanted map[string]string) error {
	var sku, order, state string
	var n, releases int
	due := bought
	rows, _ := pool.Query(ctx, "SELECT order_id, sku, quantity, state, releases FROM reservation")
	_, err := pgx.ForEachRow(rows, []any{&order, &sku, &n, &state, &releases}, func() error {
		want := map[string]string{"CONFIRMED": "RESERVED", "REJECTED": "REFUSED", "CANCELLED": "RELEASED or REFUSED"}[wanted[order]]
		if want != "" && !strings.Contains(want, state) || releases > 1 {
			b.Lost = append(b.Lost, fmt.Sprintf("order %s is %s, its reservation %s, released %d times", order, wanted[order], state, releases))
		}
		if state == "RESERVED" {
			due[sku] -= n
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows, _ = pool.Query(ctx, "SELECT sku, quantity FROM stock")
	if _, err := pgx.ForEachRow(rows, []any{&sku, &n}, func() error { due[sku] -= n; b.Balances++; return nil }); err != nil {
		return err
	}
	for sku, n := range due {
		if n != 0 {
			b.Lost = append(b.Lost, fmt.Sprintf("%s: %d pieces missing", sku, n))
		}
	}
	return b.inbox(ctx, pool)
}

func (b *Books) inbox(ctx context.Context, pool *pgxpool.Pool) error {
	var claimed, parked int
	err := pool.QueryRow(ctx, "SELECT count(*) FILTER (WHERE parked_at IS NULL), count(parked_at) FROM consumed_event").Scan(&claimed, &parked)
	b.Claimed, b.Parked = b.Claimed+claimed, b.Parked+parked
	return err
}
