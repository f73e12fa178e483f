package nemesis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/proc"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

const (
	name  = "nemesis" // of database, slot and publication
	table = "public.outbox_event"

	buffer = 256 << 10
	// batch is when the relay takes a batch of events to be full; leastEvent is the least
	// memory that an event takes in it.
	batch, leastEvent = buffer / 4, 200
)

// world is one run: servers that may be broken, relays, load, and the checker.
type world struct {
	ctx    context.Context
	plan   Plan
	pg     *stack.Postgres
	kafka  *stack.Kafka
	scope  *proc.Scope // of the checkpoint, which the relays share
	state  string      // its folder
	relays []*harness.Relay
	types  []string

	truth   checker.Truth
	sampler *checker.Sampler

	// The relays' lane's.
	expected []bool // to be running
	logged   []int  // bytes of each log when its relay was started

	mu     sync.Mutex
	report *Report
	points []time.Time // after which something may be repeated
}

// Run carries a plan out. The error is for what kept it from being carried out; what the
// relay did wrong is in the report.
func Run(ctx context.Context, plan Plan, log func(format string, args ...any)) (*Report, error) {
	w := &world{ctx: ctx, plan: plan, types: []string{"order", "payment"}, report: newReport(plan, log)}
	err := w.open()
	if err == nil {
		err = w.run()
	}
	for _, r := range w.relays {
		if r.Running() && err != nil {
			log("last of a relay's log:\n%s", tail(r.Log(), 15))
		}
	}
	return w.report, errors.Join(err, w.close())
}

func (w *world) open() (err error) {
	disk := func(size string) string {
		if w.plan.Disks {
			return size
		}
		return ""
	}
	w.pg, err = stack.StartPostgres(w.ctx, stack.PostgresOptions{Version: w.plan.Postgres, Proxy: true, Tmpfs: disk("400M"),
		Config: map[string]string{"wal_sender_timeout": "4s", "max_wal_size": "64MB", "min_wal_size": "32MB"}})
	if err != nil {
		return err
	}
	w.report.Postgres = w.pg.Version
	for range 3 { // on a busy machine brokers may not find each other in time
		if w.kafka, err = stack.StartKafka(w.ctx, stack.KafkaOptions{Brokers: w.plan.Brokers, Proxy: true, Tmpfs: disk("300M"), Config: calm}); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if w.scope, err = proc.NewScope("nemesis"); err != nil {
		return err
	}
	w.state = filepath.Join(w.scope.Dir, "state")
	if err := w.scope.Mkdir(w.state, disk("256k")); err != nil {
		return err
	}
	conn, err := pgx.Connect(w.ctx, w.pg.Direct("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(w.ctx, "CREATE DATABASE "+name)
	if err := errors.Join(err, conn.Close(w.ctx)); err != nil {
		return err
	}
	if err := w.kafka.CreateTopics(w.ctx, 3, nil, w.topics()...); err != nil {
		return err
	}
	return w.openRelays()
}

// calm makes controllers patient, so that a starved broker is not taken for a dead one.
var calm = map[string]string{
	"broker.session.timeout.ms":             "9000",
	"controller.quorum.election.timeout.ms": "2000",
	"controller.quorum.fetch.timeout.ms":    "4000",
}

func (w *world) openRelays() error {
	for range w.plan.Relays {
		r, err := harness.New(harness.Config{
			Postgres: w.pg.URL(name), Brokers: w.kafka.Bootstrap(), Slot: name, Shared: filepath.Join(w.state, "checkpoint"),
			Args: []string{"--buffer-bytes", fmt.Sprint(buffer), "--batch-bytes", "131072", "--drain-timeout", "10s"},
		})
		if err != nil {
			return err
		}
		w.relays, w.expected, w.logged = append(w.relays, r), append(w.expected, false), append(w.logged, 0)
	}
	res, err := w.relays[0].Command(w.ctx, "setup", "--create-table")
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("setup: exit %d: %s", res.Code, res.Stderr)
	}
	if err != nil {
		return err
	}
	w.truth = checker.Truth{URL: w.pg.Direct(name), Table: table, Slot: name + "_truth"}
	if err := w.truth.Create(w.ctx); err != nil {
		return err
	}
	w.sampler, err = checker.StartSampler(w.pg.Direct(name), name, w.kafka.Direct(), w.topics())
	return err
}

func (w *world) topics() (list []string) {
	for _, kind := range w.types {
		list = append(list, "outbox.event."+kind)
	}
	return list
}

// run is load and faults, then peace, then a last farewell and the verdict.
func (w *world) run() error {
	for i := range w.relays {
		if err := w.startRelay(i); err != nil {
			return err
		}
	}
	for w.relays[w.active()].Ready(w.ctx) != nil { // whichever has got the slot
		if w.pass(50 * time.Millisecond); w.ctx.Err() != nil {
			return w.ctx.Err()
		}
	}
	load := workload.Start(w.ctx, workload.Options{URL: w.pg.Direct(name), Types: w.types, Seed: w.plan.Seed, Writers: 2, Every: 40 * time.Millisecond, Large: 30_000})
	began := time.Now()
	var lanes sync.WaitGroup
	errs := make([]error, 3)
	for l := range errs {
		lanes.Go(func() { errs[l] = w.walk(lane(l), began) })
	}
	lanes.Wait()
	stats, err := load.Stop()
	w.report.Load = stats
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return w.peace()
}

// walk carries the steps of one lane out, one after the other. On a busy machine servers
// take long to start: what would begin far too late is left out.
func (w *world) walk(l lane, began time.Time) error {
	for _, s := range w.plan.Steps {
		f := faultNamed(s.Kind)
		if f.lane != l {
			continue
		}
		w.pass(time.Until(began.Add(s.At)))
		if time.Since(began) > w.plan.For*3/2 {
			w.report.leave()
			continue
		}
		if l == relays {
			w.census()
		}
		if f.repeats || l == postgres && len(w.relays) > 1 { // the other one may take over
			w.mayRepeat()
		}
		at := time.Since(began)
		end, err := f.do(w, s)
		if err == nil && end != nil {
			w.pass(s.Hold)
			err = end()
		}
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if err != nil && end == nil && l == postgres {
			err = nil // an order that Postgres could not take, as it is
			s.Kind += " (refused)"
		}
		w.report.step(s, at, time.Since(began))
		if err != nil {
			return fmt.Errorf("%s: %w", s.Kind, err)
		}
	}
	return nil
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.ctx.Done():
	}
}

// census finds relays that have ended by themselves (G8), and starts them again.
func (w *world) census() {
	for i, r := range w.relays {
		if w.expected[i] && !r.Running() {
			code, _ := r.Wait(w.ctx)
			w.violated("G8: relay %d has ended by itself, exit %d: %s", i, code, lastLine(r.Log()))
			w.startRelay(i)
		}
	}
}

func (w *world) violated(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Violations = append(w.report.Violations, fmt.Sprintf(format, args...))
}

// mayRepeat notes that from now on two batches may be published again.
func (w *world) mayRepeat() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.points = append(w.points, time.Now())
}

