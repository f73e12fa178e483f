package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/e2e/stack"
)

// Relay is a binary to measure.
type Relay struct{ Name, Path string }

// Options say what to measure.
type Options struct {
	Relays    []Relay // of several each is measured in turn, and compared with the first
	Workloads []Workload
	Repeat    int // drains of each contender
	Postgres  string
	Rates     []int         // events a second whose latency is measured
	Window    time.Duration // of each measurement of latency
	Starts    int           // 0: neither start-up nor idling
	Idle      time.Duration
	Binary    bool     // also pg_recvlogical in binary
	Args      []string // further options of the relays in drains
	Profiles  string   // folder for CPU profiles of drains; "": none
	Growth    int      // how many times the backlog is measured too; 0: not
	Away      int      // bytes of payload that wait while Kafka is away; 0: not measured
	Burst     int      // rows of the transactions that come between events at a steady pace; 0: not measured
	Progress  io.Writer
}

type bench struct {
	Options
	pg       *stack.Postgres
	kafka    *stack.Kafka
	dir      string
	backlogs int
	warm     bool
	self     string // this program's path

	positions int // topics for checkpoints so far
}

// Run measures. What was measured before an error comes with it.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	b := &bench{Options: o}
	r := &Report{Settings: settings(o)}
	if b.dir, err = os.MkdirTemp("", "walrelay-bench-"); err != nil {
		return r, err
	}
	defer os.RemoveAll(b.dir)
	if b.self, err = os.Executable(); err != nil {
		return r, err
	}
	up, cancel := context.WithTimeout(ctx, 5*time.Minute) // the first start fetches
	defer cancel()
	b.progress("starting Postgres and Kafka")
	// Nothing that the server does by itself at its own time.
	b.pg, err = stack.StartPostgres(up, stack.PostgresOptions{Version: o.Postgres, Config: map[string]string{
		"shared_buffers": "128MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off", "max_connections": "100",
	}})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.pg.Close()) }()
	if b.kafka, err = stack.StartKafka(up, stack.KafkaOptions{HeapMB: 1024, Config: map[string]string{"log.segment.bytes": "134217728"}}); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.kafka.Close()) }()
	r.Settings.Postgres = b.pg.Version
	for _, w := range o.Workloads {
		m, err := b.drains(ctx, w)
		if err != nil {
			return r, err
		}
		r.Drains = append(r.Drains, m)
	}
	if len(o.Rates) > 0 {
		if r.Latencies, err = b.latencies(ctx); err != nil {
			return r, err
		}
	}
	if err := b.extremes(ctx, r); err != nil {
		return r, err
	}
	if o.Starts > 0 {
		r.Idle = map[string]Idle{}
		for _, relay := range o.Relays {
			b.progress("start-up and idle cost of %s", relay.Name)
			if r.Idle[relay.Name], err = b.idle(ctx, relay.Path, o.Starts, o.Idle); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.Progress, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func (b *bench) checkpoint(slot string) string { return filepath.Join(b.dir, slot+".checkpoint") }

// drains measures all contenders on one workload, in turns.
func (b *bench) drains(ctx context.Context, w Workload) (m DrainReport, err error) {
	b.progress("%s: writing %d events", w, w.Events)
	m.Workload = w
	l, err := b.newBacklog(ctx, w)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.drop(ctx)) }()
	acks, ackAddr, err := startAcks("127.0.0.1:0", w.Partitions)
	if err != nil {
		return m, err
	}
	defer acks.discard()
	contenders := []contender{discarding(b.self)} // first: it finds the end of the backlog
	if path, err := exec.LookPath("pg_recvlogical"); err == nil {
		contenders = append(contenders, recvlogical(path, false))
		if b.Binary {
			contenders = append(contenders, recvlogical(path, true))
		}
	}
	for _, relay := range b.Relays {
		contenders = append(contenders, relaying(relay.Name, relay.Path, b.kafka.Bootstrap(), b.kafka.Broker(1).Pid(), b.Args...))
		if !strings.HasSuffix(relay.Path, exactlyOnce) { // that broker knows no transactions
			contenders = append(contenders, relaying(relay.Name+", ack-only broker", relay.Path, ackAddr, acks.pid(), b.Args...))
		}
	}
	for _, c := range contenders {
		m.Runs = append(m.Runs, DrainRuns{Name: c.name})
	}
	if err := b.warmUp(ctx, l); err != nil {
		return m, err
	}
	for rep := range b.Repeat + 1 {
		b.progress("%s: round %d of %d", w, rep, b.Repeat)
		for i, c := range contenders {
			d, err := l.measure(ctx, c)
			if err != nil {
				return m, err
			}
			if rep > 0 { // the first round warms up
				m.Runs[i].Runs = append(m.Runs[i].Runs, d)
			}
		}
	}
	if b.Profiles != "" {
		path := filepath.Join(b.Profiles, fmt.Sprintf("limit-%d-%d.pprof", w.Size, w.Rows))
		if _, err := l.measure(ctx, discarding(b.self, "BENCH_PROFILE="+path)); err != nil {
			return m, err
		}
	}
	m.Allocations = map[string]float64{}
	for _, relay := range b.Relays {
		if b.Profiles != "" {
			for _, kind := range []string{"pprof", "trace"} {
				path := filepath.Join(b.Profiles, fmt.Sprintf("%s-%d-%d.%s", relay.Name, w.Size, w.Rows, kind))
				if err := l.profile(ctx, relay.Path, path); err != nil {
					return m, err
				}
			}
		}
		if m.Allocations[relay.Name], err = l.allocations(ctx, relay.Path); err != nil {
			return m, err
		}
	}
	return m, nil
}

