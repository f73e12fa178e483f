package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/proc"
)

// Drain is one drain of a backlog. Times are per event.
type Drain struct {
	EventsPerSecond float64 `json:"events_per_second"`
	ReaderMicros    float64 `json:"reader_cpu_us"` // the relay, or who reads in its place
	SenderMicros    float64 `json:"walsender_cpu_us"`
	BrokerMicros    float64 `json:"broker_cpu_us"`
	PeakBytes       int64   `json:"vmhwm_bytes"`
}

// contender is one who drains a backlog.
type contender struct {
	name string
	run  func(ctx context.Context, l *backlog, slot string) (Drain, error)
}

// drainTimeout bounds one drain.
const drainTimeout = 2 * time.Minute

// measure runs one contender on a copy of the slot.
func (l *backlog) measure(ctx context.Context, c contender) (Drain, error) {
	slot, err := l.copySlot(ctx)
	if err != nil {
		return Drain{}, err
	}
	d, err := c.run(ctx, l, slot)
	if err != nil {
		return d, fmt.Errorf("%s: %w", c.name, err)
	}
	return d, l.dropSlot(ctx, slot)
}

// run starts a reader of the slot and measures it, from the line that contains
// streaming ("" = from its start) to its end. elapsed replaces that time where the reader itself knows better.
func (l *backlog) run(ctx context.Context, slot string, broker int, streaming string, env []string, argv []string, elapsed func(*child) time.Duration) (Drain, error) {
	conn, err := pgx.Connect(ctx, l.b.pg.Direct("postgres"))
	if err != nil {
		return Drain{}, err
	}
	defer conn.Close(ctx)
	var before time.Duration
	if broker != 0 {
		before, _ = cpu(broker)
	}
	c, err := start(l.b.dir, env, argv...)
	if err != nil {
		return Drain{}, err
	}
	reader := watchProcess(func() int { return c.pid() })
	sender := watchProcess(func() (pid int) {
		conn.QueryRow(ctx, "SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&pid)
		return pid
	})
	var startup time.Duration
	begun := c.begun
	if streaming != "" {
		err = c.await(streaming, 20*time.Second)
		begun = time.Now()
		startup, _ = cpu(c.pid())
	}
	if err == nil {
		err = c.wait(drainTimeout)
	} else {
		c.discard()
	}
	took := time.Since(begun)
	reader.end()
	sender.end()
	if err != nil {
		return Drain{}, err
	}
	if elapsed != nil {
		took = elapsed(c)
	}
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(l.Events) }
	d := Drain{
		EventsPerSecond: float64(l.Events) / took.Seconds(),
		ReaderMicros:    each(c.used() - startup),
		SenderMicros:    each(sender.cpu),
		PeakBytes:       reader.peak,
	}
	if broker != 0 {
		after, _ := cpu(broker)
		d.BrokerMicros = each(after - before)
	}
	return d, nil
}

// recvlogical is Postgres' own client, which writes to /dev/null.
func recvlogical(path string, binary bool) contender {
	name := "pg_recvlogical"
	options := []string{"-o", "proto_version=1", "-o", "publication_names=" + publication}
	if binary {
		name += " binary"
		options = append(options, "-o", "binary=true")
	}
	return contender{name, func(ctx context.Context, l *backlog, slot string) (Drain, error) {
		argv := append([]string{path, "-d", l.url(), "-S", slot, "--start", "-f", "/dev/null", "--endpos", l.end.String(), "--no-loop"}, options...)
		return l.run(ctx, slot, 0, "", nil, argv, nil)
	}}
}

// discarding is our own reader that throws away what it reads.
func discarding(self string, env ...string) contender {
	return contender{limitName, func(ctx context.Context, l *backlog, slot string) (Drain, error) {
		argv := []string{self, "discard", slot, fmt.Sprint(l.Events)}
		return l.run(ctx, slot, 0, "streaming", append([]string{"BENCH_URL=" + l.url()}, env...), argv, func(c *child) (took time.Duration) {
			rows, end := 0, uint64(0)
			fmt.Sscanf(c.tail()[strings.Index(c.tail(), "read "):], "read %d rows in %d ns up to %d", &rows, &took, &end)
			l.end = pglogrepl.LSN(end)
			return took
		})
	}}
}

const limitName = "limit (read, discard)"

// relaying is walrelay, from the log line that says that it streams to its exit.
func relaying(name, binary string, brokers string, broker int, args ...string) contender {
	return contender{name, func(ctx context.Context, l *backlog, slot string) (Drain, error) {
		argv, env := l.relay(binary, slot, brokers, append([]string{"--http", "off", "--until", l.end.String()}, args...)...)
		return l.run(ctx, slot, broker, streamingLine, env, argv, nil)
	}}
}

const streamingLine = `"message":"streaming"`

// profile keeps a CPU profile of the relay's first three seconds with the backlog, or
// where path ends in .trace, what its goroutines did in one of them: `go tool trace -pprof=sync`
// (or net, syscall, sched) says what they waited for.
func (l *backlog) profile(ctx context.Context, binary, path string) error {
	slot, err := l.copySlot(ctx)
	if err != nil {
		return err
	}
	c, http, err := l.observed(binary, slot, "--pprof")
	if err != nil {
		return err
	}
	defer c.discard()
	if err := c.await(streamingLine, 20*time.Second); err != nil {
		return err
	}
	what := "profile?seconds=3"
	if filepath.Ext(path) == ".trace" {
		what = "trace?seconds=1"
	}
	profile, err := get(ctx, http, "/debug/pprof/"+what)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, profile, 0o644); err != nil {
		return err
	}
	c.discard()
	return l.dropSlot(ctx, slot)
}

// observed starts a relay of the slot, with its HTTP server.
func (l *backlog) observed(binary, slot string, args ...string) (c *child, http string, err error) {
	ports, err := proc.FreePorts(1)
	if err != nil {
		return nil, "", err
	}
	http = proc.Addr(ports[0])
	argv, env := l.relay(binary, slot, l.b.kafka.Bootstrap(), append([]string{"--http", http}, args...)...)
	c, err = start(l.b.dir, env, argv...)
	return c, http, err
}

// allocations returns how many objects walrelay allocates per event. It is not timed: to
// look disturbs.
func (l *backlog) allocations(ctx context.Context, binary string) (float64, error) {
	slot, err := l.copySlot(ctx)
	if err != nil {
		return 0, err
	}
	c, http, err := l.observed(binary, slot)
	if err != nil {
		return 0, err
	}
	defer c.discard()
	if err := c.await(streamingLine, 20*time.Second); err != nil {
		return 0, err
	}
	first, err := scrape(ctx, http)
	if err != nil {
		return 0, err
	}
	conn, err := pgx.Connect(ctx, l.b.pg.Direct("postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	limit := time.Now().Add(drainTimeout)
	for done := false; !done; {
		if err := conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1", slot, l.end.String()).Scan(&done); err != nil {
			return 0, err
		}
		if time.Now().After(limit) {
			return 0, fmt.Errorf("bench: the drain does not end: %s", c.tail())
		}
		if !done {
			<-time.After(50 * time.Millisecond)
		}
	}
	last, err := scrape(ctx, http)
	if err != nil {
		return 0, err
	}
	again, err := scrape(ctx, http)
	if err != nil {
		return 0, err
	}
	look := again.mallocs - last.mallocs
	if err := c.stop(); err != nil {
		return 0, err
	}
	return (last.mallocs - first.mallocs - look) / (last.published - first.published), l.dropSlot(ctx, slot)
}