// patience is how long the slot may stand still when the faults are over (G8).
const patience = time.Minute

// peace waits until all is delivered and confirmed, stops the relays, and judges.
func (w *world) peace() error {
	w.census()
	var mark string
	conn, err := pgx.Connect(w.ctx, w.pg.Direct(name))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(w.ctx))
	if err := conn.QueryRow(w.ctx, "SELECT pg_logical_emit_message(true, 'walrelay-e2e', '')::text").Scan(&mark); err != nil {
		return err
	}
	began, moved, well, confirmed := time.Now(), time.Now(), false, ""
	for !well && time.Since(moved) < patience && w.ctx.Err() == nil {
		w.pass(50 * time.Millisecond)
		before := confirmed
		err := conn.QueryRow(w.ctx, "SELECT coalesce(confirmed_flush_lsn >= $2::pg_lsn, false), coalesce(confirmed_flush_lsn::text, '') FROM pg_replication_slots WHERE slot_name = $1", name, mark).Scan(&well, &confirmed)
		if err != nil {
			return err
		}
		if confirmed != before {
			moved = time.Now()
		}
	}
	w.report.Healed = time.Since(began)
	if !well {
		w.violated("G8: not everything is delivered, and for %s nothing more was; /readyz of the relay that streams: %v; its last words: %s",
			patience, w.relays[w.active()].Ready(w.ctx), lastLine(w.relays[w.active()].Log()))
	}
	w.census()
	first := 1 - w.active() // the one that waits, if there are two
	for n := range w.relays {
		i := (first + n) % len(w.relays)
		if high, err := w.relays[i].HighWater(); err == nil && high > buffer+64<<20 {
			w.violated("G7: relay %d had %d MiB resident", i, high>>20)
		}
		w.expected[i] = false
		code, err := w.relays[i].Stop(w.ctx)
		if code == exitUndrained && n == 0 && len(w.relays) > 1 {
			code = 0 // it can't know that what it had not saved when it lost the slot was saved by the other one
		}
		if err != nil || code != 0 {
			w.violated("G8: relay %d, stopped in peace, exits with %d, %v: %s", i, code, err, lastLine(w.relays[i].Log()))
		}
	}
	return w.judge()
}

func (w *world) close() error {
	if w.sampler != nil {
		w.sampler.Stop()
	}
	var errs []error
	for _, r := range w.relays {
		errs = append(errs, r.Close())
	}
	if w.kafka != nil {
		errs = append(errs, w.kafka.Close())
	}
	if w.pg != nil {
		errs = append(errs, w.pg.Close())
	}
	if w.scope != nil {
		errs = append(errs, w.scope.Close())
	}
	return errors.Join(errs...)
}

func lastLine(s string) string { return tail(s, 1) }

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// root may mount small disks.
func root() bool { return os.Geteuid() == 0 }
