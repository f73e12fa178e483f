package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/checker"
)

// prove closes the shop, waits until the slot confirms everything, stops the relay, and
// has the checker compare what Postgres committed with what Kafka holds.
func (d *demo) prove(ctx context.Context) error {
	d.view.title("The proof")
	if err := errors.Join(d.shop.close(), d.confirmed(ctx)); err != nil {
		return err
	}
	code, err := d.relay.Stop(ctx)
	if err != nil {
		return err
	}
	d.gauges.close()
	d.view.close()
	d.view.say("  SIGTERM: walrelay delivers what it holds, confirms it, and exits with %d", code)
	samples := d.sampler.Stop()
	truth, err := d.truth.Read(ctx)
	if err != nil {
		return err
	}
	observed, err := checker.Topics{Brokers: d.kafka.Addr(), Names: topics}.Read(ctx)
	if err != nil {
		return err
	}
	report := checker.Compare(truth, observed, samples)
	if err := d.await(ctx, "the consumer reads to the end", func() bool { return d.consumer.counts().records >= report.Records }); err != nil {
		return err
	}
	p := proof{report: report, exit: code, crash: d.crash, end: d.consumer.counts(), phantoms: d.consumer.has(d.shop.takenBack), takenBack: len(d.shop.takenBack)}
	p.show(d.view)
	if d.fake != nil {
		d.view.say("%s", d.view.paint(yellow, "  (Kafka was the in-process fake; with Java 17 and Maven installed this runs against Apache Kafka.)"))
	}
	return p.err()
}

// confirmed returns when the slot's confirmed LSN is past all that is committed.
func (d *demo) confirmed(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.truth.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var end string
	if err := conn.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'demo', '')::text").Scan(&end); err != nil {
		return err
	}
	return d.await(ctx, "the slot does not confirm "+end, func() (ok bool) {
		err = conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", end, slot).Scan(&ok)
		return ok || err != nil
	})
}

// proof is what the verdict rests on.
type proof struct {
	report     *checker.Report
	exit       int   // of the relay
	crash, end tally // the consumer's, behind the kill -9 and at the end
	phantoms   int   // events that were taken back, and arrived
	takenBack  int
}

// allowed is two batches; a row that is over its batch's end belongs to it.
func (p proof) allowed() int64 { return 2 * (batchBytes + p.end.largest) }

// err is nil if everything holds that the demo claims.
func (p proof) err() error {
	var errs []error
	claim := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("demo: "+format, args...))
		}
	}
	errs = append(errs, p.report.Err())
	claim(p.report.Committed > priceList && p.report.Samples > 0 && p.takenBack > 0, "too little happened: %s, %d taken back", p.report, p.takenBack)
	claim(p.phantoms == 0, "%d events from rolled-back transactions arrived", p.phantoms)
	claim(p.exit == 0, "the relay's graceful stop: exit %d", p.exit)
	claim(p.end.repeats == p.report.Repeats, "the consumer saw %d duplicates, the checker %d", p.end.repeats, p.report.Repeats)
	claim(p.end.repeatBytes <= p.allowed(), "duplicates of %d bytes, two batches are %d", p.end.repeatBytes, p.allowed())
	claim(p.end.repeats == p.crash.repeats, "%d duplicates without a kill -9 of the relay", p.end.repeats-p.crash.repeats)
	return errors.Join(errs...)
}

func (p proof) show(v *view) {
	r, colour := p.report, green
	if p.err() != nil {
		colour = red
	}
	v.say("\n  %s\n", v.paint(colour, fmt.Sprintf("%s committed, %s delivered, %s lost, %s from rolled-back transactions, %s duplicates",
		number(r.Committed), number(r.Delivered), number(r.Lost.Count), number(max(p.phantoms, r.Phantom.Count)), number(r.Repeats))))
	row := func(name, format string, args ...any) { v.say("  %-12s %s", name, fmt.Sprintf(format, args...)) }
	row("committed", "by a second replication slot, decoded by code that shares nothing with walrelay")
	row("rolled back", "%s events were taken back by ROLLBACK or to a savepoint, %d of them arrived", number(p.takenBack), p.phantoms)
	row("duplicates", "after kill -9 only, at most two batches: %s of %s; none from the restarts of Kafka and Postgres: %s", size(p.end.repeatBytes), size(p.allowed()), yes(p.end.repeats == p.crash.repeats))
	row("content", "key, value, headers, timestamp and partition as written, in commit order on each partition: %s",
		yes(r.WrongKey.Count+r.WrongValue.Count+r.WrongHeaders.Count+r.WrongTimestamp.Count+r.WrongPlace.Count+r.WrongPosition.Count+r.Reordered.Count+r.BrokenRun.Count == 0))
	row("slot", "in %s looks, confirmed LSN never ahead of what Kafka had: %s", number(r.Samples), yes(r.ConfirmedAhead.Count == 0))
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}
