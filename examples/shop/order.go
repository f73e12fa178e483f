package shop

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
)

type placed struct {
	OrderID  string `json:"order_id"`
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"` // since v2
}

type aboutOrder struct {
	OrderID string `json:"order_id"`
}

type bought struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// Place takes an order. Old writers know version 1, in which every order is about one piece.
func Place(ctx context.Context, tx pgx.Tx, id, sku string, quantity, version int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id, sku, quantity) VALUES ($1, $2, $3)", id, sku, quantity); err != nil {
		return err
	}
	kind := orderPlacedV2
	if version == 1 {
		kind = orderPlacedV1
	}
	return publish(ctx, tx, "", "order", id, kind, placed{id, sku, quantity})
}

// Cancel asks for the goods back. An order is cancelled when they are.
func Cancel(ctx context.Context, tx pgx.Tx, id string) error {
	tag, err := tx.Exec(ctx, "UPDATE orders SET state = 'CANCELLING' WHERE id = $1 AND state IN ('PLACED', 'CONFIRMED')", id)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return publish(ctx, tx, "", "order", id, orderCancelledV1, aboutOrder{id})
}

// CancelUnknown is a mistake of ours: a command that nobody can obey.
func CancelUnknown(ctx context.Context, tx pgx.Tx, id string) error {
	return publish(ctx, tx, "", "order", id, orderCancelledV1, aboutOrder{id})
}

// Purchase has goods delivered to the warehouse.
func Purchase(ctx context.Context, tx pgx.Tx, id, sku string, quantity int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO purchase VALUES ($1, $2, $3)", id, sku, quantity); err != nil {
		return err
	}
	return publish(ctx, tx, "", "order", sku, stockOrderedV1, bought{sku, quantity})
}

// orderEffect is what the warehouse's answers do to an order. An answer may find the order further than it was when it
// was asked about; then it moves nothing.
func orderEffect(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error {
	var from []string
	var to string
	switch string(m.Header("event-type")) {
	case reservedV1:
		from, to = []string{"PLACED"}, "CONFIRMED"
	case refusedV1:
		from, to = []string{"PLACED"}, "REJECTED"
	case releasedV1:
		from, to = []string{"CANCELLING"}, "CANCELLED"
	default:
		return unknown(m)
	}
	var about aboutOrder
	if err := decode(m, &about); err != nil {
		return err
	}
	var state string
	err := tx.QueryRow(ctx, "SELECT state FROM orders WHERE id = $1 FOR UPDATE", about.OrderID).Scan(&state)
	if err != nil {
		return fmt.Errorf("order %q: %w", about.OrderID, err)
	}
	_, err = tx.Exec(ctx, "UPDATE orders SET state = $2 WHERE id = $1 AND state = ANY ($3)", about.OrderID, to, from)
	return err
}
