// Package shop is two services that keep a promise between them, each with a database, an outbox, a relay and an inbox of its own:
// orders are placed, confirmed, rejected and cancelled here, goods are reserved and released there. It is small on purpose, and shows
//
//   - the business change, the claim of the event that asked for it, and the events that follow from it, in one transaction;
//   - a state machine for each reservation, which moves once whatever arrives how often;
//   - an answer with a deterministic id, inserted if it is not there: product-unreservation-completed:ORDER;
//   - payloads with versions, and a consumer that reads two of them.
//
// Services and relays may be killed at any time.
package shop

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walrelay/walrelay/inbox"
	"github.com/walrelay/walrelay/inbox/kafkaconsumer"
	schema "github.com/walrelay/walrelay/sql"
)

// Topics are what the relays publish to: outbox.event.{aggregate_type}.
const (
	OrderTopic   = "outbox.event.order"
	ProductTopic = "outbox.event.product"
)

// Event types. The number is the payload's version.
const (
	orderPlacedV1    = "OrderPlaced.v1" // one piece; no longer written, still read
	orderPlacedV2    = "OrderPlaced.v2"
	orderCancelledV1 = "OrderCancelled.v1"
	stockOrderedV1   = "StockOrdered.v1"

	reservedV1 = "ProductReserved.v1"
	refusedV1  = "ReservationRefused.v1"
	releasedV1 = "ProductUnreservationCompleted.v1"
)

// Config says where a service finds its servers.
type Config struct {
	Postgres string
	Brokers  []string
	Hints    inbox.Hints // nil = none
	Log      *slog.Logger
}

// Service is one of the two.
type Service struct {
	cfg    Config
	name   string
	reads  string // topic
	schema string
	mode   inbox.Positions
	effect func(context.Context, pgx.Tx, *kafkaconsumer.Message) error
}

//go:embed order.sql
var orderSchema string

//go:embed product.sql
var productSchema string

// NewOrder is the order service.
func NewOrder(cfg Config) *Service {
	return &Service{cfg: cfg, name: "order", reads: ProductTopic, schema: orderSchema, mode: inbox.IDsOnly, effect: orderEffect}
}

// NewProduct is the product service.
func NewProduct(cfg Config) *Service {
	return &Service{cfg: cfg, name: "product", reads: OrderTopic, schema: productSchema, mode: inbox.PositionsAndIDs, effect: productEffect}
}

// Open connects, and creates the service's tables unless they are there.
func (s *Service) Open(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, s.cfg.Postgres)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if _, err := pool.Exec(ctx, schema.Inbox+s.schema); err != nil {
		pool.Close()
		return nil, fmt.Errorf("%s: create tables: %w", s.name, err)
	}
	return pool, nil
}

// Consume applies what the other service publishes, until ctx ends.
func (s *Service) Consume(ctx context.Context, pool *pgxpool.Pool) error {
	consumer, err := kafkaconsumer.New(kafkaconsumer.Config{
		Brokers: s.cfg.Brokers, Group: "shop-" + s.name, Topics: []string{s.reads},
		DB: pool, Inbox: inbox.Inbox{Consumer: s.name, Positions: s.mode, Hints: s.cfg.Hints}, Handle: s.effect,
		MinBackoff: 20 * time.Millisecond, MaxBackoff: time.Second, Session: 6 * time.Second, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// publish inserts an event into the outbox. With an id it is inserted once, whatever leads to it how often.
func publish(ctx context.Context, tx pgx.Tx, id, aggregate, key, kind string, payload any) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload)
		VALUES (coalesce(nullif($1, ''), gen_random_uuid()::text), $2, $3, $4, $5) ON CONFLICT (event_id) DO NOTHING`, id, aggregate, key, kind, body)
	return err
}

// decode reads a payload; what cannot be read never can.
func decode(m *kafkaconsumer.Message, into any) error {
	if err := json.Unmarshal(m.Value, into); err != nil {
		return kafkaconsumer.Permanent(fmt.Errorf("%s: %w", m.Header("event-type"), err))
	}
	return nil
}

func unknown(m *kafkaconsumer.Message) error {
	return kafkaconsumer.Permanent(fmt.Errorf("event type %q is not known here", m.Header("event-type")))
}