// warmUp lets the broker work until its compiler is through with it: for some seconds
// every record costs it several times of what it does later.
func (b *bench) warmUp(ctx context.Context, l *backlog) error {
	if b.warm {
		return nil
	}
	b.progress("warming up")
	if _, err := l.measure(ctx, discarding(b.self)); err != nil { // it finds the end of the backlog
		return err
	}
	for begun := time.Now(); time.Since(begun) < warmUp; {
		if _, err := l.measure(ctx, relaying("warm-up", b.Relays[0].Path, b.kafka.Bootstrap(), 0)); err != nil {
			return err
		}
	}
	b.warm = true
	return nil
}

const warmUp = 30 * time.Second

// latencies measures each relay and the plain producer at each rate, in turns, twice.
func (b *bench) latencies(ctx context.Context) (list []LatencyReport, err error) {
	lanes := map[string]*lane{}
	defer func() {
		for _, l := range lanes {
			err = errors.Join(err, l.close(context.WithoutCancel(ctx)))
		}
	}()
	for _, relay := range b.Relays {
		l, err := b.newLane(ctx, relay.Path)
		if err != nil {
			return list, err
		}
		lanes[relay.Name] = l
		// Connections are made, code is compiled.
		for range 2 {
			if _, err := l.relayed(ctx, 500, 1, 2*time.Second); err != nil {
				return list, err
			}
			if _, err := l.produced(ctx, 500, 1, 2*time.Second); err != nil {
				return list, err
			}
		}
	}
	for _, rate := range b.Rates {
		b.progress("latency at %d events a second", rate)
		rows := 1
		if rate > 2000 {
			rows = 10
		}
		runs := LatencyReport{Rate: rate, Rows: rows, Relays: map[string][]Latency{}}
		for range 2 {
			for i, relay := range b.Relays {
				m, err := lanes[relay.Name].relayed(ctx, rate, rows, b.Window)
				if err != nil {
					return list, err
				}
				runs.Relays[relay.Name] = append(runs.Relays[relay.Name], m)
				if i == 0 {
					if m, err = lanes[relay.Name].produced(ctx, rate, rows, b.Window); err != nil {
						return list, err
					}
					runs.Plain = append(runs.Plain, m)
				}
			}
		}
		list = append(list, runs)
	}
	return list, nil
}

func (b *bench) deleteTopics(ctx context.Context, topics ...string) error {
	client, err := b.kafka.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).DeleteTopics(ctx, topics...)
	return err
}

func settings(o Options) Settings {
	s := Settings{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Go: runtime.Version(), Kafka: stack.KafkaVersion, Repeat: o.Repeat, Window: o.Window.String(), Args: o.Args}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(b), "model name\t: ")
		s.CPU, _, _ = strings.Cut(rest, "\n")
	}
	s.LoadBefore = load()
	for _, r := range o.Relays {
		version, _ := exec.Command(strings.TrimSuffix(r.Path, exactlyOnce), "--version").Output()
		s.Relays = append(s.Relays, r.Name+": "+strings.TrimSpace(string(version)))
	}
	return s
}

// load is the machine's load average before we make one: it says whether others work here.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
