package shop

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
)

// productEffect is what orders do to the warehouse.
func productEffect(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
	switch kind := string(m.Header("event-type")); kind {
	case orderPlacedV1, orderPlacedV2:
		var p placed
		if err := decode(m, &p); err != nil {
			return err
		}
		if kind == orderPlacedV1 {
			p.Quantity = 1
		}
		return reserve(ctx, tx, p)
	case orderCancelledV1:
		var about aboutOrder
		if err := decode(m, &about); err != nil {
			return err
		}
		return release(ctx, tx, about.OrderID)
	case stockOrderedV1:
		var b bought
		if err := decode(m, &b); err != nil {
			return err
		}
		return receive(ctx, tx, b)
	}
	return unknown(m)
}

// receive adds goods. Nothing in the data tells a second delivery from a repeated message: only the inbox does.
func receive(ctx context.Context, tx pgx.Tx, b bought) error {
	_, err := tx.Exec(ctx, "INSERT INTO stock VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET quantity = stock.quantity + excluded.quantity", b.SKU, b.Quantity)
	return err
}

// reserve takes goods out of the stock, if there are enough.
func reserve(ctx context.Context, tx pgx.Tx, p placed) error {
	tag, err := tx.Exec(ctx, "UPDATE stock SET quantity = quantity - $2 WHERE sku = $1 AND quantity >= $2", p.SKU, p.Quantity)
	if err != nil {
		return err
	}
	state, answer := "RESERVED", reservedV1
	if tag.RowsAffected() == 0 {
		state, answer = "REFUSED", refusedV1
	}
	if _, err := tx.Exec(ctx, "INSERT INTO reservation (order_id, sku, quantity, state) VALUES ($1, $2, $3, $4)", p.OrderID, p.SKU, p.Quantity, state); err != nil {
		return err // an order that has a reservation gets no second one
	}
	return publish(ctx, tx, "", "product", p.OrderID, answer, aboutOrder{p.OrderID})
}

// errIllegal is returned for a move that the state machine does not have.
var errIllegal = errors.New("illegal move")

// release puts the goods back, once. The answer has an id of its own making: an order is released once, so there is one such event,
// whoever asks how often.
func release(ctx context.Context, tx pgx.Tx, order string) error {
	var sku, state string
	var quantity int
	err := tx.QueryRow(ctx, "SELECT sku, quantity, state FROM reservation WHERE order_id = $1 FOR UPDATE", order).Scan(&sku, &quantity, &state)
	if err != nil {
		return fmt.Errorf("reservation of order %q: %w", order, err) // not found: perhaps not yet, so it is tried again, and parked
	}
	switch state {
	case "RESERVED":
		if _, err := tx.Exec(ctx, "UPDATE reservation SET state = 'RELEASED', releases = releases + 1 WHERE order_id = $1", order); err != nil {
			return err
		}
		if err := receive(ctx, tx, bought{sku, quantity}); err != nil {
			return err
		}
	case "RELEASED", "REFUSED": // there is nothing to put back; the answer is the same
	default:
		return kafkaconsumer.Permanent(fmt.Errorf("reservation of order %q: %s → RELEASED: %w", order, state, errIllegal))
	}
	return publish(ctx, tx, "product-unreservation-completed:"+order, "product", order, releasedV1, aboutOrder{order})
}
