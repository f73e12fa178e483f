// Package e2e proves the guarantees on a real Postgres and a real Kafka, with the real
// binary, from the outside.
//
// The tests share one server of each kind, in databases, slots and topics of their own;
// those that break a Postgres for good bring up another. WALRELAY_LONG=1 runs the long
// versions, WALRELAY_SEED another seed, WALRELAY_E2E_POSTGRES another major version.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
)

var long = os.Getenv("WALRELAY_LONG") == "1"

// size is short in an ordinary run, long in a long one.
func size[T any](inShort, inLong T) T {
	if long {
		return inLong
	}
	return inShort
}

var seed = sync.OnceValue(func() uint64 {
	if s, err := strconv.ParseUint(os.Getenv("WALRELAY_SEED"), 10, 64); err == nil {
		return s
	}
	return 20260101
})

const startTimeout = 5 * time.Minute // the first start fetches

var sharedPostgres = sync.OnceValues(func() (*stack.Postgres, error) { return startPostgres(nil) })

// startPostgres starts a server of the version under test behind a proxy.
func startPostgres(config map[string]string) (*stack.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return stack.StartPostgres(ctx, stack.PostgresOptions{Version: os.Getenv("WALRELAY_E2E_POSTGRES"), Config: config, Proxy: true})
}

var sharedKafka = sync.OnceValues(func() (*stack.Kafka, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return stack.StartKafka(ctx, stack.KafkaOptions{Proxy: true})
})

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	if _, err := harness.Binary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer harness.RemoveBinary()
	defer func() {
		pg, _ := sharedPostgres()
		kafka, _ := sharedKafka()
		var errs []error
		if pg != nil {
			errs = append(errs, pg.Close())
		}
		if kafka != nil {
			errs = append(errs, kafka.Close())
		}
		if err := errors.Join(errs...); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}()
	return m.Run()
}

// newRand is the run's seed, one stream for each use.
func newRand(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed(), stream)) }
