// Command stack brings up a real Postgres and a real Kafka on this machine, without
// containers, prints the environment that walrelay needs to use them, and takes them
// down again on Ctrl-C.
//
//	go run ./cmd/stack -postgres 17 -brokers 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/walrelay/walrelay/e2e/stack"
)

func main() {
	postgres := flag.String("postgres", "", "major `version` of Postgres, 15 to 18 (default: an installed one, else 18)")
	brokers := flag.Int("brokers", 1, "Kafka `brokers`, 1 or 3")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *postgres, *brokers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version string, brokers int) (err error) {
	up, cancel := context.WithTimeout(ctx, 5*time.Minute) // the first start fetches
	defer cancel()
	pg, err := stack.StartPostgres(up, stack.PostgresOptions{Version: version})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	kafka, err := stack.StartKafka(up, stack.KafkaOptions{Brokers: brokers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kafka.Close()) }()
	fmt.Printf("# Postgres %s and %d Kafka broker(s) are up, until Ctrl-C.\nexport WALRELAY_POSTGRES_URL='%s'\nexport WALRELAY_KAFKA_BROKERS='%s'\n",
		pg.Version, brokers, pg.URL("postgres"), kafka.Bootstrap())
	<-ctx.Done()
	return nil
}
