package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/proc"
)

// extremes measures what is looked at apart from speed: growth, memory, bursts.
func (b *bench) extremes(ctx context.Context, r *Report) error {
	for _, relay := range b.Relays {
		for _, w := range b.Workloads {
			if b.Growth == 0 {
				break
			}
			g, err := b.growth(ctx, relay, w)
			if err != nil {
				return err
			}
			r.Growth = append(r.Growth, g)
		}
		if b.Away > 0 {
			a, err := b.away(ctx, relay)
			if err != nil {
				return err
			}
			r.Away = append(r.Away, a)
		}
		if b.Burst > 0 {
			m, err := b.burst(ctx, relay)
			if err != nil {
				return err
			}
			r.Bursts = append(r.Bursts, m)
		}
	}
	return nil
}

// Growth is a backlog, and one of so many times the events. What is in one transaction grows with it.
type Growth struct {
	Relay        string  `json:"relay"`
	Workload     string  `json:"workload"`
	Times        int     `json:"times"`
	Small, Large []Drain // in turns
}

func (b *bench) growth(ctx context.Context, relay Relay, w Workload) (g Growth, err error) {
	g = Growth{Relay: relay.Name, Workload: w.String(), Times: b.Growth}
	large := w
	large.Events *= b.Growth
	if w.Rows == w.Events {
		large.Rows = large.Events
	}
	b.progress("%s: %d and %d events", w, w.Events, large.Events)
	var backlogs [2]*backlog
	for i, w := range []Workload{w, large} {
		l, err := b.newBacklog(ctx, w)
		if err != nil {
			return g, err
		}
		defer func() { err = errors.Join(err, l.drop(ctx)) }()
		if _, err := l.measure(ctx, discarding(b.self)); err != nil { // it finds the end
			return g, err
		}
		backlogs[i] = l
	}
	if err := b.warmUp(ctx, backlogs[0]); err != nil {
		return g, err
	}
	c := relaying(relay.Name, relay.Path, b.kafka.Bootstrap(), b.kafka.Broker(1).Pid(), b.Args...)
	for range b.Repeat {
		for i, runs := range []*[]Drain{&g.Small, &g.Large} {
			d, err := backlogs[i].measure(ctx, c)
			if err != nil {
				return g, err
			}
			*runs = append(*runs, d)
		}
	}
	return g, nil
}

type growths []Growth

func (list growths) print(w io.Writer) {
	for _, g := range list {
		took := make([]float64, len(g.Small))
		for i := range took {
			took[i] = float64(g.Times) * g.Small[i].EventsPerSecond / g.Large[i].EventsPerSecond
		}
		used := func(d Drain) float64 { return d.ReaderMicros }
		t := spreadOf(took, func(f float64) float64 { return f })
		fmt.Fprintf(w, "\n%s, %s: %d times the backlog takes %.2f [%.2f–%.2f] times as long; %.2f and %.2f µs of the relay's CPU an event; VmHWM %.1f and %.1f MiB\n",
			g.Relay, g.Workload, g.Times, t.median, t.low, t.high, spreadOf(g.Small, used).median, spreadOf(g.Large, used).median, peak(g.Small), peak(g.Large))
	}
}

func peak(runs []Drain) float64 {
	return mib(int64(spreadOf(runs, func(d Drain) float64 { return float64(d.PeakBytes) }).high))
}

// Away is a relay whose Kafka is not there, with a backlog.
type Away struct {
	Relay   string `json:"relay"`
	Bytes   int    `json:"backlog_payload_bytes"`
	Waiting int64  `json:"vmhwm_while_away_bytes"`
	Drained int64  `json:"vmhwm_after_drain_bytes"`
}

