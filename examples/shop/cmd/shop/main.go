// shop runs one of the shop's services, or shows both.
//
//	shop order     the order service, with customers
//	shop product   the product service
//	shop view      what is in the books, every second
//
// The servers come from the environment: SHOP_POSTGRES_URL, SHOP_KAFKA_BROKERS, SHOP_REDIS (optional), SHOP_PAUSE (between two
// customers; 0 = no customers); for view SHOP_ORDER_URL and SHOP_PRODUCT_URL.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/walrelay/walrelay/examples/shop"
	"github.com/walrelay/walrelay/inbox/redishint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, strings.Join(os.Args[1:], " ")); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what string) error {
	cfg := shop.Config{
		Postgres: os.Getenv("SHOP_POSTGRES_URL"), Brokers: strings.Split(os.Getenv("SHOP_KAFKA_BROKERS"), ","),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if addr := os.Getenv("SHOP_REDIS"); addr != "" {
		hints := redishint.Open(redis.UniversalOptions{Addrs: []string{addr}})
		defer hints.Close()
		cfg.Hints = hints
	}
	switch what {
	case "order":
		return serve(ctx, shop.NewOrder(cfg), true)
	case "product":
		return serve(ctx, shop.NewProduct(cfg), false)
	case "view":
		return view(ctx)
	}
	return fmt.Errorf("%q: want order, product or view", what)
}

func serve(ctx context.Context, service *shop.Service, customers bool) error {
	pool, err := service.Open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	pause, err := time.ParseDuration(cmp.Or(os.Getenv("SHOP_PAUSE"), "100ms"))
	if err != nil {
		return fmt.Errorf("SHOP_PAUSE: %w", err)
	}
	if customers && pause > 0 {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			shop.Trade(ctx, pool, uint64(time.Now().UnixNano()), pause)
		}()
		defer func() { <-gone }()
	}
	return service.Consume(ctx, pool)
}

func view(ctx context.Context) error {
	order, err := pgxpool.New(ctx, os.Getenv("SHOP_ORDER_URL"))
	if err != nil {
		return err
	}
	defer order.Close()
	product, err := pgxpool.New(ctx, os.Getenv("SHOP_PRODUCT_URL"))
	if err != nil {
		return err
	}
	defer product.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		books, err := shop.Audit(ctx, order, product)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Println(err)
		} else {
			fmt.Printf("%s  orders %v  under way %d  events applied %d  parked %d\n", time.Now().Format(time.TimeOnly), books.Orders, books.Open, books.Claimed, books.Parked)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
