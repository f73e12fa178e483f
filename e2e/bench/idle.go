package bench

import (
	"context"
	"os"
	"time"
)

// Idle is what a relay costs that has nothing to do, and how long it takes to start.
type Idle struct {
	StartMillis     []float64 `json:"exec_to_streaming_ms"`
	StartCPUMillis  []float64 `json:"start_cpu_ms"`
	CPUPercent      float64   `json:"idle_cpu_percent_of_a_core"`
	WakeupsPerSec   float64   `json:"idle_wakeups_per_second"`
	ResidentAtStart int64     `json:"vmhwm_bytes"`
}

// idle starts a relay several times on an outbox without news, and watches the last one.
func (b *bench) idle(ctx context.Context, binary string, starts int, d time.Duration) (m Idle, err error) {
	b.backlogs++
	l := &backlog{Workload: Workload{Codec: "none"}, b: b, name: "idle"}
	if err := b.newOutbox(ctx, l.name); err != nil {
		return m, err
	}
	defer func() {
		l.dropSlot(ctx, l.name)
		b.exec(ctx, "postgres", "DROP DATABASE idle WITH (FORCE)")
		os.Remove(b.checkpoint(l.name))
	}()
	argv, env := l.relay(binary, l.name, b.kafka.Bootstrap(), "--http", "127.0.0.1:0")
	for i := range starts {
		c, err := start(b.dir, env, argv...)
		if err != nil {
			return m, err
		}
		if err := c.await(streamingLine, 20*time.Second); err != nil {
			c.discard()
			return m, err
		}
		m.StartMillis = append(m.StartMillis, time.Since(c.begun).Seconds()*1000)
		used, _ := cpu(c.pid())
		m.StartCPUMillis = append(m.StartCPUMillis, used.Seconds()*1000)
		if i == starts-1 {
			<-time.After(2 * time.Second) // what the start leaves to do
			used, _ := cpu(c.pid())
			woken, begun := wakeups(c.pid()), time.Now()
			<-time.After(d)
			now, _ := cpu(c.pid())
			took := time.Since(begun).Seconds()
			m.CPUPercent = (now - used).Seconds() / took * 100
			m.WakeupsPerSec = float64(wakeups(c.pid())-woken) / took
			m.ResidentAtStart = highWater(c.pid())
		}
		if err := c.stop(); err != nil {
			return m, err
		}
	}
	return m, nil
}
