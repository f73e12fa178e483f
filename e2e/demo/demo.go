// Package demo is a small shop whose events walrelay carries while things break: a real
// Postgres, a real Kafka (or a stand-in, where there is none), the binary as it is
// shipped, and at the end the checker's word on what arrived.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
)

const (
	database  = "shop"
	slot      = "walrelay"
	truthSlot = "truth"

	// Small buffers, so that the two batches that a crash may repeat are few events. A
	// batch that is handed to Kafka is a quarter of the buffer.
	bufferBytes = 256 << 10
	batchBytes  = bufferBytes / 4
	priceList   = 10_000
)

// demo is what an act can use.
type demo struct {
	view    *view
	pg      *stack.Postgres
	kafka   broker
	fake    error // why there is no real Kafka
	relay   *harness.Relay
	kafkaUp atomic.Bool

	truth    checker.Truth
	sampler  *checker.Sampler
	consumer *consumer
	shop     *shop
	gauges   *gauges

	crash tally // what had arrived when the relay was through with its restart
}

// Run plays the demo and returns nil only if nothing was lost. It ends what it started.
func Run(ctx context.Context, out *os.File) (err error) {
	d := &demo{view: newView(out)}
	defer func() { err = errors.Join(err, d.close()) }()
	up, cancel := context.WithTimeout(ctx, 10*time.Minute) // the first start fetches
	defer cancel()
	if err := d.start(up); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeoutCause(ctx, 170*time.Second, errors.New("the demo takes too long"))
	defer cancel()
	for _, act := range []func(context.Context) error{d.setUp, d.open, d.killRelay, d.killBroker, d.crashPostgres, d.prove} {
		if err := act(ctx); err != nil {
			return d.explain(ctx, err)
		}
	}
	return nil
}

// explain adds the relay's last words to an error that is not the user's wish.
func (d *demo) explain(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) || d.relay == nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(d.relay.Log()), "\n")
	return fmt.Errorf("%w\nlast of the relay's log:\n%s", err, strings.Join(lines[max(0, len(lines)-8):], "\n"))
}

// start brings up both servers.
func (d *demo) start(ctx context.Context) error {
	cache, err := stack.CacheDir()
	if err != nil {
		return err
	}
	d.view.title("Postgres and Kafka")
	d.view.say("  starting, in temporary folders, without containers; the first time they are fetched into\n  %s, which takes a minute", cache)
	defer d.waiting()()
	var wg sync.WaitGroup
	var pgErr, kafkaErr error
	began := time.Now()
	wg.Go(func() { d.pg, pgErr = stack.StartPostgres(ctx, stack.PostgresOptions{}) })
	wg.Go(func() { d.kafka, d.fake, kafkaErr = startBroker(ctx) })
	wg.Wait()
	if err := errors.Join(pgErr, kafkaErr); err != nil {
		return err
	}
	d.kafkaUp.Store(true)
	d.view.say("  Postgres %s and %s are up after %s", d.pg.Version, d.kafkaName(), duration(time.Since(began)))
	if d.fake != nil {
		reason := strings.SplitN(strings.ReplaceAll(d.fake.Error(), "stack: ", ""), "\n", 3) // a tool's output follows
		d.view.say("%s", d.view.paint(yellow, "  There is no real Kafka here. In its place stands a FAKE broker inside this program (franz-go's kfake).\n  Reason: "+
			strings.Join(reason[:min(2, len(reason))], "\n          ")))
	}
	return nil
}

// waiting shows that time goes by, until the function that it returns is called.
func (d *demo) waiting() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.view.status(d.view.paint(dim, fmt.Sprintf("  … %d s", int(time.Since(began).Seconds()))))
			case <-done:
				d.view.status()
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func (d *demo) kafkaName() string {
	if d.fake != nil {
		return "fake Kafka"
	}
	return "Kafka"
}

// close ends everything, also after half a start.
func (d *demo) close() error {
	if d.gauges != nil {
		d.gauges.close()
	}
	d.view.close()
	if d.shop != nil {
		d.shop.close()
	}
	if d.sampler != nil {
		d.sampler.Stop()
	}
	if d.consumer != nil {
		d.consumer.close()
	}
	var errs []error
	if d.relay != nil {
		errs = append(errs, d.relay.Close())
	}
	if d.kafka != nil {
		errs = append(errs, d.kafka.Close())
	}
	if d.pg != nil {
		errs = append(errs, d.pg.Close())
	}
	return errors.Join(errs...)
}

func (d *demo) exec(ctx context.Context, db, sql string) error {
	conn, err := pgx.Connect(ctx, d.pg.Direct(db))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// pass lets time go by.
func (d *demo) pass(ctx context.Context, t time.Duration) error {
	select {
	case <-time.After(t):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await polls until ok.
func (d *demo) await(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("demo: %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}
