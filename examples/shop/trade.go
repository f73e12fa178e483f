package shop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SKUs is how many kinds of goods there are.
const SKUs = 20

// Trade is customers and the purchasing department: something happens every pause, until ctx ends. What fails for want
// of a database is a customer who went away.
func Trade(ctx context.Context, pool *pgxpool.Pool, seed uint64, pause time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 1))
	run := fmt.Sprintf("%x-%d", seed, time.Now().UnixNano())
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var orders []string
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		id, sku := fmt.Sprintf("%s-%d", run, n), fmt.Sprint("sku-", rng.IntN(SKUs))
		dice, quantity := rng.IntN(100), 1+rng.IntN(4)
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			switch {
			case dice < 10 || n < SKUs:
				return Purchase(ctx, tx, id, sku, 5*quantity)
			case dice < 11:
				return CancelUnknown(ctx, tx, "unknown-"+id)
			case dice < 35 && len(orders) > 0:
				return Cancel(ctx, tx, orders[rng.IntN(len(orders))])
			case dice < 50:
				return Place(ctx, tx, id, sku, 1, 1)
			}
			return Place(ctx, tx, id, sku, quantity, 2)
		})
		if err == nil && dice >= 35 && n >= SKUs {
			orders = append(orders, id)
			orders = orders[max(0, len(orders)-50):]
		}
	}
}