// away lets a backlog wait until the relay has taken what it takes, then has the broker
// that only acknowledges come up.
func (b *bench) away(ctx context.Context, relay Relay) (a Away, err error) {
	const size = 10 << 10
	w := Workload{Size: size, Rows: 1000, Partitions: 8, Topics: 1, Codec: "none", Events: max(b.Away/size/1000, 1) * 1000}
	a = Away{Relay: relay.Name, Bytes: w.Events * size}
	b.progress("Kafka away: writing %d events", w.Events)
	l, err := b.newBacklog(ctx, w)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, l.drop(ctx)) }()
	if _, err := l.measure(ctx, discarding(b.self)); err != nil { // it finds the end
		return a, err
	}
	ports, err := proc.FreePorts(1)
	if err != nil {
		return a, err
	}
	broker := proc.Addr(ports[0])
	slot, err := l.copySlot(ctx)
	if err != nil {
		return a, err
	}
	argv, env := l.relay(relay.Path, slot, broker, "--http", "off", "--until", l.end.String())
	c, err := start(b.dir, env, argv...)
	if err != nil {
		return a, err
	}
	if err := c.await(streamingLine, 20*time.Second); err != nil {
		c.discard()
		return a, err
	}
	b.progress("Kafka away: waiting")
	for still := 0; still < 5; still++ {
		<-time.After(time.Second)
		if now := highWater(c.pid()); now > a.Waiting {
			a.Waiting, still = now, 0
		}
	}
	acks, _, err := startAcks(broker, w.Partitions)
	if err != nil {
		c.discard()
		return a, err
	}
	defer acks.discard()
	seen := watchProcess(c.pid)
	err = c.wait(drainTimeout)
	seen.end()
	a.Drained = seen.peak
	return a, errors.Join(err, l.dropSlot(ctx, slot))
}

type aways []Away

func (list aways) print(w io.Writer) {
	for _, a := range list {
		fmt.Fprintf(w, "\n%s, %.0f MiB of payload while Kafka is away: VmHWM %.1f MiB, %.1f after the drain that followed\n",
			a.Relay, mib(int64(a.Bytes)), mib(a.Waiting), mib(a.Drained))
	}
}

// Burst is how late single events are between large transactions, which are read as a
// backlog: by the time since the last of them was committed.
type Burst struct {
	Relay string     `json:"relay"`
	Rows  int        `json:"rows"`
	Bins  []BurstBin `json:"bins"`
}

// BurstBin are the events of some milliseconds.
type BurstBin struct {
	From   int     `json:"from_ms"`
	Events int     `json:"events"`
	P50    float64 `json:"p50_ms"`
	Max    float64 `json:"max_ms"`
}

const (
	burstRate = 200 // single events a second
	burstGap  = 500 * time.Millisecond
	burstBin  = 20 * time.Millisecond
)

func (b *bench) burst(ctx context.Context, relay Relay) (m Burst, err error) {
	m = Burst{Relay: relay.Name, Rows: b.Burst}
	b.progress("bursts of %d rows", b.Burst)
	l, err := b.newLane(ctx, relay.Path)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.close(context.WithoutCancel(ctx))) }()
	if _, err := l.relayed(ctx, burstRate, 1, 2*time.Second); err != nil {
		return m, err
	}
	conn := l.writer[0]
	l.writer = l.writer[1:]
	defer conn.Close(ctx)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	var commits []time.Time
	go func() {
		tick := time.NewTicker(burstGap)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-tick.C:
			}
			if _, err := conn.Exec(ctx, `INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
				SELECT $1, 'key-' || i % 1000, 'OrderPlaced', jsonb_build_object('n', i, 'text', $2::text) FROM generate_series(1, $3::int) i`, l.name, text300, b.Burst); err != nil {
				stopped <- err
				return
			}
			commits = append(commits, time.Now())
		}
	}()
	_, err = l.relayed(ctx, burstRate, 1, b.Window)
	close(stop)
	if err = errors.Join(err, <-stopped); err != nil {
		return m, err
	}
	bins := make([][]time.Duration, burstGap/burstBin)
	for i, at := range l.written {
		n, _ := slices.BinarySearchFunc(commits, at, time.Time.Compare)
		if n == 0 {
			continue
		}
		if k := int(at.Sub(commits[n-1]) / burstBin); k < len(bins) {
			bins[k] = append(bins[k], l.took[i])
		}
	}
	for k, took := range bins {
		if n := len(took); n > 0 {
			slices.Sort(took)
			m.Bins = append(m.Bins, BurstBin{From: k * int(burstBin/time.Millisecond), Events: n, P50: took[n/2].Seconds() * 1000, Max: took[n-1].Seconds() * 1000})
		}
	}
	return m, nil
}

type bursts []Burst

func (list bursts) print(w io.Writer) {
	for _, m := range list {
		fmt.Fprintf(w, "\n%s, %d single events a second, and %d rows in one transaction every %s: latency by the time since that commit, ms, # = 1 ms of p50, . = of the maximum\n", m.Relay, burstRate, m.Rows, burstGap)
		for _, x := range m.Bins {
			p50, most := min(int(x.P50), 80), min(int(x.Max), 80)
			fmt.Fprintf(w, "%4d  p50 %7.2f  max %7.2f  %s%s\n", x.From, x.P50, x.Max, strings.Repeat("#", p50), strings.Repeat(".", most-p50))
		}
	}
}
