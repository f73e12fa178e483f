package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/harness"
)

const publication = "walrelay"

// Workload is a backlog and where it goes.
type Workload struct {
	Size       int    `json:"payload_bytes"`
	Rows       int    `json:"rows_per_transaction"`
	Partitions int    `json:"partitions"`
	Topics     int    `json:"topics"`
	Codec      string `json:"codec"`
	Events     int    `json:"events"`
}

func (w Workload) String() string {
	s := fmt.Sprintf("%d B, %d rows/transaction, %d partitions", w.Size, w.Rows, w.Partitions)
	if w.Topics > 1 {
		s += fmt.Sprintf(", %d topics", w.Topics)
	}
	if w.Codec != "none" {
		s += ", " + w.Codec
	}
	return s
}

// ParseWorkload reads SIZE/ROWS[/PARTITIONS[/TOPICS[/CODEC]]].
func ParseWorkload(s string, events int) (Workload, error) {
	w := Workload{Partitions: 8, Topics: 1, Codec: "none", Events: events}
	fields := strings.Split(s, "/")
	numbers := []*int{&w.Size, &w.Rows, &w.Partitions, &w.Topics}
	for i, f := range fields {
		if i == len(numbers) {
			w.Codec = f
			break
		}
		if _, err := fmt.Sscan(f, numbers[i]); err != nil {
			return w, fmt.Errorf("workload %q: want SIZE/ROWS[/PARTITIONS[/TOPICS[/CODEC]]]", s)
		}
	}
	if len(fields) < 2 || len(fields) > 5 || w.Size < 1 || w.Rows < 1 || w.Partitions < 1 || w.Topics < 1 {
		return w, fmt.Errorf("workload %q: want SIZE/ROWS[/PARTITIONS[/TOPICS[/CODEC]]]", s)
	}
	w.Events = max(w.Events/w.Rows, 1) * w.Rows
	return w, nil
}

// backlog is a database with an outbox full of events that were not relayed yet.
type backlog struct {
	Workload
	b    *bench
	name string // of the database, and of the slot that stays at its beginning
	end  pglogrepl.LSN
	runs int
}

func (l *backlog) url() string { return l.b.pg.Direct(l.name) }

func (l *backlog) topics() []string {
	var list []string
	for i := range l.Topics {
		list = append(list, fmt.Sprintf("outbox.event.%s.%d", l.name, i))
	}
	return list
}

// fill makes the events in the server itself. Payloads are JSON of text that doesn't repeat.
const fill = `DO $$
DECLARE
	noise text := (SELECT string_agg(md5(i::text), '') FROM generate_series(1, %[5]d / 32 + 65) i);
BEGIN
	FOR t IN 0 .. %[1]d / %[2]d - 1 LOOP
		INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, correlation_id)
		SELECT '%[3]s.' || i %% %[4]d, 'key-' || i %% 5000, 'OrderPlaced',
			jsonb_build_object('n', i, 'text', substr(noise, 1 + (i * 37) %% 2000, %[5]d)), 'request-' || i / 7
		FROM generate_series(t * %[2]d, (t + 1) * %[2]d - 1) i;
		COMMIT;
	END LOOP;
END $$`

func (b *bench) newBacklog(ctx context.Context, w Workload) (*backlog, error) {
	b.backlogs++
	l := &backlog{Workload: w, b: b, name: fmt.Sprintf("bench%d", b.backlogs)}
	if err := b.newOutbox(ctx, l.name); err != nil {
		return nil, err
	}
	if err := b.kafka.CreateTopics(ctx, int32(w.Partitions), nil, l.topics()...); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, l.url())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	// The JSON around the text takes 25 bytes.
	sql := fmt.Sprintf(fill, w.Events, w.Rows, l.name, w.Topics, max(w.Size-25, 1))
	for _, s := range []string{"SET synchronous_commit = off", sql, "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, fmt.Errorf("bench: fill the outbox: %w", err)
		}
	}
	return l, nil
}

// newOutbox makes a database with table, publication and a slot, all by `walrelay setup`.
func (b *bench) newOutbox(ctx context.Context, name string) error {
	if err := b.exec(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
		return err
	}
	r, err := harness.Command(ctx, b.dir, []string{"WALRELAY_POSTGRES_URL=" + b.pg.Direct(name)}, "setup", "--create-table", "--slot", name, "--publication", publication)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("bench: setup: exit %d: %s", r.Code, r.Stderr)
	}
	return err
}

func (b *bench) exec(ctx context.Context, db, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, b.pg.Direct(db))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err = conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("bench: %s: %w", sql, err)
	}
	return nil
}

// copySlot makes a slot that stands at the beginning of the backlog.
func (l *backlog) copySlot(ctx context.Context) (string, error) {
	l.runs++
	slot := fmt.Sprintf("%s_%d", l.name, l.runs)
	return slot, l.b.exec(ctx, l.name, "SELECT pg_copy_logical_replication_slot($1, $2)", l.name, slot)
}

// dropSlot waits until nobody has the slot any more.
func (l *backlog) dropSlot(ctx context.Context, slot string) error {
	var err error
	for range 100 {
		if err = l.b.exec(ctx, l.name, "SELECT pg_drop_replication_slot($1)", slot); err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// drop frees what the backlog takes.
func (l *backlog) drop(ctx context.Context) error {
	if err := l.dropSlot(ctx, l.name); err != nil {
		return err
	}
	if err := l.b.deleteTopics(ctx, l.topics()...); err != nil {
		return err
	}
	return l.b.exec(ctx, "postgres", "DROP DATABASE "+l.name+" WITH (FORCE)")
}

// exactlyOnce behind a binary's path has it deliver exactly once.
const exactlyOnce = "+exactly-once"

// relay is the command line and the environment of a relay of the slot.
func (l *backlog) relay(binary, slot, brokers string, args ...string) (argv, env []string) {
	os.Remove(l.b.checkpoint(slot))
	binary, once := strings.CutSuffix(binary, exactlyOnce)
	argv = []string{binary, "run", "--slot", slot, "--publication", publication, "--kafka-brokers", brokers, "--compression", l.Codec, "--log-format", "json"}
	if once {
		l.b.positions++ // a topic without a position
		argv = append(argv, "--delivery", "exactly-once", "--checkpoint", fmt.Sprintf("kafka:positions-%d", l.b.positions))
	} else {
		argv = append(argv, "--checkpoint", "file:"+l.b.checkpoint(slot))
	}
	argv = append(argv, args...)
	return argv, []string{"WALRELAY_POSTGRES_URL=" + l.url()}
}
