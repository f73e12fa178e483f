package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is all that a run brought.
type Report struct {
	Settings  Settings        `json:"settings"`
	Drains    []DrainReport   `json:"drains"`
	Latencies []LatencyReport `json:"latencies"`
	Idle      map[string]Idle `json:"idle"`
	Growth    []Growth        `json:"growth"`
	Away      []Away          `json:"kafka_away"`
	Bursts    []Burst         `json:"bursts"`
}

// Settings are what a number means nothing without.
type Settings struct {
	Time       string   `json:"time"`
	CPU        string   `json:"cpu"`
	CPUs       int      `json:"cpus"`
	LoadBefore string   `json:"load_before"`
	Go         string   `json:"go"`
	Postgres   string   `json:"postgres"`
	Kafka      string   `json:"kafka"`
	Relays     []string `json:"relays"`
	Repeat     int      `json:"repeat"`
	Window     string   `json:"latency_window"`
	Args       []string `json:"relay_options"`
}

// DrainReport is one workload, and who drained it.
type DrainReport struct {
	Workload    Workload           `json:"workload"`
	Runs        []DrainRuns        `json:"contenders"`
	Allocations map[string]float64 `json:"allocations_per_event"`
}

// DrainRuns are the drains of one contender; run i of all contenders is one round.
type DrainRuns struct {
	Name string  `json:"name"`
	Runs []Drain `json:"runs"`
}

// LatencyReport is one rate.
type LatencyReport struct {
	Rate   int                  `json:"events_per_second"`
	Rows   int                  `json:"rows_per_transaction"`
	Plain  []Latency            `json:"plain_producer"`
	Relays map[string][]Latency `json:"relays"`
}

// spread is a median and its surroundings.
type spread struct{ low, median, high float64 }

func spreadOf[T any](runs []T, value func(T) float64) spread {
	var v []float64
	for _, r := range runs {
		v = append(v, value(r))
	}
	if len(v) == 0 {
		return spread{}
	}
	slices.Sort(v)
	n := len(v)
	return spread{v[0], (v[(n-1)/2] + v[n/2]) / 2, v[n-1]}
}

// ratio is the median of a's events per second over b's, round by round.
func ratio(a, b []Drain) float64 {
	var v []float64
	for i := range min(len(a), len(b)) {
		v = append(v, a[i].EventsPerSecond/b[i].EventsPerSecond)
	}
	return spreadOf(v, func(f float64) float64 { return f }).median
}

// Print writes the tables.
func (r *Report) Print(w io.Writer) {
	s := r.Settings
	fmt.Fprintf(w, "\n%s, %d × %s (load before: %s), %s, Postgres %s, Kafka %s, one broker\n", s.Time, s.CPUs, s.CPU, s.LoadBefore, s.Go, s.Postgres, s.Kafka)
	fmt.Fprintf(w, "%s\n", strings.Join(s.Relays, "\n"))
	if len(s.Args) > 0 {
		fmt.Fprintf(w, "relay options in drains: %s\n", strings.Join(s.Args, " "))
	}
	if len(r.Drains) > 0 {
		fmt.Fprintf(w, "\nDrain of a backlog: medians of %d rounds in turns [lowest–highest]; CPU is user+system in µs per event; ratios are medians of the rounds' ratios.\n", s.Repeat)
	}
	for _, d := range r.Drains {
		d.print(w)
	}
	if len(r.Latencies) > 0 {
		fmt.Fprintf(w, "\nLatency, ms: from commit returned (relay) or Produce called (plain idempotent producer) to read by a consumer; two windows of %s each in turns, the better and the worse.\n", s.Window)
		t := table(w)
		fmt.Fprintln(t, "events/s\trows/txn\t\tp50\tp99\tp99.9\tmax\tcommit→ack p50, p99\trelay CPU µs/event")
		for _, l := range r.Latencies {
			l.print(t, s.Relays)
		}
		t.Flush()
	}
	for _, x := range []interface{ print(io.Writer) }{growths(r.Growth), aways(r.Away), bursts(r.Bursts)} {
		x.print(w)
	}
	for _, name := range sortedKeys(r.Idle) {
		i := r.Idle[name]
		start := spreadOf(i.StartMillis, func(f float64) float64 { return f })
		used := spreadOf(i.StartCPUMillis, func(f float64) float64 { return f })
		fmt.Fprintf(w, "\n%s: exec → streaming %.0f ms [%.0f–%.0f] of %d starts, %.0f ms of CPU; idle %.3f %% of a core, %.1f wake-ups/s, VmHWM %.1f MiB\n",
			name, start.median, start.low, start.high, len(i.StartMillis), used.median, i.CPUPercent, i.WakeupsPerSec, mib(i.ResidentAtStart))
	}
}

func (d *DrainReport) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s; %d events\n", d.Workload, d.Workload.Events)
	t := table(w)
	limit, recv := d.runs(limitName), d.runs("pg_recvlogical")
	fmt.Fprintln(t, "\tevents/s\t\t× limit\t× pg_recvlogical\treader CPU\twalsender CPU\tbroker CPU\tallocs/event\tVmHWM MiB")
	for _, c := range d.Runs {
		rate := spreadOf(c.Runs, func(d Drain) float64 { return d.EventsPerSecond })
		allocs, broker := "", ""
		if a, ok := d.Allocations[c.Name]; ok {
			allocs = fmt.Sprintf("%.3f", a)
		}
		if b := spreadOf(c.Runs, func(d Drain) float64 { return d.BrokerMicros }); b.high > 0 {
			broker = fmt.Sprintf("%.2f", b.median)
		}
		reader := spreadOf(c.Runs, func(d Drain) float64 { return d.ReaderMicros })
		fmt.Fprintf(t, "%s\t%.0f\t[%.0f–%.0f]\t%.2f\t%.2f\t%.2f [%.2f–%.2f]\t%.2f\t%s\t%s\t%.1f\n", c.Name, rate.median, rate.low, rate.high,
			ratio(c.Runs, limit), ratio(c.Runs, recv), reader.median, reader.low, reader.high,
			spreadOf(c.Runs, func(d Drain) float64 { return d.SenderMicros }).median, broker, allocs,
			mib(int64(spreadOf(c.Runs, func(d Drain) float64 { return float64(d.PeakBytes) }).high)))
	}
	t.Flush()
}

func (d *DrainReport) runs(name string) []Drain {
	for _, c := range d.Runs {
		if c.Name == name {
			return c.Runs
		}
	}
	return nil
}

func (l *LatencyReport) print(t io.Writer, _ []string) {
	row := func(name string, runs []Latency, acks bool) {
		both := func(value func(Latency) float64) string {
			s := spreadOf(runs, value)
			return fmt.Sprintf("%.2f %.2f", s.low, s.high)
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t", l.Rate, l.Rows, name,
			both(func(l Latency) float64 { return l.P50 }), both(func(l Latency) float64 { return l.P99 }),
			both(func(l Latency) float64 { return l.P999 }), both(func(l Latency) float64 { return l.Max }))
		if acks {
			fmt.Fprintf(t, "< %g, < %g\t%s", spreadOf(runs, func(l Latency) float64 { return l.AckBelow.P50 }).high, spreadOf(runs, func(l Latency) float64 { return l.AckBelow.P99 }).high,
				both(func(l Latency) float64 { return l.CPUMicros }))
		}
		fmt.Fprintln(t)
	}
	row("plain producer", l.Plain, false)
	for _, name := range sortedKeys(l.Relays) {
		row(name, l.Relays[name], true)
	}
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
