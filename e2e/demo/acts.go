package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
)

// setUp is what an operator does first; and the checker, which has to see every row.
func (d *demo) setUp(ctx context.Context) (err error) {
	d.view.title("Setup")
	if err := d.exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	d.relay, err = harness.New(harness.Config{Postgres: d.pg.URL(database), Brokers: d.kafka.Addr(), Slot: slot,
		Args: []string{"--buffer-bytes", fmt.Sprint(bufferBytes), "--batch-bytes", fmt.Sprint(batchBytes)}})
	if err != nil {
		return err
	}
	d.command("walrelay setup --create-table --role walrelay")
	r, err := d.relay.Command(ctx, "setup", "--create-table", "--role", "walrelay")
	if err != nil {
		return err
	}
	d.view.say("  %s", strings.ReplaceAll(strings.TrimSpace(r.Stdout+r.Stderr), "\n", "\n  "))
	if r.Code != 0 {
		return fmt.Errorf("demo: setup: exit %d", r.Code)
	}
	// From here on the relay has no more privileges than it needs.
	d.relay.Postgres = d.pg.UserURL("walrelay", "demo", database)
	d.truth = checker.Truth{URL: d.pg.Direct(database), Table: "outbox_event", Slot: truthSlot}
	if err := errors.Join(d.exec(ctx, database, "ALTER ROLE walrelay PASSWORD 'demo';"+shopSchema), d.truth.Create(ctx)); err != nil {
		return err
	}
	d.sampler, err = checker.StartSampler(d.truth.URL, slot, d.kafka.Addr(), topics)
	return err
}

func (d *demo) command(line string) { d.view.say("  %s", d.view.paint(bold, "$ "+line)) }

// runRelay starts it, and returns when it is ready.
func (d *demo) runRelay(ctx context.Context) error {
	d.command("walrelay run")
	began := time.Now()
	if err := d.relay.Start(); err != nil {
		return err
	}
	if err := d.relay.AwaitReady(ctx); err != nil {
		return err
	}
	d.view.say("  /readyz is 200 after %s", duration(time.Since(began)))
	return d.pass(ctx, 300*time.Millisecond) // its log goes first
}

// open lets the shop take orders for a while.
func (d *demo) open(ctx context.Context) (err error) {
	d.view.title("A shop takes orders: business row and event in one transaction, some rolled back")
	if d.consumer, err = startConsumer(d.kafka.Addr(), d.view); err != nil {
		return err
	}
	d.shop = newShop(d.pg.Direct(database))
	d.gauges = d.watch()
	if err := d.runRelay(ctx); err != nil {
		return err
	}
	d.view.legend()
	d.shop.open()
	return d.pass(ctx, 6*time.Second)
}

// killRelay kills the relay in the middle of a transaction, and starts it again.
func (d *demo) killRelay(ctx context.Context) error {
	d.view.title("kill -9 of walrelay, in the middle of a transaction of %s events", number(priceList))
	imported := make(chan error, 1)
	go func() { imported <- d.shop.importPrices(ctx, priceList) }()
	err := d.await(ctx, "the first prices", func() bool { return d.consumer.counts().prices > priceList/4 })
	if err != nil {
		return err
	}
	pid := d.relay.Pid()
	if err := errors.Join(d.relay.Kill(ctx), <-imported); err != nil {
		return err
	}
	d.command(fmt.Sprintf("kill -9 %d", pid))
	if err := d.pass(ctx, time.Second); err != nil { // until the consumer has all that is there
		return err
	}
	d.view.say("  the transaction is committed; %s of its %s events had reached Kafka. The shop goes on.", number(d.consumer.counts().prices), number(priceList))
	if err := d.pass(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	if err := errors.Join(d.runRelay(ctx), d.caughtUp(ctx)); err != nil {
		return err
	}
	d.crash = d.consumer.counts()
	d.view.say("  it went on where it was: %s of %s prices are there; %s events came twice (%s; two batches here are %s)",
		number(d.crash.prices), number(priceList), number(d.crash.repeats), size(d.crash.repeatBytes), size(2*batchBytes))
	return d.pass(ctx, 2*time.Second)
}

// caughtUp returns when everything that the shop has committed by now is delivered.
func (d *demo) caughtUp(ctx context.Context) error {
	goal, _ := d.shop.counts()
	return d.await(ctx, "events are missing", func() bool { return d.consumer.counts().events() >= goal })
}

// killBroker takes Kafka away for a few seconds.
func (d *demo) killBroker(ctx context.Context) error {
	what := "kill -9 of the Kafka broker"
	if d.fake != nil {
		what = "The fake broker closes"
	}
	d.view.title("%s; Postgres keeps what cannot be delivered", what)
	if err := d.kafka.Kill(); err != nil {
		return err
	}
	d.kafkaUp.Store(false)
	if err := d.pass(ctx, 3*time.Second); err != nil {
		return err
	}
	d.view.say("  the broker starts again")
	if err := d.kafka.Start(ctx); err != nil {
		return err
	}
	d.kafkaUp.Store(true)
	if err := errors.Join(d.relay.AwaitReady(ctx), d.caughtUp(ctx)); err != nil {
		return err
	}
	d.view.say("  caught up")
	return d.pass(ctx, 1500*time.Millisecond)
}

// crashPostgres restarts the other end as after a crash.
func (d *demo) crashPostgres(ctx context.Context) error {
	d.view.title("Postgres crashes (immediate shutdown) and recovers")
	if err := d.pg.Stop(ctx, stack.Immediate); err != nil {
		return err
	}
	if err := d.pass(ctx, time.Second); err != nil {
		return err
	}
	d.view.say("  the server starts again")
	if err := errors.Join(d.pg.Start(ctx), d.relay.AwaitReady(ctx), d.caughtUp(ctx)); err != nil {
		return err
	}
	d.view.say("  caught up")
	return d.pass(ctx, 2*time.Second)
}
